import math

import numpy as np
import pytest
from scipy.signal import lfilter

from fl_dpbayes.posterior.diagnostics import effective_sample_size, rank_normalised, split_r_hat


def autoregressive(coefficient, chains=4, draws=20_000, seed=0):
    noise = np.random.default_rng(seed).standard_normal((chains, draws))
    noise[:, 0] /= math.sqrt(1 - coefficient**2)
    return lfilter([1.0], [1.0, -coefficient], noise, axis=1)


@pytest.mark.parametrize("coefficient", [-0.3, 0.0, 0.5, 0.9])
def test_effective_sample_size_of_an_autoregressive_chain(coefficient):
    runs = [autoregressive(coefficient, seed=seed) for seed in range(10)]
    expected = runs[0].size * (1 - coefficient) / (1 + coefficient)
    found = np.array([effective_sample_size(run) for run in runs]) / expected
    assert abs(found.mean() - 1) <= 4 * found.std(ddof=1) / math.sqrt(len(runs))
    assert found.std(ddof=1) <= 0.1


@pytest.mark.parametrize("seed", range(20))
def test_effective_sample_size_of_short_chains_by_definition(seed):
    draws = autoregressive(0.6, chains=2, draws=40, seed=seed)
    halves = [part for chain in draws for part in (chain[:20], chain[20:])]
    within = np.mean([half.var(ddof=1) for half in halves])
    total = 19 / 20 * within + np.var([half.mean() for half in halves], ddof=1)

    def correlation(lag):
        products = [((h - h.mean())[: 20 - lag] * (h - h.mean())[lag:]).sum() / 19 for h in halves]
        return 1 - (within - np.mean(products)) / total

    time, lowest = -1.0, math.inf
    for lag in range(0, 20, 2):
        pair = (correlation(lag) if lag else 1.0) + correlation(lag + 1)
        if pair < 0:
            break
        lowest = min(lowest, pair)
        time += 2 * lowest
    assert effective_sample_size(draws) == pytest.approx(80 / max(time, 1 / math.log10(80)))


def test_effective_sample_size_predicts_the_error_of_the_mean():
    runs = [autoregressive(0.8, chains=2, draws=500, seed=seed) for seed in range(400)]
    measured = np.var([run.mean() for run in runs])
    predicted = np.mean([run.var() / effective_sample_size(run) for run in runs])
    assert measured / predicted == pytest.approx(1, abs=4 * math.sqrt(2 / len(runs)))


def test_r_hat_by_hand():
    # Halves (0, 1), (2, 3): W = 1/2, B = 2 * 2 = 4, so R^2 = (1/2 W + B/2) / W = 4.5.
    assert split_r_hat(np.array([[0.0, 1.0, 2.0, 3.0]])) == pytest.approx(math.sqrt(4.5))


def test_r_hat_is_near_one_only_where_chains_agree():
    draws = autoregressive(0.5)
    assert split_r_hat(draws) < 1.01
    apart = draws + np.array([0, 0, 0, 2.0])[:, None]
    assert split_r_hat(apart) > 1.1
    drifting = draws + np.linspace(0, 4, draws.shape[1])
    assert split_r_hat(drifting) > 1.1
    assert effective_sample_size(apart) < 50


def test_heavy_tails_hide_a_difference_unless_rank_normalised():
    draws = np.random.default_rng(0).standard_cauchy((4, 1000))
    draws[3] += 2
    assert split_r_hat(draws) < 1.01
    assert split_r_hat(rank_normalised(draws)) > 1.05


def test_scores_keep_the_order_and_are_normal():
    scores = rank_normalised(np.array([[5.0, -1.0], [100.0, 6.0]]))
    assert np.argsort(scores.ravel()).tolist() == [1, 0, 3, 2]
    assert scores.sum() == pytest.approx(0)


def test_constant_draws_are_undefined():
    assert math.isnan(split_r_hat(np.ones((2, 10))))
    assert math.isnan(effective_sample_size(np.ones((2, 10))))
