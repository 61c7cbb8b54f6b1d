import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax
from sklearn.metrics import roc_auc_score

from fl_dpbayes.calibration.bins import (
    CELLS,
    FINE_BINS,
    FIRST_CELL,
    bin_index,
    cell_index,
    equal_mass,
)
from fl_dpbayes.calibration.metrics import ranking
from fl_dpbayes.calibration.metrics.errors import ece_equal_mass
from fl_dpbayes.calibration.metrics.ranking import aurc, aurc_excess
from fl_dpbayes.calibration.recalibration.maps import recalibrate
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.config.recalibration import RecalibrationMap
from tests.counted import empty, merge, top_label


def of_log_odds(log_odds):
    """Make predictions of two classes that keep every digit of the smaller one."""
    log_odds = np.asarray(log_odds, np.float64)
    return np.column_stack([expit(-log_odds), expit(log_odds)])


def sure_of_all(count=2000):
    """Draw log odds of 25 +- 10 for negatives and 45 +- 10 for positives: most in the last bin."""
    generator = np.random.default_rng(11)
    labels = generator.integers(0, 2, count)
    return generator.normal(25 + 20 * labels, 10), labels


def area_by_pairs(first, second):
    difference = np.asarray(second)[:, None] - np.asarray(first)[None, :]
    return float(np.mean((difference > 0) + (difference == 0) / 2))


LOG_ODDS = (
    st.floats(-700, 700)
    | st.floats(-40, 40)
    | st.sampled_from([-36.8, 0.0, 4.07, 6.87, 36.8, 690.0])
)
RECORDS = st.lists(st.tuples(LOG_ODDS, st.integers(0, 1)), min_size=2, max_size=40)


def test_auroc_of_a_sure_model_golden_stays_at_any_temperature():
    log_odds, labels = sure_of_all()
    exact = roc_auc_score(labels, log_odds)
    assert exact == pytest.approx(0.9138, abs=1e-4)
    area = ranking.auroc(from_batch(of_log_odds(log_odds), labels))
    assert area.value == pytest.approx(exact, abs=5e-4)
    assert ranking.exact_auroc(of_log_odds(log_odds), labels).value == pytest.approx(
        exact, abs=1e-12
    )
    for temperature in (0.2, 0.5, 1.0, 2.0, 10.0):
        mapping = RecalibrationMap(method="temperature", parameters=(math.log(temperature),))
        scaled = recalibrate(of_log_odds(log_odds), mapping)
        assert ranking.exact_auroc(scaled, labels).value == pytest.approx(exact, abs=1e-9)
        area = ranking.auroc(from_batch(scaled, labels))
        assert area.bounds.low - 1e-9 <= exact <= area.bounds.high + 1e-9
        assert area.bounds.high - area.bounds.low < 0.01


def test_three_pairs_golden():
    # 1 - 1e-20 and 1 - 1e-30 are one float64, but their rest is not.
    probabilities = [[1e-30, 1.0], [1e-20, 1.0], [1.0, 1e-20], [1.0, 1e-30]]
    area = ranking.auroc(from_batch(probabilities, [1, 0, 1, 0]))
    assert (area.bounds.low, area.value, area.bounds.high) == (0.75, 0.75, 0.75)
    assert ranking.exact_auroc(probabilities, [1, 0, 1, 0]) == area


@settings(max_examples=100)
@given(RECORDS)
@example([(700.0, 1), (699.0, 0), (-700.0, 0), (-699.0, 1)])
@example([(0.3, 1), (np.nextafter(0.3, 1), 0)])
def test_bounds_property_hold_the_area_of_the_records(records):
    log_odds, labels = map(np.array, zip(*records, strict=True))
    area = ranking.auroc(from_batch(of_log_odds(log_odds), labels))
    exact = ranking.exact_auroc(of_log_odds(log_odds), labels)
    if labels.min() == labels.max():
        assert area is exact is None
        return
    assert area.bounds.low - 1e-12 <= exact.value <= area.bounds.high + 1e-12
    assert area.bounds.low <= area.value <= area.bounds.high
    assert (exact.bounds.low, exact.bounds.high) == (exact.value, exact.value)


def test_many_classes_exact_is_the_macro_average_within_the_bounds():
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 4, 500)
    logits = 12 * generator.normal(size=(500, 4)) + 15 * np.eye(4)[labels]
    probabilities = softmax(logits, axis=1)
    by_pairs = []
    for c in range(4):
        others = np.delete(logits, c, axis=1)
        odds = (
            logits[:, c]
            - np.log(np.exp(others - others.max(1, keepdims=True)).sum(1))
            - others.max(1)
        )
        by_pairs.append(area_by_pairs(odds[labels != c], odds[labels == c]))
    area = ranking.auroc(from_batch(probabilities, labels))
    exact = ranking.exact_auroc(probabilities, labels)
    assert exact.value == pytest.approx(np.mean(by_pairs), abs=1e-9)
    assert area.bounds.low <= exact.value <= area.bounds.high
    assert area.bounds.high - area.bounds.low < 0.005


def test_equal_mass_of_a_sure_model_agrees_with_sorted_records():
    log_odds, labels = sure_of_all(1500)
    sure = np.abs(log_odds) + 8
    right = labels.astype(np.float64)
    statistics = from_batch(of_log_odds(sure), labels)
    counts = equal_mass(statistics.top_label, 15)[:, 0]
    # A cell, about 20 records where they are densest, is never split.
    assert 80 < counts.min() <= counts.max() < 120
    parts = np.array_split(np.argsort(sure), 15)
    direct = np.mean([abs(expit(sure[part]).mean() - right[part].mean()) for part in parts])
    # The surest are right most often, so gaps of ranges differ but do not cancel.
    assert ece_equal_mass(statistics) == pytest.approx(direct, abs=14 * 10 / 1500)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_cells_property_are_within_their_fine_bin_and_rise_with_p(values):
    p = np.sort(np.array(values))
    cell = cell_index(p, 1 - p)
    fine = bin_index(p, FINE_BINS)
    assert (np.diff(cell) >= 0).all()
    assert ((FIRST_CELL[fine] <= cell) & (cell < FIRST_CELL[fine + 1])).all()
    # Cells mirror each other, and end where float64 does.
    assert (np.diff(FIRST_CELL) == np.diff(FIRST_CELL)[::-1]).all()
    assert cell_index([0.0, 1.0], [1.0, 0.0]).tolist() == [0, CELLS - 1] == [0, FIRST_CELL[-1] - 1]


def mean_risk(right):
    return np.mean(np.cumsum(1 - np.asarray(right)) / np.arange(1, len(right) + 1))


def test_agrees_with_sorted_records_in_distinct_bins():
    generator = np.random.default_rng(1)
    confidence = (np.arange(480, 960) + 0.5) / 960
    right = generator.random(480) < confidence
    statistics = top_label(confidence, right)
    order = right[::-1]
    assert aurc(statistics).value == pytest.approx(mean_risk(order), abs=1e-12)
    best = mean_risk(np.sort(right)[::-1])
    assert aurc_excess(statistics) == pytest.approx(mean_risk(order) - best, abs=1e-12)


def test_one_bin_is_the_mean_and_the_extremes_of_all_orders():
    statistics = merge(top_label([0.9] * 2, [1, 0]), top_label([0.7] * 5, [1, 0, 0, 1, 1]))
    orders = [
        (*first, *second)
        for first in permutations([1, 0])
        for second in permutations([1, 0, 0, 1, 1])
    ]
    areas = [mean_risk(order) for order in orders]
    area = aurc(statistics)
    assert (area.value, *area.bounds) == pytest.approx(
        [np.mean(areas), min(areas), max(areas)], abs=1e-12
    )


@given(st.integers(0, 10_000), st.integers(1, 300), st.integers(2, 5))
def test_bounds_property_hold_the_value_of_the_records(seed, count, classes):
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.ones(classes), count)
    labels = generator.integers(0, classes, count)
    right = (probabilities.argmax(axis=1) == labels)[
        np.argsort(-probabilities.max(axis=1), kind="stable")
    ]
    statistics = from_batch(probabilities, labels)
    area = aurc(statistics)
    excess = aurc_excess(statistics)
    assert area.bounds.low - 1e-12 <= mean_risk(right) <= area.bounds.high + 1e-12
    assert area.bounds.low - 1e-12 <= area.value <= area.bounds.high + 1e-12
    assert 0 <= excess <= area.value + 1e-12


def test_ranking_limits():
    assert aurc_excess(top_label([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0])) == pytest.approx(0, abs=1e-14)
    assert [aurc(top_label([0.9, 0.6], [right] * 2)).value for right in (1, 0)] == [0, 1]
    assert aurc(empty(3)) is aurc_excess(empty(3)) is None
