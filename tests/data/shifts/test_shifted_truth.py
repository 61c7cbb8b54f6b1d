"""After every shift the truth of made-up records is still that of their labels."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from fl_dpbayes.config.data import ImageShift, Shift
from fl_dpbayes.config.sources import Logistic2D, Radiographs
from fl_dpbayes.data.load import load_source
from fl_dpbayes.data.shifts.apply import apply_shift


@pytest.fixture(scope="module")
def points():
    return load_source(Logistic2D(records=20_000, sites=2, intercept=0.5, seed=3), "train")


def shifted(records, kind, severity):
    return apply_shift(records, Shift(kind=kind, severity=severity), np.random.default_rng(severity))


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("kind", ["prevalence", "label_flip"])
def test_truth_follows_labels(points, kind, severity, check_truth):
    records = shifted(points, kind, severity)
    check_truth(records)
    assert not np.array_equal(records.truth[: len(records)], points.truth[: len(records)])


def test_prevalence_moves_the_log_odds_of_two_classes(points):
    records = shifted(points, "prevalence", 5)
    before, after = (np.log(truth[:, 1] / truth[:, 0]) for truth in (points.truth[records.units], records.truth))
    np.testing.assert_allclose(after - before, (after - before)[0], rtol=0, atol=1e-9)
    # Whole records are kept: the offset is 2.5 up to rounding.
    assert (after - before)[0] == pytest.approx(-2.5, abs=1e-3)


def test_a_class_that_the_site_lacks_is_made_rarer_by_the_planned_share(points):
    without = points.subset(points.labels == 0)
    records = shifted(without, "prevalence", 5)
    np.testing.assert_array_equal(records.labels, without.labels)
    odds = without.truth[:, 1] / without.truth[:, 0]
    np.testing.assert_allclose(records.truth[:, 1] / records.truth[:, 0], odds * np.exp(-2.5), rtol=1e-9)


@pytest.mark.parametrize("kind", get_args(ImageShift))
def test_another_scanner_leaves_the_truth(kind):
    records = load_source(Radiographs(records=200, test_records=20), "train")
    after = shifted(records, kind, 5)
    np.testing.assert_array_equal(after.truth, records.truth)
    np.testing.assert_array_equal(after.labels, records.labels)


def test_records_without_truth_get_none(points):
    for kind in ("prevalence", "label_flip"):
        assert shifted(replace(points, truth=None), kind, 3).truth is None
