from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.calibration.metrics.ranking import accuracy_at_coverage, aurc, aurc_excess
from fl_dpbayes.calibration.statistics import empty, from_batch, merge


def top_label(confidence, right):
    confidence = np.asarray(confidence, np.float64)
    return from_batch(np.stack([confidence, 1 - confidence], axis=1), 1 - np.asarray(right, np.int64))


def mean_risk(right):
    return np.mean(np.cumsum(1 - np.asarray(right)) / np.arange(1, len(right) + 1))


def test_four_records_golden():
    statistics = top_label([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    area, excess = aurc(statistics), aurc_excess(statistics)
    assert (area.value, *area.bounds) == pytest.approx([1 / 3] * 3, abs=1e-14)
    assert excess == pytest.approx(1 / 8, abs=1e-14)


def test_agrees_with_sorted_records_in_distinct_bins():
    generator = np.random.default_rng(1)
    confidence = (np.arange(480, 960) + 0.5) / 960
    right = generator.random(480) < confidence
    statistics = top_label(confidence, right)
    order = right[::-1]
    assert aurc(statistics).value == pytest.approx(mean_risk(order), abs=1e-12)
    best = mean_risk(np.sort(right)[::-1])
    assert aurc_excess(statistics) == pytest.approx(mean_risk(order) - best, abs=1e-12)
    for share, kept in ((0.8, 384), (0.9, 432), (0.95, 456), (1.0, 480)):
        accuracy = accuracy_at_coverage(statistics, share)
        assert (accuracy.value, *accuracy.bounds) == pytest.approx([order[:kept].mean()] * 3, abs=1e-12)


def test_one_bin_is_the_mean_and_the_extremes_of_all_orders():
    statistics = merge(top_label([0.9] * 2, [1, 0]), top_label([0.7] * 5, [1, 0, 0, 1, 1]))
    orders = [(*first, *second) for first in permutations([1, 0]) for second in permutations([1, 0, 0, 1, 1])]
    areas, kept = [mean_risk(order) for order in orders], [np.mean(order[:4]) for order in orders]
    area, accuracy = aurc(statistics), accuracy_at_coverage(statistics, 4 / 7)
    assert (area.value, *area.bounds) == pytest.approx([np.mean(areas), min(areas), max(areas)], abs=1e-12)
    assert (accuracy.value, *accuracy.bounds) == pytest.approx([np.mean(kept), min(kept), max(kept)], abs=1e-12)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 300), st.integers(2, 5))
def test_bounds_property_hold_the_value_of_the_records(seed, count, classes):
    generator = np.random.default_rng(seed)
    probabilities, labels = generator.dirichlet(np.ones(classes), count), generator.integers(0, classes, count)
    right = (probabilities.argmax(axis=1) == labels)[np.argsort(-probabilities.max(axis=1), kind="stable")]
    statistics = from_batch(probabilities, labels)
    area, excess = aurc(statistics), aurc_excess(statistics)
    assert area.bounds.low - 1e-12 <= mean_risk(right) <= area.bounds.high + 1e-12
    assert area.bounds.low - 1e-12 <= area.value <= area.bounds.high + 1e-12
    assert 0 <= excess <= area.value + 1e-12
    for share in (0.5, 0.8, 1.0):
        low, high = accuracy_at_coverage(statistics, share).bounds
        assert low - 1e-12 <= right[: int(np.ceil(share * count))].mean() <= high + 1e-12


def test_perfect_ranking_has_no_excess_limit():
    excess = aurc_excess(top_label([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0]))
    assert excess == pytest.approx(0, abs=1e-14)
    assert aurc(top_label([0.9, 0.6], [1, 1])).value == 0
    assert aurc(top_label([0.9, 0.6], [0, 0])).value == 1


def test_kept_records_are_counted_whatever_the_last_digit():
    statistics = top_label((np.arange(940, 960) + 0.5) / 960, [0, *[1] * 19])
    assert accuracy_at_coverage(statistics, 0.95).value == 1


def test_without_records_undefined_limit():
    assert aurc(empty(3)) is None
    assert aurc_excess(empty(3)) is None
    assert accuracy_at_coverage(empty(3), 0.9) is None
