"""Annotation shifts: labels flip at the stated rates and stay flipped, and known truth follows them."""

from dataclasses import replace

import numpy as np
import pytest

from fl_dpbayes.config.data import Shift
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.records import Records, load_unscaled
from fl_dpbayes.data.shifts import apply
from tests.asking import refused


@pytest.fixture(params=[2, 5])
def classes(request):
    return request.param


def synthetic(count, classes=2, seed=0):
    """A table of records drawn from their truth."""
    generator = np.random.default_rng(seed)
    truth = generator.dirichlet(np.ones(classes), count)
    labels = (truth.cumsum(axis=1) < generator.random((count, 1))).sum(axis=1).clip(max=classes - 1)
    features, task = np.zeros((count, 3), dtype=np.float32), Task(input_shape=(3,), classes=classes)
    return Records(features, labels, np.arange(count), None, task, "record", truth)


def shifted(records, kind, severity, seed=0):
    return apply.apply_shift(
        records, Shift(kind=kind, severity=severity), np.random.default_rng(seed)
    )


def within(share, rate, count):
    """A share of `count` draws is within 4 standard errors of its rate."""
    return abs(share - rate) < 4 * np.sqrt(rate * (1 - rate) / count)


def test_labels_flip_and_positives_go_unreported_at_the_stated_rate_and_stay_so(classes):
    labels = np.arange(20_000) % classes
    flipped_before, missed_before = labels, labels
    for severity, rate in enumerate(apply.FLIP_RATES, start=1):
        flipped = apply.flip_labels(labels, classes, severity, np.random.default_rng(0))
        missed = apply.under_report(labels, severity, np.random.default_rng(0))
        assert within((flipped != labels).mean(), rate, 20_000)
        assert within((missed != labels)[labels > 0].mean(), rate, (labels > 0).sum())
        assert 0 <= flipped.min() <= flipped.max() < classes
        assert (missed[missed != labels] == 0).all()
        for before, after in ((flipped_before, flipped), (missed_before, missed)):
            changed = before != labels
            assert np.array_equal(before[changed], after[changed])
            assert changed.sum() < (after != labels).sum()
        flipped_before, missed_before = flipped, missed


def test_flips_at_the_boundary_are_nested_and_nearest_it(classes):
    records = synthetic(20_000, classes, seed=10)
    highest = np.sort(records.truth, axis=1)
    margin = highest[:, -1] - highest[:, -2]
    near, far = margin < np.quantile(margin, 0.25), margin > np.quantile(margin, 0.75)
    flipped_before = np.zeros(len(records), dtype=bool)
    for severity, rate in enumerate(apply.FLIP_RATES, start=1):
        result = shifted(records, "boundary_flip", severity)
        flipped = result.labels != records.labels
        # The variance of a sum of draws of unequal rates is at most that of equal ones.
        assert within(flipped.mean(), rate, len(records))
        # Rates fall in a line from 2 rate to 0: 7/4 rate in the nearest quarter, 1/4 rate in the
        # farthest.
        for chosen, factor in ((near, 1.75), (far, 0.25)):
            assert within(flipped[chosen].mean(), factor * rate, len(records) / 4)
        assert (flipped_before <= flipped).all()
        assert flipped.sum() > flipped_before.sum()
        np.testing.assert_array_equal(result.features, records.features)
        flipped_before = flipped


def test_a_flip_at_the_boundary_is_between_the_two_nearest_classes():
    flips = apply.boundary_flips(np.array([[0.1, 0.5, 0.4], [0.8, 0.0, 0.2]]), 5)
    np.testing.assert_array_equal(flips.nearest, [1, 0])
    np.testing.assert_array_equal(flips.second, [2, 2])
    # Two records: shares .25 and .75 of the ranking, so rates 2 (.3) (.75) and 2 (.3) (.25).
    np.testing.assert_allclose(flips.rates, [0.45, 0.15])
    np.testing.assert_allclose(
        flips.matrices(3)[0], [[0.55, 0.45, 0], [0, 0.55, 0.45], [0, 0.45, 0.55]]
    )
    # Equally near records flip alike.
    np.testing.assert_allclose(
        apply.boundary_flips(np.array([[0.5, 0.5]] * 7), 3).rates, apply.FLIP_RATES[2]
    )


def test_digits_near_two_centroids_are_confused():
    digits = load_unscaled(BuiltIn(kind="digits"), "train").scaled()
    closeness = np.sort(apply.centroid_closeness(digits.features, digits.labels, 10), axis=1)
    margin = closeness[:, -1] - closeness[:, -2]
    for severity, rate in enumerate(apply.FLIP_RATES, start=1):
        result = shifted(digits, "boundary_flip", severity)
        flipped = result.labels != digits.labels
        assert within(flipped.mean(), rate, len(digits))
        assert np.median(margin[flipped]) < np.median(margin[~flipped])
        assert result.truth is None
    said = r"'boundary_flip' needs records of two classes.*'label_flip'"
    refused(said, shifted, digits.subset(digits.labels == 3), "boundary_flip", 1)
    # Distances by hand.
    features = np.array([[0, 0], [2, 0], [1, 4]], dtype=np.float32)
    closeness = apply.centroid_closeness(features, np.array([0, 0, 2]), 3)
    expected = -np.array([[1, np.inf, np.sqrt(17)], [1, np.inf, np.sqrt(17)], [4, np.inf, 0]])
    np.testing.assert_allclose(closeness, expected, rtol=1e-6)


def test_truth_after_flips_by_hand():
    truth = np.random.default_rng(0).dirichlet(np.ones(3), size=50)
    expected = 0.8 * truth + 0.2 * (1 - truth) / 2
    np.testing.assert_allclose(
        apply.flipped_truth(truth, apply.symmetric_flips(3, 0.2)), expected, rtol=0, atol=1e-15
    )
    # Rows of the matrix are right labels: positives recorded as negatives with probability .3,
    # negatives never.
    matrix = np.array([[1.0, 0.0], [0.3, 0.7]])
    np.testing.assert_allclose(
        apply.flipped_truth(np.array([[0.2, 0.8]]), matrix), [[0.44, 0.56]], rtol=0, atol=1e-15
    )
    # Rates may differ between records.
    rates = np.stack([apply.symmetric_flips(2, 0.0), apply.symmetric_flips(2, 0.5)])
    two = np.array([[0.2, 0.8], [0.9, 0.1]])
    np.testing.assert_allclose(
        apply.flipped_truth(two, rates), [[0.2, 0.8], [0.5, 0.5]], rtol=0, atol=1e-15
    )


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("kind", ["prevalence", "label_flip", "under_reporting", "boundary_flip"])
def test_truth_is_that_of_the_recorded_labels(kind, classes, check_truth):
    records = synthetic(30_000, classes)
    check_truth(records)
    for severity in (1, 3, 5):
        after = shifted(records, kind, severity)
        check_truth(after)
        assert not np.array_equal(after.truth, records.truth[after.units])
    assert shifted(replace(records, truth=None), kind, 3).truth is None
