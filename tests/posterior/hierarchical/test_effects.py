"""From clipped sums to effects: exact for Gaussian heads, unbiased for clipped logistic ones."""

import numpy as np
import pytest
from scipy.special import expit

from fl_dpbayes.posterior.hierarchical.effects import (
    SCORE_VARIANCE,
    Means,
    PooledRounds,
    ScoreCurve,
    log_odds_means,
    pooled_round,
    site_effects,
    with_round,
)
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior
from fl_dpbayes.posterior.hierarchical.made_up import (
    clipped_parts,
    score_curve,
    stretch_distribution,
    stretched,
)
from tests.posterior.hierarchical.test_levels import LEVEL, covered, within

CURVE = np.linspace(-9, 9, 7)


def test_gaussian_effects_do_not_depend_on_the_states_and_have_the_stated_variance() -> None:
    generator = np.random.default_rng(0)
    hospitals = 4000
    precision = 0.7
    units = generator.uniform(20, 300, hospitals)
    noise = generator.uniform(1, 20, hospitals)
    effects = 0.3 * generator.normal(size=hospitals)
    averages = effects + generator.normal(size=hospitals) / np.sqrt(units * precision)
    drawn = noise * generator.normal(size=hospitals)

    def estimate(states: np.ndarray):
        gradients = units * precision * (states - averages) + drawn
        means = Means(units, gradients[:, None], states[:, None], noise)
        even = np.full(len(CURVE), precision)
        score = ScoreCurve(effects=CURVE, mean=np.zeros(len(CURVE)), slope=even, variance=even)
        estimates, variances = site_effects(means, score)
        return estimates + states.mean(), variances

    estimates, variances = estimate(np.zeros(hospitals))
    assert np.allclose(estimate(5 * generator.normal(size=hospitals))[0], estimates)
    assert np.allclose(variances, 1 / (units * precision) + np.square(noise / (units * precision)))
    scaled = (estimates - effects) / np.sqrt(variances)
    # Mean 0 and mean square 1, to four standard errors.
    assert abs(scaled.mean()) < 4 / np.sqrt(hospitals)
    assert abs(np.square(scaled).mean() - 1) < 4 * np.sqrt(2 / hospitals)


@pytest.mark.slow
def test_logistic_effects_are_unbiased_under_clipping_and_noise_and_have_the_stated_variance() -> (
    None
):
    generator = np.random.default_rng(2)
    state = np.array([0.8, 0.6, -0.4, 0.3])
    clip = 0.8
    units = 200
    noise = 5.0
    effects = 0.3 * generator.normal(size=800)
    covariates = np.column_stack([np.ones(5000), generator.normal(size=(5000, 3))])
    curve = score_curve(covariates, state=state, states=state[None], clip_norm=clip)

    def release(taken_at: np.ndarray) -> Means:
        """Sum clipped scores of each hospital's own patients, at the intercept where it is."""
        sums = []
        for effect, moved in zip(effects, taken_at, strict=True):
            x = np.column_stack([np.ones(units), generator.normal(size=(units, 3))])
            y = generator.random(units) < expit(x @ state + effect)
            score = (expit(x @ state + moved) - y)[:, None] * x
            shares = np.minimum(1, clip / np.linalg.norm(score, axis=1))
            sums.append(score.T @ shares)
        states = np.tile(state, (800, 1))
        states[:, 0] += taken_at
        gradients = np.array(sums) + noise * generator.normal(size=(800, 4))
        return Means(np.full(800, float(units)), gradients, states, np.full(800, noise))

    first = site_effects(release(np.zeros(800)), curve)
    posterior = HospitalPosterior([first], groups=None, largest_sd=3.0)
    taken_at = posterior.mean_effects - posterior.mean_effects.mean()
    second = site_effects(release(taken_at), curve)
    scaled = (second.estimates - effects) / np.sqrt(second.variances)
    mean_error = np.mean(second.estimates - effects)
    assert abs(mean_error) < 4 * np.sqrt(second.variances.mean() / 800) + 0.01
    assert abs(np.square(scaled).mean() - 1) < 4 * np.sqrt(2 / 800) + 0.05
    posterior = HospitalPosterior([second], groups=None, largest_sd=3.0)
    assert covered(posterior.spreads[0].interval(LEVEL), float(effects.std()))
    hits = [covered(posterior.of_hospital(k).interval(LEVEL), effects[k]) for k in range(200)]
    assert within(hits, LEVEL)


def test_a_score_s_curve_is_the_mean_and_variance_of_clipped_scores_of_drawn_records() -> None:
    generator = np.random.default_rng(5)
    state = np.array([0.4, 0.9, -0.5])
    before = np.array([0.1, 0.7, -0.3])
    clip = 0.7
    covariates = np.column_stack([np.ones(200_000), generator.normal(size=(200_000, 2))])
    curve = score_curve(covariates[:4000], state=state, states=before[None], clip_norm=clip)

    def clipped_scores(taken_at: float, effect: float) -> np.ndarray:
        y = np.random.default_rng(6).random(len(covariates)) < expit(covariates @ state + effect)
        score = (expit(covariates @ before + taken_at) - y)[:, None] * covariates
        return score[:, 0] * np.minimum(1, clip / np.linalg.norm(score, axis=1))

    for effect in (-1.0, 0.6):
        scores = clipped_scores(effect, effect)
        # 4,000 records stand for the population: four of their standard errors.
        bound = 4 * scores.std() / np.sqrt(4000)
        assert abs(np.interp(effect, curve.effects, curve.mean) - scores.mean()) < bound
        variance = np.interp(effect, curve.effects, curve.variance)
        assert variance == pytest.approx(scores.var(), rel=0.1)
        # The same patients' outcomes, at a level a little higher.
        lower = clipped_scores(effect, effect + 0.1).mean() - clipped_scores(effect, effect).mean()
        slope = np.interp(effect, curve.effects, curve.slope)
        assert slope == pytest.approx(-lower / 0.1, rel=0.05)


def test_stretching_moves_the_log_odds_alone_and_keeps_the_total_variance() -> None:
    generator = np.random.default_rng(6)
    covariates = np.column_stack([np.ones(5000), generator.normal(size=(5000, 8))])
    state = np.append(0.3, generator.normal(size=8))
    wider = stretched(covariates, state, 1.5)
    slopes = state[1:]
    assert np.allclose(wider[:, 1:] @ slopes, 1.5 * covariates[:, 1:] @ slopes)
    assert wider[:, 1:].var(axis=0).sum() == pytest.approx(8, rel=0.02)
    assert np.allclose(wider[:, 0], 1)
    # No slopes, no direction; one feature, nothing across.
    assert np.allclose(stretched(covariates, np.zeros(9), 1.0), covariates)
    assert np.allclose(stretched(covariates[:, :2], np.ones(2), 2.0)[:, 1], 2 * covariates[:, 1])


@pytest.mark.parametrize("true_stretch", [0.8, 1.0, 1.6])
def test_pooled_scores_along_a_chain_tell_how_widely_the_log_odds_spread(
    true_stretch: float,
) -> None:
    generator = np.random.default_rng(7)
    state = np.append(0.5, np.full(6, 0.35))
    made_up = np.column_stack([np.ones(2000), generator.normal(size=(2000, 6))])
    patients = stretched(
        np.column_stack([np.ones(20_000), generator.normal(size=(20_000, 6))]), state, true_stretch
    )
    y = generator.random(20_000) < expit(patients @ state)
    states = np.linspace(0.1, 1.1, 12)[:, None] * state
    rounds: dict[str, np.ndarray] = {}
    for at in states:
        score = (expit(patients @ at) - y)[:, None] * patients
        clipped = score * np.minimum(1, 1.2 / np.linalg.norm(score, axis=1))[:, None]
        drawn = clipped.sum(axis=0) + 100 * generator.normal(size=7)
        means = Means(np.array([20_000.0]), drawn[None], at[None], np.array([100.0]))
        rounds = with_round(rounds, pooled_round(means, 12))
    found = stretch_distribution(made_up, state, PooledRounds.of_arrays(rounds), clip_norm=1.2)
    assert abs(found.mean - true_stretch) < 3 * found.sd
    assert found.sd < 0.2


def test_covariates_that_go_together_do_not_hide_how_widely_the_log_odds_spread() -> None:
    generator = np.random.default_rng(10)
    count = 20_000
    # One factor behind all covariates: the first steps are along it, and not along the slopes.
    shared = generator.normal(size=(count, 1))
    features = (shared + generator.normal(size=(count, 8))) / np.sqrt(2)
    patients = np.column_stack([np.ones(count), features])
    slopes = np.array([1.2, 0.8, 0.6, 0.5, 0.3, 0.0, -0.3, -0.5])
    y = generator.random(count) < expit(0.5 + features @ slopes)
    at = np.zeros(9)
    rounds: dict[str, np.ndarray] = {}
    for _ in range(60):
        score = (expit(patients @ at) - y)[:, None] * patients
        means = Means(np.array([1.0 * count]), score.sum(axis=0)[None], at[None], np.zeros(1))
        rounds = with_round(rounds, pooled_round(means, 60))
        at = at - score.mean(axis=0)
    pooled = PooledRounds.of_arrays(rounds)
    made_up = np.column_stack([np.ones(2000), generator.normal(size=(2000, 8))])
    stretch = stretch_distribution(made_up, at, pooled, clip_norm=np.inf)
    true_stretch = (features @ at[1:]).std() / np.linalg.norm(at[1:])
    assert true_stretch > 1.2
    assert stretch.mean == pytest.approx(true_stretch, rel=0.05)


def test_a_pooled_score_scatters_as_its_noise_says_and_weighs_sites_by_what_they_tell() -> None:
    generator = np.random.default_rng(9)
    units = np.array([20.0, 100.0, 400.0])
    noise = np.array([1.0, 5.0, 8.0])
    drawn = []
    for _ in range(4000):
        of_records = np.sqrt(SCORE_VARIANCE * units)[:, None] * generator.normal(size=(3, 2))
        sums = 0.1 * units[:, None] + of_records + noise[:, None] * generator.normal(size=(3, 2))
        pooled = pooled_round(Means(units, sums, np.zeros((3, 2)), noise), rounds=10)
        drawn.append(pooled.scores[0])
    assert np.abs(np.mean(drawn, axis=0) - 0.1).max() < 4 * pooled.noises[0] / np.sqrt(4000)
    assert np.std(drawn) == pytest.approx(pooled.noises[0], rel=4 / np.sqrt(2 * 8000))
    equal = np.sqrt((SCORE_VARIANCE / units + np.square(noise / units)).sum()) / 3
    assert pooled.noises[0] < equal


def test_parts_of_a_clipped_score_are_the_score_by_outcome() -> None:
    generator = np.random.default_rng(8)
    covariates = np.column_stack([np.ones(50), generator.normal(size=(50, 3))])
    state = generator.normal(size=4)
    parts = clipped_parts(covariates, state[None], clip_norm=0.6)
    for outcome, part in ((0, parts.without_event), (1, -parts.with_event)):
        score = (expit(covariates @ state) - outcome)[:, None] * covariates
        clipped = score * np.minimum(1, 0.6 / np.linalg.norm(score, axis=1))[:, None]
        assert np.allclose(part * covariates, clipped)


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
