"""Under-reporting, flips at the boundary, and a marker that goes with the label."""

from itertools import pairwise

import numpy as np
import pytest

from fl_dpbayes.config.data import Shift
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.load import load_source
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.acquisition import MARKER_RATES, add_markers, films_marked
from fl_dpbayes.data.shifts.annotation import FLIP_RATES, boundary_flips, centroid_closeness, under_report
from fl_dpbayes.data.shifts.apply import apply_shift

SEVERITIES = range(1, 6)


def made_up(count, classes=2, seed=0, side=0):
    """Records drawn from their truth; pictures of `side` pixels, or a table."""
    generator = np.random.default_rng(seed)
    truth = generator.dirichlet(np.ones(classes), count)
    labels = (truth.cumsum(axis=1) < generator.random((count, 1))).sum(axis=1).clip(max=classes - 1)
    shape = (1, side, side) if side else (3,)
    features = np.zeros((count, *shape), dtype=np.float32)
    return Records(features, labels, np.arange(count), None, Task(input_shape=shape, classes=classes), "record", truth)


def shifted(records, kind, severity, seed=0):
    return apply_shift(records, Shift(kind=kind, severity=severity), np.random.default_rng(seed))


def check_truth_fits_labels(records, cells=4):
    """Per class and bin of truth, the share of labels is the mean truth within 4 standard errors."""
    assert records.truth is not None
    np.testing.assert_allclose(records.truth.sum(axis=1), 1, atol=1e-12)
    for label in range(records.task.classes):
        truth = records.truth[:, label]
        bins = np.minimum((truth * cells).astype(int), cells - 1)
        for cell in np.unique(bins):
            inside = bins == cell
            error = (records.labels[inside] == label).mean() - truth[inside].mean()
            standard = np.sqrt(np.sum(truth[inside] * (1 - truth[inside]))) / inside.sum()
            assert abs(error) < 4 * standard + 1e-12


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 5])
def test_only_positives_go_unreported_at_the_stated_rate(classes, seed):
    labels = np.arange(20_000) % classes
    missed_before = np.zeros(len(labels), dtype=bool)
    for severity, rate in enumerate(FLIP_RATES, start=1):
        recorded = under_report(labels, severity, np.random.default_rng(seed))
        missed = recorded != labels
        assert (recorded[missed] == 0).all()
        positives = labels > 0
        assert abs(missed[positives].mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / positives.sum())
        assert (missed_before <= missed).all()
        assert missed.sum() > missed_before.sum()
        missed_before = missed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 5])
def test_flips_at_the_boundary_are_nested_and_nearest_it(classes, seed):
    records = made_up(20_000, classes, seed=seed + 10)
    highest = np.sort(records.truth, axis=1)
    margin = highest[:, -1] - highest[:, -2]
    near, far = margin < np.quantile(margin, 0.25), margin > np.quantile(margin, 0.75)
    flipped_before = np.zeros(len(records), dtype=bool)
    for severity, rate in enumerate(FLIP_RATES, start=1):
        result = shifted(records, "boundary_flip", severity, seed)
        flipped = result.labels != records.labels
        # The variance of a sum of draws of unequal rates is at most that of equal ones.
        assert abs(flipped.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / len(records))
        # Rates fall in a line from 2 rate to 0: 7/4 rate in the nearest quarter, 1/4 rate in the farthest.
        quarter = len(records) / 4
        for chosen, factor in ((near, 1.75), (far, 0.25)):
            expected = factor * rate
            assert abs(flipped[chosen].mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / quarter)
        assert (flipped_before <= flipped).all()
        assert flipped.sum() > flipped_before.sum()
        np.testing.assert_array_equal(result.features, records.features)
        flipped_before = flipped


def test_a_flip_at_the_boundary_is_between_the_two_nearest_classes():
    flips = boundary_flips(np.array([[0.1, 0.5, 0.4], [0.8, 0.0, 0.2]]), 5)
    np.testing.assert_array_equal(flips.nearest, [1, 0])
    np.testing.assert_array_equal(flips.second, [2, 2])
    # Two records: shares .25 and .75 of the ranking, so rates 2 (.3) (.75) and 2 (.3) (.25).
    np.testing.assert_allclose(flips.rates, [0.45, 0.15])
    np.testing.assert_allclose(flips.matrices(3)[0], [[0.55, 0.45, 0], [0, 0.55, 0.45], [0, 0.45, 0.55]])


def test_equally_near_records_flip_alike():
    np.testing.assert_allclose(boundary_flips(np.array([[0.5, 0.5]] * 7), 3).rates, FLIP_RATES[2])


@pytest.mark.parametrize("severity", SEVERITIES)
def test_digits_near_two_centroids_are_confused(severity):
    digits = load_source(BuiltIn(kind="digits"), "train")
    result = shifted(digits, "boundary_flip", severity)
    flipped = result.labels != digits.labels
    rate = FLIP_RATES[severity - 1]
    assert abs(flipped.mean() - rate) < 4 * np.sqrt(rate * (1 - rate) / len(digits))
    closeness = np.sort(centroid_closeness(digits.features, digits.labels, 10), axis=1)
    margin = closeness[:, -1] - closeness[:, -2]
    assert np.median(margin[flipped]) < np.median(margin[~flipped])
    assert result.truth is None


def test_distances_to_centroids_by_hand():
    features = np.array([[0, 0], [2, 0], [1, 4]], dtype=np.float32)
    closeness = centroid_closeness(features, np.array([0, 0, 2]), 3)
    expected = -np.array([[1, np.inf, np.sqrt(17)], [1, np.inf, np.sqrt(17)], [4, np.inf, 0]])
    np.testing.assert_allclose(closeness, expected, rtol=1e-6)


def test_no_boundary_in_one_class():
    records = load_source(BuiltIn(kind="digits"), "train")
    with pytest.raises(UserError, match=r"'boundary_flip' needs records of two classes.*'label_flip'"):
        shifted(records.subset(records.labels == 3), "boundary_flip", 1)


@pytest.mark.parametrize("seed", range(3))
def test_the_sick_are_marked_at_the_stated_rate(seed):
    labels = np.arange(30_000) % 3
    marked_before = None
    for severity, rate in enumerate(MARKER_RATES, start=1):
        marked = films_marked(labels, severity, np.random.default_rng(seed))
        error = np.sqrt(rate * (1 - rate) / 10_000)
        assert abs(marked[labels > 0].mean() - rate) < 4 * error / np.sqrt(2)
        assert abs(marked[labels == 0].mean() - (1 - rate)) < 4 * error
        if marked_before is not None:
            assert (marked_before[labels > 0] <= marked[labels > 0]).all()
            assert (marked_before[labels == 0] >= marked[labels == 0]).all()
            assert (marked_before != marked).any()
        marked_before = marked


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["digits", "28", "224"])
def test_markers_tell_more_of_the_label_at_every_step(name, seed):
    if name == "digits":
        records = load_source(BuiltIn(kind="digits"), "train")
        records = records.subset(np.arange(400))
    else:
        records = made_up(400 if name == "28" else 60, side=int(name), seed=seed)
    letters = []
    gaps = [0.0]
    for severity in SEVERITIES:
        result = shifted(records, "shortcut_marker", severity, seed)
        marked = (result.features != records.features).any(axis=(1, 2, 3))
        np.testing.assert_array_equal(marked, films_marked(records.labels, severity, np.random.default_rng(seed)))
        gaps.append(marked[records.labels > 0].mean() - marked[records.labels == 0].mean())
        assert 0 <= result.features.min() <= result.features.max() <= 1
        np.testing.assert_array_equal(result.labels, records.labels)
        letters.append((marked, result.features))
    assert (np.diff(gaps) > 0).all(), gaps
    for (marked, first), (other, second) in pairwise(letters):
        both = marked & other
        np.testing.assert_array_equal(first[both], second[both])


def test_no_marker_where_the_opacity_is_zero():
    images = np.random.default_rng(0).random((2, 1, 28, 28), dtype=np.float32)
    result = add_markers(images, np.array([0, 1], dtype=np.float32), np.random.default_rng(0))
    np.testing.assert_array_equal(result[0], images[0])
    assert result[1].max() == 1


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("kind", ["under_reporting", "boundary_flip", "shortcut_marker"])
def test_truth_is_that_of_the_recorded_labels(kind, classes, severity):
    records = made_up(30_000, classes, side=6)
    check_truth_fits_labels(records)
    check_truth_fits_labels(shifted(records, kind, severity))


def test_truth_given_the_marker_is_bayes_rule():
    records = made_up(40_000, side=6)
    result = shifted(records, "shortcut_marker", 3)
    marked = result.features.any(axis=(1, 2, 3))
    # Among the marked alone too: a model sees the marker.
    for chosen in (marked, ~marked):
        check_truth_fits_labels(result.subset(chosen))
    assert result.truth[marked, 1].mean() > result.truth[~marked, 1].mean() + 0.3
