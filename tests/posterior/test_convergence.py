import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.signal import lfilter

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.posterior import convergence
from fl_dpbayes.posterior.convergence import ConvergenceSummary, summarise_convergence
from fl_dpbayes.posterior.diagnostics import effective_sample_size, rank_normalised, split_r_hat
from fl_dpbayes.report.warnings import sentence


def said_of(summary, *, hot=False):
    found = convergence.mixing_warning(summary, hot=hot)
    return sentence(found) if found else ""


def autoregressive(coefficient, *, chains=1, draws=100, dimensions=300, seed=0):
    """Stationary chains one after the other, shape (chains * draws, dimensions)."""
    noise = np.random.default_rng(seed).standard_normal((chains, draws, dimensions))
    noise[:, 0] /= math.sqrt(1 - coefficient**2)
    return lfilter([1.0], [1.0, -coefficient], noise, axis=1).reshape(-1, dimensions)


def summarise(samples, chains=1):
    of_chain = np.repeat(np.arange(chains), len(samples) // chains)
    return summarise_convergence(samples, of_chain, np.random.default_rng(0))


def test_single_parameter_has_the_figures_of_its_diagnostics():
    draws = autoregressive(0.5, chains=3, draws=40, dimensions=1)
    scores = rank_normalised(draws.reshape(3, 40))
    summary = summarise(draws, chains=3)
    # The coordinate, and the projection that is the coordinate or its negative.
    assert (summary.chains, summary.samples_per_chain, summary.quantities) == (3, 40, 2)
    assert summary.r_hat_max == pytest.approx(split_r_hat(scores), rel=1e-6)
    assert summary.r_hat_median == pytest.approx(split_r_hat(scores), rel=1e-6)
    assert summary.effective_samples_min == pytest.approx(effective_sample_size(scores), rel=1e-6)
    assert summary.r_hat_above_1_1 == float(split_r_hat(scores) > 1.1)


def test_warning_is_rare_for_mixed_chains_of_any_length():
    said = [
        said_of(summarise(autoregressive(0.0, draws=draws, seed=seed)))
        for draws in (10, 50)
        for seed in range(10)
    ]
    assert sum("not mixed" in text for text in said) <= 1


def test_drift_is_seen_even_in_few_samples_and_a_chain_that_stands_still_is_told():
    samples = autoregressive(0.0, draws=12) + np.linspace(0, 5, 12)[:, None]
    assert said_of(summarise(samples)).startswith(
        "The sampler has not mixed: the chain's first and second half"
    )
    summary = summarise(np.ones((60, 7), dtype=np.float32))
    assert (summary.r_hat_max, "did not move" in said_of(summary)) == (None, True)


def test_chains_apart_are_seen_and_some_parameters_apart_are_a_doubt():
    samples = autoregressive(0.0, chains=2, draws=60, dimensions=40)
    samples[60:, :8] += 3
    summary = summarise(samples, 2)
    assert summary.r_hat_median < 1.1
    assert 0.05 < summary.r_hat_above_1_1 < 0.5
    assert said_of(summary).startswith("The sampler may not have mixed")
    samples[60:, 8:] += 3
    text = said_of(summarise(samples, 2))
    assert text.startswith("The sampler has not mixed: the chains disagree in")
    assert f"{summarise(samples, 2).r_hat_max:.2f}" in text


def test_one_moving_parameter_reaches_a_projection():
    samples = np.zeros((60, 100_000), dtype=np.float32)
    samples[:, 54_321] = np.linspace(0, 1, 60)
    summary = summarise(samples)
    assert summary.r_hat_max > 2


@pytest.mark.parametrize("draws", [0, 1, 3, 4, 20])
def test_few_samples_cannot_show_anything(draws):
    samples = autoregressive(0.0, draws=20, seed=1)[:draws]
    counted = "1 sample" if draws == 1 else f"{draws} samples"
    said = said_of(summarise_convergence(samples, np.zeros(draws, int), np.random.default_rng(0)))
    assert said.startswith(f"{counted} cannot show whether the sampler has mixed: keep at least 50")


def test_slow_chain_is_told_by_its_effective_samples():
    text = said_of(ConvergenceSummary(1, 2000, 64, 1.05, 1.0, 0.2, 0.0, 10.0, 17.4))
    assert text.startswith("2000 samples are worth about 17 independent ones")


def test_chains_are_compared_over_their_last_samples_and_a_stump_is_left_out():
    samples = autoregressive(0.0, draws=60 + 50 + 8, dimensions=30)
    samples[:10] += 100
    chains = np.repeat([0, 1, 2], [60, 50, 8])
    summary = summarise_convergence(samples, chains, np.random.default_rng(0))
    assert (summary.chains, summary.samples_per_chain) == (2, 50)
    assert said_of(summary) == ""


def test_hotter_chain_is_told_with_how_much_wider_it_is():
    private = PrivacyPlan(
        epsilon=1.0, delta=1e-5, sampling_rate=0.1, coupling="floor", temperature=0.5
    )
    scenario = SimpleNamespace(privacy=private, sampler=SimpleNamespace(levers={}))
    assert convergence.temperature_warnings(scenario, {"a": 0.52, "b": 0.2, "c": None}) == []
    (found,) = convergence.temperature_warnings(scenario, {"a": 0.52, "b": 8.0})
    text = sentence(found)
    assert text.startswith("b: Privacy noise makes its uncertainty about 4 times too wide")
    assert "(temperature 8, planned 0.5)" in text


@pytest.mark.parametrize("hot", [False, True])
def test_larger_steps_are_no_advice_for_a_chain_that_is_hot(hot):
    apart = ConvergenceSummary(1, 60, 8, 3.0, 2.0, 1.0, 1.0, 4.0, 5.0)
    assert ("take larger steps" in said_of(apart, hot=hot)) != hot
    assert "run more steps" in said_of(apart, hot=hot)


def series(coefficient, chains=4, draws=20_000, seed=0):
    """The same of one number, shape (chains, draws)."""
    return autoregressive(coefficient, chains=chains, draws=draws, dimensions=1, seed=seed).reshape(
        chains, draws
    )


@pytest.mark.parametrize("coefficient", [-0.3, 0.0, 0.5, 0.9])
def test_effective_sample_size_of_an_autoregressive_chain(coefficient):
    runs = [series(coefficient, seed=seed) for seed in range(10)]
    expected = runs[0].size * (1 - coefficient) / (1 + coefficient)
    found = np.array([effective_sample_size(run) for run in runs]) / expected
    assert abs(found.mean() - 1) <= 4 * found.std(ddof=1) / math.sqrt(len(runs))
    assert found.std(ddof=1) <= 0.1


@pytest.mark.parametrize("seed", range(20))
def test_effective_sample_size_of_short_chains_by_definition(seed):
    draws = series(0.6, chains=2, draws=40, seed=seed)
    halves = [part for chain in draws for part in (chain[:20], chain[20:])]
    within = np.mean([half.var(ddof=1) for half in halves])
    total = 19 / 20 * within + np.var([half.mean() for half in halves], ddof=1)

    def correlation(lag):
        products = [((h - h.mean())[: 20 - lag] * (h - h.mean())[lag:]).sum() / 19 for h in halves]
        return 1 - (within - np.mean(products)) / total

    time = -1.0
    lowest = math.inf
    for lag in range(0, 20, 2):
        pair = (correlation(lag) if lag else 1.0) + correlation(lag + 1)
        if pair < 0:
            break
        lowest = min(lowest, pair)
        time += 2 * lowest
    assert effective_sample_size(draws) == pytest.approx(80 / max(time, 1 / math.log10(80)))


def test_r_hat_by_hand():
    # Halves (0, 1), (2, 3): W = 1/2, B = 2 * 2 = 4, so R^2 = (1/2 W + B/2) / W = 4.5.
    assert split_r_hat(np.array([[0.0, 1.0, 2.0, 3.0]])) == pytest.approx(math.sqrt(4.5))


def test_heavy_tails_hide_a_difference_unless_rank_normalised():
    draws = np.random.default_rng(0).standard_cauchy((4, 1000))
    draws[3] += 2
    assert split_r_hat(draws) < 1.01
    assert split_r_hat(rank_normalised(draws)) > 1.05
