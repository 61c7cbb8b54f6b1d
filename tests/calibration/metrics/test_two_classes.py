from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from fl_dpbayes.calibration.metrics import two_classes
from fl_dpbayes.calibration.metrics.two_classes import (
    calibration_intercept,
    calibration_slope,
    decision_curve,
)
from fl_dpbayes.calibration.statistics import from_batch
from tests.counted import binary, empty, merge


def draw(seed, count, spread, law):
    generator = np.random.default_rng(seed)
    score = generator.normal(-0.5, spread, count)
    return score, (generator.random(count) < law(score)).astype(np.int64)


# Largest differences measured over 40 draws each: intercept 1e-6, slope 4e-4 at spread 2 and 9e-3
# at spread 6, where one record in four lies in the first or last bin; the intervals' half widths
# are .07 and .06 at n = 2000.
@pytest.mark.parametrize(("spread", "closeness"), [(1, 5e-4), (2, 1e-3), (4, 6e-3), (6, 1e-2)])
def test_close_to_the_fit_on_records(spread, closeness):
    for seed in range(5):
        score, y = draw(seed, 2000, spread, lambda x: expit(0.3 + 0.7 * x))
        statistics = binary(expit(score), y)
        exact = LogisticRegression(C=np.inf, tol=1e-10, solver="newton-cholesky").fit(
            score[:, None], y
        )
        assert calibration_slope(statistics).value == pytest.approx(
            exact.coef_[0, 0], abs=closeness
        )
        intercept = brentq(lambda a, x=score, y=y: expit(a + x).sum() - y.sum(), -20, 20)
        assert calibration_intercept(statistics).value == pytest.approx(intercept, abs=1e-5)


LAWS = {
    "calibrated": lambda x: expit(x),
    "extreme": lambda x: expit(0.3 + 0.7 * x),
    "curved": lambda x: expit(0.2 + 0.6 * x + 0.15 * x**2),
}


@pytest.mark.slow
@pytest.mark.parametrize("count", [50, 200, 624])
@pytest.mark.parametrize("name", LAWS)
def test_intervals_cover(name, count):
    law = LAWS[name]
    replicates = 200
    score = np.random.default_rng(0).normal(-0.5, 1.5, 300_000)
    true_intercept = brentq(lambda a: expit(a + score).mean() - law(score).mean(), -5, 5)
    fit = LogisticRegression(C=np.inf, tol=1e-10, solver="newton-cholesky")
    both = np.repeat([0, 1], score.size)
    weight = np.concatenate([1 - law(score), law(score)])
    true_slope = fit.fit(np.tile(score, 2)[:, None], both, sample_weight=weight).coef_[0, 0]
    covered = np.zeros(2)
    for seed in range(replicates):
        statistics = binary(*(lambda x, y: (expit(x), y))(*draw(seed + 1, count, 1.5, law)))
        for place, (estimate, truth) in enumerate(
            [
                (calibration_intercept(statistics), true_intercept),
                (calibration_slope(statistics), true_slope),
            ]
        ):
            covered[place] += estimate.interval.low <= truth <= estimate.interval.high
    assert (covered / replicates >= 0.93 - 3 * (0.93 * 0.07 / replicates) ** 0.5).all(), (
        covered / replicates
    )


def test_interval_is_wide_where_errors_are_rare_and_none_was_seen_limit():
    statistics = binary([0.001] * 50 + [0.999] * 50, [0] * 50 + [1] * 50)
    intercept = calibration_intercept(statistics)
    assert intercept.value == pytest.approx(0, abs=1e-6)
    assert intercept.interval.high - intercept.interval.low > 5


def test_undefined_limit():
    for statistics in (
        empty(2),
        binary([0.2, 0.7], [1, 1]),
        from_batch([[0.2, 0.7, 0.1], [0.6, 0.3, 0.1]], [0, 1]),
    ):
        assert calibration_intercept(statistics) is calibration_slope(statistics) is None
    # Separated classes, and equal predictions, have no slope.
    assert calibration_slope(binary([0.3] * 4, [0, 1, 0, 1])) is None
    for p, y in (([0.1, 0.2, 0.7, 0.9], [0, 0, 1, 1]), ([0.1, 0.2, 0.7, 0.9], [1, 1, 0, 0])):
        assert calibration_slope(binary(p, y)) is None
    assert calibration_slope(binary([0.1, 0.4, 0.4, 0.9], [0, 0, 1, 1])) is None
    assert calibration_intercept(binary([0.1, 0.2, 0.7, 0.9], [0, 0, 1, 1])) is not None
    assert calibration_intercept(binary([0.5] * 4, [0, 1, 0, 1])).value == pytest.approx(
        0, abs=1e-9
    )


def test_certain_predictions_that_err_stay_finite_limit():
    statistics = binary([0.0] * 5 + [1.0] * 5, [0, 0, 0, 0, 1, 1, 1, 1, 1, 0])
    assert calibration_slope(statistics).value == pytest.approx(
        np.log(4) / (12 * np.log(10)), rel=1e-6
    )
    assert np.isfinite(calibration_intercept(statistics).interval).all()


def test_two_of_many_records_that_overlap_limit():
    # The mean gradient is tiny long before the maximum, so an optimiser that trusts it stops short.
    apart = (np.concatenate([np.arange(440, 479), np.arange(481, 520)]) + 0.5) / 960
    overlap = [479.5 / 960, 480.5 / 960]
    many = binary(apart, (apart > 0.5).astype(np.int64))
    statistics = merge(replace(many, class_wise=20_000 * many.class_wise), binary(overlap, [1, 0]))
    value = calibration_slope(statistics).value

    p = np.append(apart, overlap)
    y = np.append(apart > 0.5, [1, 0])
    n = np.append(np.full(len(apart), 20_000), [1, 1])
    score = np.log(p / (1 - p))
    rest = n * (y - expit(score * value))  # by symmetry the intercept is 0
    assert (
        abs(rest @ score)
        < 1e-6 * (score**2 @ (n * expit(score * value) * expit(-score * value))) * value
    )


def test_agrees_with_its_definition_at_every_threshold():
    generator = np.random.default_rng(1)
    p = np.concatenate([generator.beta(0.6, 0.6, 500), np.arange(21) / 20])
    y = (generator.random(p.size) < p).astype(np.int64)
    curve = decision_curve(binary(p, y))
    assert [point.threshold for point in curve] == [step / 20 for step in range(1, 20)]
    for point in curve:
        t = point.threshold
        treated = p >= point.threshold
        true = (treated & (y == 1)).mean()
        false = (treated & (y == 0)).mean()
        assert point.model == pytest.approx(true - false * t / (1 - t), abs=1e-12)
        assert point.all == pytest.approx(y.mean() - (1 - y.mean()) * t / (1 - t), abs=1e-12)
        assert point.none == 0
        assert point.interval[0] <= point.model <= point.interval[1]


@pytest.mark.parametrize("count", [50, 624])
@pytest.mark.parametrize("mean", [-0.5, -2.5])
def test_interval_of_the_net_benefit_covers(count, mean):
    generator = np.random.default_rng(2)
    replicates = 200
    score = generator.normal(mean, 1.5, 400_000)
    p = 1 / (1 + np.exp(-score))
    law = 1 / (1 + np.exp(-0.3 - 0.7 * score))
    thresholds = (0.05, 0.2, 0.5, 0.8, 0.95)
    truth = [np.mean((p >= t) * (law - (1 - law) * t / (1 - t))) for t in thresholds]
    covered = np.zeros(len(thresholds))
    for _ in range(replicates):
        rows = generator.integers(0, p.size, count)
        statistics = binary(p[rows], (generator.random(count) < law[rows]).astype(np.int64))
        for place, (t, true) in enumerate(zip(thresholds, truth, strict=True)):
            low, high = two_classes.net_benefit(statistics, t).interval
            covered[place] += low <= true <= high
    assert (covered / replicates >= 0.93 - 3 * (0.93 * 0.07 / replicates) ** 0.5).all(), (
        covered / replicates
    )


def test_net_benefit_limit():
    assert decision_curve(empty(2)) is decision_curve(from_batch([[0.2, 0.7, 0.1]], [0])) is None
    # The interval has a width where none is treated.
    four = two_classes.net_benefit(binary([0.9, 0.8, 0.2, 0.6, 0.4, 0.3], [1, 1, 1, 0, 0, 0]), 0.5)
    assert four.counts == (2, 1, 1, 2)
    point = two_classes.net_benefit(binary([0.1] * 100, [0] * 100), 0.5)
    assert point.interval[0] < -0.01 < point.model == 0 < 0.01 < point.interval[1]
