"""Whole chains, from records to samples, on targets whose law or path is known."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.plan import NoPrivacyPlan, PrivacyPlan
from fl_dpbayes.config.sampler import (
    SGD,
    SGHMC,
    SGLD,
    Adam,
    ConstantStepSize,
    FlatPrior,
    GaussianPrior,
    LaplacePrior,
    PolynomialStepSize,
)
from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.gaussian import normal_vectors
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.samplers import chain
from fl_dpbayes.samplers.gradients.loss import summed_cross_entropy
from fl_dpbayes.samplers.minibatch import TrainingRecords, poisson_units
from fl_dpbayes.schedules.noise import NoiseScale
from fl_dpbayes.schedules.planned import noise_without_privacy, planned_step_sizes
from tests import chains
from tests.analytic_targets import (
    CHAINS,
    assert_within_four_standard_errors,
    regression,
    squared_error,
)

SIZE = ConstantStepSize(initial=0.3)
PRIOR = GaussianPrior(scale=0.8)


def plan_of(sampler, privacy, *, steps, share=0.5, **settings):
    settings = {"thinning": steps} | settings
    return chains.plan_of(sampler, privacy, steps_per_round=steps, prior_share=share, **settings)


def run(plan, module, features, targets, noise_multipliers, loss=summed_cross_entropy, **more):
    records = TrainingRecords(features, targets, np.arange(len(features)), loss)
    return chains.run(module, records, plan, noise_multipliers, **more)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [
        SGLD(kind="sgld", step_size=SIZE, prior=PRIOR),
        SGD(kind="sgd", step_size=SIZE, prior=PRIOR, momentum=0.5),
        SGHMC(kind="sghmc", step_size=SIZE, prior=PRIOR, friction=0.3),
    ],
    ids=lambda sampler: sampler.kind,
)
def test_chain_samples_the_posterior_at_the_planned_temperature_gaussian_target(sampler):
    target = regression()
    temperature = 0.5
    # One output per chain: without a clip they share nothing but the records.
    module = nn.Linear(2, CHAINS, bias=False)
    plan = plan_of(sampler, NoPrivacyPlan(sampling_rate=1.0, temperature=temperature), steps=80)
    data = target.features.astype(np.float32), target.targets.astype(np.float32)
    result = run(plan, module, *data, noise_without_privacy(plan, target.units), loss=squared_error)
    assert result.temperature_mean == pytest.approx(temperature, rel=1e-12)
    law = target.law(sampler, 0.3, temperature)
    final = result.samples[0].astype(np.float64).reshape(CHAINS, 2)
    assert_within_four_standard_errors(final, target.posterior_mean, law)


@pytest.fixture(scope="module")
def records():
    generator = np.random.default_rng(0)
    return generator.standard_normal((40, 4)).astype(np.float32), generator.integers(0, 3, 40)


def logistic():
    return build_model(LogisticModel(), Task(input_shape=(4,), classes=3), seed=0)


def record_gradients(vector, features, labels):
    """Gradients of the logistic model's losses in float64, (N, d), in the order weight, bias."""
    weight = vector[:12].reshape(3, 4)
    bias = vector[12:]
    logits = features @ weight.T + bias
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    errors = probabilities / probabilities.sum(1, keepdims=True) - np.eye(3)[labels]
    return np.concatenate(
        [(errors[:, :, None] * features[:, None, :]).reshape(len(features), -1), errors], axis=1
    )


@pytest.mark.parametrize("kind", ["dp-sgd", "dp-sgld"])
@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize(
    ("prior", "penalty_gradient"),
    [
        (FlatPrior(), lambda w: 0 * w),
        (GaussianPrior(scale=0.5), lambda w: w / 0.25),
        (LaplacePrior(scale=0.5), lambda w: np.sign(w) / 0.5),
    ],
    ids=["flat", "gaussian", "laplace"],
)
def test_theorem_1_of_zhang_same_path_from_the_same_noise(
    records, kind, rate, prior, penalty_gradient
):
    features, labels = records
    units = len(features)
    clip_norm = 0.7
    steps = 25
    schedule = PolynomialStepSize(initial=0.8, power=0.5)
    sampler = {"dp-sgd": SGD, "dp-sgld": SGLD}[kind](kind=kind, step_size=schedule, prior=prior)
    privacy = PrivacyPlan(
        epsilon=1.0,
        delta=1e-5,
        sampling_rate=rate,
        clip_norm=clip_norm,
        coupling="langevin",
        temperature=0.5,
    )
    plan = plan_of(sampler, privacy, steps=steps, thinning=1, share=1.0)
    sizes = planned_step_sizes(plan)
    # sigma_SGD = |B| / (n sqrt(eta) C) at eta_SGD = eta n
    sigma = rate * units / (units * np.sqrt(sizes / units) * clip_norm)
    coupled = NoiseScale(clip_norm, rate * units, units).langevin_noise(sizes, 0.5)
    np.testing.assert_allclose(sigma, coupled, rtol=1e-12)
    result = run(plan, logistic(), features, labels, sigma)

    # Algorithm 2 as it is printed, |B_t| read as the expected batch size; its N(0, eta) is minus
    # sqrt(eta) our noise.
    sampling = np.random.default_rng(0)
    w = to_vector(logistic()).double().numpy()
    for number, noise in enumerate(normal_vectors(np.random.default_rng(1), len(w), steps)):
        eta = sizes[number] / units
        batch = poisson_units(sampling, units, rate)
        gradients = record_gradients(w, features[batch].astype(np.float64), labels[batch])
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped_sum = (np.minimum(1, clip_norm / norms) * gradients).sum(axis=0)
        gaussian = -math.sqrt(eta) * noise.numpy()
        w = w - eta * (units / (rate * units) * clipped_sum + penalty_gradient(w)) + gaussian
        np.testing.assert_allclose(result.samples[number], w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "sampler",
    [
        SGD(kind="dp-sgd", step_size=SIZE, momentum=0.9),
        Adam(kind="dp-adam", step_size=SIZE),
        SGHMC(kind="dp-sghmc", step_size=SIZE, friction=0.2),
        SGLD(step_size=SIZE),
    ],
    ids=lambda sampler: sampler.kind,
)
def test_two_stretches_carry_the_momentum_and_equal_one(monkeypatch, records, sampler):
    features, labels = records

    def drawn(generator, size, count, device):
        return (
            torch.from_numpy(generator.standard_normal(size, dtype=np.float32))
            for _ in range(count)
        )

    # The noise of a stretch is a stream of its own: here both draw from one.
    monkeypatch.setattr(chain, "normal_vectors", drawn)
    plan = plan_of(
        sampler,
        PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=0.5),
        steps=12,
        thinning=2,
        burn_in=2,
    )
    whole = run(plan, logistic(), features, labels, np.ones(12))
    streams = chains.streams_of(0, 1, 2, 3)
    start = None
    samples = []
    for stretch in (range(5), range(5, 12)):
        part = run(
            plan,
            logistic(),
            features,
            labels,
            np.ones(12),
            streams=streams,
            start=start,
            steps=stretch,
        )
        start = {name: torch.from_numpy(vector.copy()) for name, vector in part.last.items()}
        samples += zip(part.sample_steps, part.samples, strict=True)
    assert [step for step, _ in samples] == list(whole.sample_steps)
    np.testing.assert_array_equal([sample for _, sample in samples], whole.samples)
    assert part.last.keys() == whole.last.keys()
    for name, vector in whole.last.items():
        np.testing.assert_array_equal(part.last[name], vector)
        assert vector.any()
