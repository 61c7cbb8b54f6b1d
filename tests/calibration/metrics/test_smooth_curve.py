"""The smooth calibration curve and its band, against truths that are known."""

import math

import numpy as np
import pytest
from scipy.special import expit, logit

from fl_dpbayes.calibration.metrics.smooth_curve import POINTS, smooth_curve
from fl_dpbayes.calibration.statistics import from_batch

DRAWS = 60
TRUTHS = {
    "calibrated": lambda score: score,
    "three times too low": lambda score: score + math.log(3),
    "too extreme": lambda score: -0.85 + 0.5 * score,
    "bent": lambda score: score + 0.25 * (score + 1.7) ** 2,
}


def drawn_curve(count, truth, generator):
    score = -1.7 + 1.2 * generator.standard_normal(count)
    outcomes = (generator.random(count) < expit(truth(score))).astype(np.int64)
    risks = expit(score)
    return smooth_curve(from_batch(np.column_stack([1 - risks, risks]), outcomes))


def held(curve, truth):
    """The share of the curve's points whose band holds the truth."""
    return np.mean([point.low <= expit(truth(logit(point.risk))) <= point.high for point in curve])


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUTHS)
def test_the_band_holds_the_truth_nineteen_times_in_twenty(name):
    generator = np.random.default_rng(7)
    curves = [drawn_curve(400, TRUTHS[name], generator) for _ in range(DRAWS)]
    shares = [held(curve, TRUTHS[name]) for curve in curves if curve]
    assert len(shares) == DRAWS
    standard_error = np.std(shares) / math.sqrt(DRAWS)
    assert abs(np.mean(shares) - 0.95) < 3 * standard_error
    # Of another truth it does not.
    others = [held(curve, lambda score: TRUTHS[name](score) + math.log(4)) for curve in curves]
    assert np.mean(others) < 0.5


def test_a_curve_rises_with_the_truth_and_lies_in_its_band():
    curve = drawn_curve(2000, TRUTHS["calibrated"], np.random.default_rng(1))
    assert len(curve) == POINTS
    assert all(point.low < point.observed < point.high for point in curve)
    assert abs(curve[12].observed - curve[12].risk) < 0.1


def test_few_records_one_outcome_or_more_classes_have_no_curve():
    generator = np.random.default_rng(2)
    assert drawn_curve(30, TRUTHS["calibrated"], generator) == ()
    assert drawn_curve(200, lambda score: score - 40, generator) == ()
    three = generator.dirichlet([1, 1, 1], 100)
    assert smooth_curve(from_batch(three, generator.integers(0, 3, 100))) == ()
    # A threshold that separates the outcomes leaves no maximum.
    risks = np.linspace(0.01, 0.99, 100)
    separated = from_batch(np.column_stack([1 - risks, risks]), (risks > 0.5).astype(np.int64))
    assert smooth_curve(separated) == ()
