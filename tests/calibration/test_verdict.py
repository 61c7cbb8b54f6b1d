"""The four words follow from intervals alone, by one rule."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.verdicts import HOSPITALS, WORDS, federation, federation_row, rows
from fl_dpbayes.calibration.intervals import area_interval
from fl_dpbayes.calibration.metrics.ranking import auroc
from fl_dpbayes.calibration.records import CalibrationValues
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.calibration.verdict import verdict
from fl_dpbayes.report.verdicts import CALLED_OFF_BY_CHANCE

ORDERED = (0.7, 0.9)


@pytest.mark.parametrize(
    ("order", "level", "slope", "word"),
    [
        (ORDERED, (-0.3, 0.3), (0.8, 1.2), "fits here"),
        # A small error that is certain is none to act on; nor is an open slope one.
        (ORDERED, (0.1, 0.5), (0.3, 3.0), "fits here"),
        (ORDERED, (0.1, 0.8), (0.8, 1.2), "recalibrate first"),
        (ORDERED, (-2.0, -1.5), None, "recalibrate first"),
        (ORDERED, (-0.3, 0.3), (0.2, 0.7), "recalibrate first"),
        (ORDERED, (-0.8, 0.3), (0.8, 1.2), "too few to tell"),
        (ORDERED, None, None, "too few to tell"),
        (ORDERED, (None, 0.3), (0.8, 1.2), "too few to tell"),
        ((0.45, 0.8), (1.5, 2.0), (0.8, 1.2), "too few to tell"),
        ((0.4, 0.58), (-0.1, 0.1), (0.8, 1.2), "does not fit"),
        (None, (-0.1, 0.1), (0.8, 1.2), "too few to tell"),
    ],
)
def test_a_word_follows_from_the_intervals_of_order_level_and_slope(order, level, slope, word):
    ends = {"auroc": order, "calibration_intercept": level, "calibration_slope": slope}
    intervals = {key: value for key, value in ends.items() if value is not None}
    values = CalibrationValues(n=100, event_rate=0.3, mean_risk=0.3, intervals=intervals)
    assert verdict(values) == word


def test_more_classes_have_no_word_and_what_noise_hides_is_too_few():
    assert verdict(CalibrationValues(n=100)) is None
    assert verdict(CalibrationValues(n=0)) is None
    hidden = CalibrationValues(n=100, cannot_tell=("event_rate", "auroc"))
    assert verdict(hidden) == "too few to tell"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positives", "negatives", "area"),
    [(10, 40, 0.7), (10, 40, 0.85), (20, 80, 0.95), (30, 300, 0.55), (100, 100, 0.85)],
)
def test_the_interval_of_an_area_holds_it(positives, negatives, area):
    generator = np.random.default_rng(0)
    # P(x > y) of normals whose means differ by so much.
    apart = {0.55: 0.1777, 0.7: 0.7416, 0.85: 1.4657, 0.95: 2.3262}[area]
    draws = 1000
    held = 0
    for _ in range(draws):
        with_event = generator.normal(size=positives) + apart
        without = np.sort(generator.normal(size=negatives))
        seen = np.searchsorted(without, with_event).sum() / (positives * negatives)
        interval = area_interval(seen, positives=positives, negatives=negatives)
        held += interval.low <= area <= interval.high
    error = np.sqrt(0.95 * 0.05 / draws)
    # It is a little too wide near 1.
    assert 0.95 - 4 * error < held / draws < 0.99


def test_an_area_without_a_pair_in_the_wrong_order_has_an_interval_that_is_open_below():
    interval = area_interval(1.0, positives=5, negatives=20)
    assert interval.high == 1
    assert 0.7 < interval.low < 0.95
    reverse = area_interval(0.0, positives=5, negatives=20)
    assert reverse == pytest.approx((0.0, 1 - interval.low))


def test_two_classes_have_an_interval_of_the_area_and_more_have_none():
    generator = np.random.default_rng(1)
    for classes in (2, 3):
        probabilities = generator.dirichlet(np.ones(classes), 60)
        measured = auroc(from_batch(probabilities, generator.integers(0, classes, 60)))
        assert (measured.interval is not None) == (classes == 2)


def test_the_page_shows_how_often_each_word_was_wrong():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "metrics.md").read_text(encoding="utf-8")
    with (docs / "results" / "verdicts" / "verdicts.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            truth, patients, right, *shares = row.values()
            percents = [f"{100 * float(share):.0f}" for share in shares]
            assert f"| {' | '.join([truth, right, patients, *percents])} |" in page


@pytest.mark.slow
def test_the_bench_counts_every_draw_once_and_knows_what_is_wrong():
    table = list(rows(draws=3))
    for row in table:
        assert sum(row[word] for word in WORDS) == pytest.approx(1)
        assert row["wrong"] <= 1 - row["too few to tell"]
    calibrated = table[0]
    assert calibrated["wrong"] == calibrated["recalibrate first"] + calibrated["does not fit"]


@pytest.mark.slow
def test_of_calibrated_hospitals_as_many_are_called_off_as_the_page_says():
    row = federation_row(federation(0.0, np.random.default_rng(5)))
    assert sum(row[word] for word in WORDS) == HOSPITALS
    assert row["wrong"] == row["called off"] == row["called off, calibrated"]
    share = 1 / CALLED_OFF_BY_CHANCE
    standard_error = math.sqrt(HOSPITALS * share * (1 - share))
    assert abs(row["called off"] - HOSPITALS * share) < 3 * standard_error


def test_the_page_shows_how_often_the_first_sentence_and_table_of_a_federation_mislead():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "metrics.md").read_text(encoding="utf-8")
    with (docs / "results" / "verdicts" / "federations.csv").open(encoding="utf-8") as file:
        means = [row for row in csv.DictReader(file) if row["over federations"] == "mean"]
    assert [row["hospitals off"] for row in means] == ["0.0", "0.1"]
    for row in means:
        numbers = [f"{float(value):.1f}" for value in list(row.values())[2:]]
        assert f"| {' | '.join(numbers)} |" in page
    assert round(HOSPITALS / float(means[0]["called off"])) == pytest.approx(
        CALLED_OFF_BY_CHANCE, abs=1
    )
