"""From clipped sums to effects: exact for Gaussian heads, unbiased for clipped logistic ones."""

import numpy as np
import pytest
from scipy.special import expit

from fl_dpbayes.posterior.hierarchical.effects import (
    ClippedScore,
    Means,
    clipped_score,
    log_odds_means,
    site_effects,
)
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior
from tests.posterior.hierarchical.test_levels import LEVEL, covered, within


def test_gaussian_effects_do_not_depend_on_the_states_and_have_the_stated_variance() -> None:
    generator = np.random.default_rng(0)
    hospitals = 4000
    precision = 0.7
    units = generator.uniform(20, 300, hospitals)
    noise = generator.uniform(1, 20, hospitals)
    effects = 0.3 * generator.normal(size=hospitals)
    averages = effects + generator.normal(size=hospitals) / np.sqrt(units * precision)
    drawn = noise * generator.normal(size=hospitals)

    def found(states: np.ndarray):
        gradients = units * precision * (states - averages) + drawn
        means = Means(units, gradients[:, None], states[:, None], noise)
        score = ClippedScore(np.zeros(1), *np.full((2, 1, 1), precision))
        estimates, variances = site_effects(means, score)
        return estimates + states.mean(), variances

    estimates, variances = found(np.zeros(hospitals))
    assert np.allclose(found(5 * generator.normal(size=hospitals))[0], estimates)
    assert np.allclose(variances, 1 / (units * precision) + np.square(noise / (units * precision)))
    scaled = (estimates - effects) / np.sqrt(variances)
    # Mean 0 and mean square 1, to four standard errors.
    assert abs(scaled.mean()) < 4 / np.sqrt(hospitals)
    assert abs(np.square(scaled).mean() - 1) < 4 * np.sqrt(2 / hospitals)


def clipped_sums(
    generator: np.random.Generator, effects: np.ndarray, clip: float, state: np.ndarray, units: int
):
    """Sum clipped scores of each hospital's own patients, at a state that is not its own."""
    found = []
    for effect in effects:
        x = np.column_stack([np.ones(units), generator.normal(size=(units, len(state) - 1))])
        y = generator.random(units) < expit(x @ state + effect)
        score = (expit(x @ state) - y)[:, None] * x
        found.append(
            (score * np.minimum(1, clip / np.linalg.norm(score, axis=1))[:, None]).sum(axis=0)
        )
    return np.array(found)


@pytest.mark.slow
def test_logistic_effects_are_unbiased_under_clipping_and_noise_and_have_the_stated_variance() -> (
    None
):
    generator = np.random.default_rng(2)
    state = np.array([0.8, 0.6, -0.4, 0.3])
    clip = 0.8
    units = 200
    sigma = 5.0
    effects = 0.3 * generator.normal(size=800)
    sums = clipped_sums(generator, effects, clip, state, units) + sigma * generator.normal(
        size=(800, 4)
    )
    covariates = np.column_stack([np.ones(5000), generator.normal(size=(5000, 3))])
    means = Means(np.full(800, float(units)), sums, np.tile(state, (800, 1)), np.full(800, sigma))
    estimates, variances = site_effects(means, clipped_score(covariates, state, clip))
    scaled = (estimates - effects) / np.sqrt(variances)
    # The common slope is that at effect 0, which costs a few per cent of the spread and nothing of
    # the mean.
    assert abs(np.mean(estimates - effects)) < 4 * np.sqrt(variances.mean() / 800) + 0.01
    assert abs(np.square(scaled).mean() - 1) < 4 * np.sqrt(2 / 800) + 0.05
    posterior = HospitalPosterior(estimates, variances, None, 3.0)
    assert covered(posterior.spreads[0].interval(LEVEL), float(effects.std()))
    hits = [covered(posterior.of_hospital(k).interval(LEVEL), effects[k]) for k in range(200)]
    assert within(hits, LEVEL)


def test_the_log_odds_of_a_softmax_model_are_the_difference_of_its_rows() -> None:
    generator = np.random.default_rng(3)
    weight = generator.normal(size=(2, 3))
    bias = generator.normal(size=2)
    x = generator.normal(size=(50, 3))
    y = generator.integers(0, 2, 50)
    clip = 0.9
    logits = x @ weight.T + bias
    residual = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - np.eye(2)[y]
    rows = np.concatenate([np.einsum("nc,nd->ncd", residual, x).reshape(50, -1), residual], axis=1)
    total = (rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1))[:, None]).sum(axis=0)
    flat = np.concatenate([weight.ravel(), bias])
    found = log_odds_means(Means(np.array([50.0]), total[None], flat[None], np.array([2.0])))
    ones = np.column_stack([np.ones(50), x])
    odds = np.append(bias[1] - bias[0], weight[1] - weight[0])
    score = (expit(ones @ odds) - y)[:, None] * ones
    expected = (
        score * np.minimum(1, clip / np.sqrt(2) / np.linalg.norm(score, axis=1))[:, None]
    ).sum(axis=0)
    assert np.allclose(found.states[0], odds)
    assert np.allclose(found.gradients[0], expected)
    assert np.isclose(found.noise[0], 2 / np.sqrt(2))
