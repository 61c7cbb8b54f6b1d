"""A federation on linear regression lands on the posterior that theory predicts.

loss_i = |x_i w - y_i|^2 / 2, prior N(0, scale^2) shared as the rule asks. A site's chain at
temperature T with step a has the stationary law N(m_k, T (n_k H_k (I - a H_k / 2))^-1), n_k H_k =
X_k' X_k + s I / scale^2, so after correction for T it counts with the precision n_k H_k (I - a H_k
/ 2), which is that of its posterior but for the step.

Each chain stands in its own output of one linear layer. Nothing is clipped, so the chains share
nothing but records.
"""

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.aggregation import Consensus, Mixture, Product
from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize, GaussianPrior
from fl_dpbayes.posterior.averages import average_states
from fl_dpbayes.posterior.rules.combine import Released, combine_sites
from fl_dpbayes.posterior.rules.fald import DriftMeter, averaged_temperature
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.site_weights import capped_weights, unit_weights
from fl_dpbayes.samplers.minibatch import TrainingRecords
from fl_dpbayes.schedules.noise import NoiseScale
from server.strategies.fald import LARGEST_DRIFT
from tests import chains
from tests.analytic_targets import (
    Regression,
    assert_within_four_standard_errors,
    squared_error,
)

CHAINS, PARAMETERS, STEP_SIZE = 20_000, 2, 0.25
SAMPLER = SGLD(step_size=ConstantStepSize(initial=STEP_SIZE), prior=GaussianPrior(scale=0.7))
# Site -> records, temperature of its chain.
SITES = {"a": (8, 0.5), "b": (14, 1.0), "c": (25, 2.0), "d": (40, 1.0)}
CLIP_NORM = 1e6


def site_data():
    generator = np.random.default_rng(8)
    data = {}
    for site, (units, _) in SITES.items():
        rotation = np.linalg.qr(generator.normal(size=(PARAMETERS, PARAMETERS)))[0]
        features = generator.standard_normal((units, PARAMETERS)) * [1.3, 0.7] @ rotation
        truth = np.array([0.8, -0.5]) + 0.4 * generator.normal(size=PARAMETERS)
        data[site] = (
            features.astype(np.float32),
            (features @ truth + generator.normal(size=units)).astype(np.float32),
        )
    return data


DATA = site_data()


def target_of(*sites, share):
    """The records of these sites together, with a share of the prior."""
    features, targets = (
        np.concatenate([DATA[site][part] for site in sites]).astype(np.float64) for part in (0, 1)
    )
    return Regression(features, targets, SAMPLER.prior, share, clip_norm=CLIP_NORM)


def law_of(target, step_size):
    """Precision at temperature 1 and mean of the stationary law of a chain.

    At step 0 of the posterior.
    """
    return np.linalg.inv(target.law(SAMPLER, step_size, 1.0)), target.posterior_mean


def predicted(share, step_size):
    """Precision and mean of the product of the sites' laws, with the prior counted once."""
    laws = [law_of(target_of(site, share=share), step_size) for site in SITES]
    extra = (1 - len(SITES) * share) * np.eye(PARAMETERS) / SAMPLER.prior.scale**2
    precision = sum(own for own, _ in laws) + extra
    return precision, np.linalg.solve(precision, sum(own @ mean for own, mean in laws))


def pooled_posterior():
    """Precision and mean given all records, by the formula."""
    return law_of(target_of(*SITES, share=1.0), 0.0)


def run_site(site, share, start, *, steps, seed):
    """Run a private chain at a site.

    Return the state, one row per chain, and the chain's temperature.
    """
    features, targets = DATA[site]
    units, temperature = len(features), SITES[site][1]
    sizes = np.full(steps, STEP_SIZE)
    noise = NoiseScale(CLIP_NORM, units, units).langevin_noise(sizes, temperature)
    plan = TrainingPlan(
        rounds=1,
        steps_per_round=steps,
        burn_in=0,
        thinning=steps,
        sampler=SAMPLER,
        prior_share=share,
        chain_start="own_last",
        privacy=PrivacyPlan(
            epsilon=1.0,
            delta=1e-3,
            coupling="langevin",
            temperature=temperature,
            clip_norm=CLIP_NORM,
            sampling_rate=1.0,
        ),
    )
    records = TrainingRecords(features, targets, np.arange(units), squared_error)
    streams = chains.streams_of(*([seed, number] for number in range(4)))
    module = nn.Linear(PARAMETERS, len(start), bias=False)
    result = chains.run(
        module, records, plan, noise, start=torch.from_numpy(start.ravel()), streams=streams
    )
    assert result.temperature_mean == pytest.approx(temperature, rel=1e-12)
    return result.samples.reshape(start.shape), result.temperature_mean


def released(rule):
    share = rule.prior_share(len(SITES))
    start = np.zeros((CHAINS, PARAMETERS), np.float32)
    samples = {}
    for seed, site in enumerate(SITES):
        draws, temperature = run_site(site, share, start, steps=60, seed=seed)
        samples[site] = PosteriorSamples(
            {"w": draws}, np.ones(CHAINS), np.full(CHAINS, temperature)
        )
    return samples


def combined(rule, samples):
    weights = unit_weights({site: units for site, (units, _) in SITES.items()})
    found = combine_sites(
        rule, Released(samples, weights, SAMPLER, len(SITES), np.random.default_rng(0))
    )
    return found.samples.in_memory().arrays["w"].astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        Product(rule="product-full", draws=10_000),
        Product(rule="product-full", prior="divided", draws=10_000),
        Consensus(rule="consensus-full", draws=10_000),
    ],
    ids=["fractional", "divided", "consensus"],
)
def test_rule_of_added_precisions_lands_on_the_pooled_posterior(rule):
    share = rule.prior_share(len(SITES))
    precision, mean = predicted(share, STEP_SIZE)
    assert_within_four_standard_errors(
        combined(rule, released(rule)), mean, np.linalg.inv(precision)
    )
    # All that lies between this law and the posterior given all records is the size of the step.
    for found, exact in zip(predicted(share, 0.0), pooled_posterior(), strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-10)


UNITS = {site: units for site, (units, _) in SITES.items()}
WEIGHTS = {
    "units": unit_weights(UNITS),
    "uniform": dict.fromkeys(UNITS, 1 / len(UNITS)),
    "capped": capped_weights(unit_weights(UNITS), 0.3),
}


def averaged(weights, *, rounds, steps, chains, meter=None, burn_in=0):
    """Average the sites' chains in every round.

    Return the states and the temperature that is claimed for them.
    """
    state = np.zeros((chains, PARAMETERS), np.float32)
    for number in range(rounds):
        replies = {
            site: run_site(site, 1 / len(SITES), state, steps=steps, seed=100 * number + place)
            for place, site in enumerate(SITES)
        }
        states = {site: {"w": draws} for site, (draws, _) in replies.items()}
        state = average_states(states, weights)["w"]
        if meter is not None and number >= burn_in:
            meter.add(states, {"w": state}, weights)
    return state, averaged_temperature(
        {site: heat for site, (_, heat) in replies.items()}, weights, UNITS
    )


def reweighted_posterior(weights):
    """Precision and mean of p(w) prod_k p(D_k|w)^(w_k N / n_k), its prior shared alike."""
    targets = {site: target_of(site, share=1 / len(SITES)) for site in SITES}
    parts = {
        site: weights[site] * sum(UNITS.values()) * target.curvature
        for site, target in targets.items()
    }
    precision = sum(parts.values())
    mean = sum(part @ targets[site].posterior_mean for site, part in parts.items())
    return precision, np.linalg.solve(precision, mean)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", WEIGHTS)
def test_averaged_chain_of_single_steps_has_the_temperature_that_is_claimed(weighting):
    weights, units = WEIGHTS[weighting], sum(UNITS.values())
    state, temperature = averaged(weights, rounds=60, steps=1, chains=8000)
    posterior, mean = reweighted_posterior(weights)
    precision = posterior @ (np.eye(PARAMETERS) - STEP_SIZE * posterior / units / 2) / temperature
    assert_within_four_standard_errors(state.astype(np.float64), mean, np.linalg.inv(precision))
    if weighting == "units":
        for found, exact in zip((posterior, mean), pooled_posterior(), strict=True):
            np.testing.assert_allclose(found, exact, rtol=1e-10)
    else:
        # What the formula for weights by size would claim is too low.
        assert temperature > 1.05 * sum(weights[site] * heat for site, (_, heat) in SITES.items())


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 10])
def test_drift_of_ten_steps_a_round_is_measured_and_of_one_is_none(steps):
    weights, chains = WEIGHTS["units"], 64
    meter = DriftMeter(steps)
    state, temperature = averaged(
        weights, rounds=60, steps=steps, chains=chains, meter=meter, burn_in=20
    )
    precision, mean = pooled_posterior()
    off = np.linalg.cholesky(precision).T @ (state.mean(axis=0) - mean) / np.sqrt(temperature)
    found, true = meter.drift(), np.sqrt(np.square(off).mean())
    error = 1 / np.sqrt(chains)
    if steps == 1:
        assert found == 0
        assert true < 4 * error
    else:
        assert found > LARGEST_DRIFT
        # As much as it may be, and no more than thrice as much as it is.
        assert true - 4 * error < found < 3 * true


@pytest.mark.slow
def test_mixture_is_wider_than_the_pooled_posterior():
    draws = combined(Mixture(), released(Mixture()))
    precision, _ = pooled_posterior()
    assert np.trace(np.cov(draws.T) @ precision) / PARAMETERS > 4
