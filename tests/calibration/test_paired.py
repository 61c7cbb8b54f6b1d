import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fl_dpbayes.calibration.intervals import paired_difference


def test_it_is_the_interval_of_the_paired_t_test():
    generator = np.random.default_rng(1)
    a, b = generator.normal(size=(2, 6))
    expected = ttest_rel(a, b).confidence_interval(0.95)
    difference = paired_difference(a, b)
    assert difference is not None
    assert difference.pairs == 6
    assert difference.mean == pytest.approx(np.mean(a - b), abs=1e-14)
    assert difference.interval == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_two_pairs_by_hand():
    difference = paired_difference([3.0, 5.0], [1.0, 1.0])  # 2 and 4: mean 3, s / sqrt(2) = 1, t = tan(.475 pi)
    half = math.tan(0.475 * math.pi)
    assert difference is not None
    assert (difference.mean, *difference.interval) == pytest.approx((3, 3 - half, 3 + half), abs=1e-9)


@pytest.mark.parametrize("values", [[], [0.3]])
def test_fewer_than_two_pairs_have_no_interval(values):
    assert paired_difference(values, values) is None


@pytest.mark.parametrize("pairs", [2, 3, 5, 20])
def test_it_covers_at_95_percent_however_few_the_pairs(pairs):
    generator = np.random.default_rng(pairs)
    runs, truth = 2000, -0.3
    seeds = generator.normal(0, 2, size=(runs, pairs))  # what a pair shares cancels
    a = seeds + truth + generator.normal(0, 0.1, size=(runs, pairs))
    b = seeds + generator.normal(0, 0.1, size=(runs, pairs))
    found = [paired_difference(*each) for each in zip(a, b, strict=True)]
    covered = np.mean([each is not None and each.interval.low <= truth <= each.interval.high for each in found])
    assert abs(covered - 0.95) <= 3 * math.sqrt(0.95 * 0.05 / runs)


@pytest.mark.parametrize(("a", "b"), [([1.0, 2.0], [1.0]), ([[1.0]], [[1.0]]), ([1.0, math.nan], [1.0, 2.0])])
def test_unequal_lists_and_undefined_figures_are_refused(a, b):
    with pytest.raises(ValueError, match="pairs need"):
        paired_difference(a, b)
