from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.metrics import roc_auc_score, roc_curve

from fl_dpbayes.calibration.bins import coarsen
from fl_dpbayes.calibration.metrics import errors
from fl_dpbayes.calibration.metrics.errors import (
    ece,
    ece_true,
    reliability_bins,
    rms_debiased,
    rms_true,
)
from fl_dpbayes.calibration.metrics.ranking import auroc, roc_points
from fl_dpbayes.calibration.rms_interval import debiased_mean_square_gap
from fl_dpbayes.calibration.statistics import from_batch
from tests.counted import GOLDEN, binary, empty, merge, miscalibrated

SEEDS = st.integers(0, 10_000)


def random_statistics(seed, count=200, classes=3):
    generator = np.random.default_rng(seed)
    return from_batch(
        generator.dirichlet(np.full(classes, 0.6), count), generator.integers(0, classes, count)
    )


def test_ten_points_golden():
    case = GOLDEN["ten_points"]
    statistics = binary(case["p"], case["y"])
    table = coarsen(statistics.class_wise[1], case["bins"])
    np.testing.assert_allclose(table[:, :3], case["sums"], rtol=1e-15, atol=1e-15)
    assert errors.mean_absolute_gap(table) == pytest.approx(float(Fraction(case["ece"])), abs=1e-15)
    assert np.abs(errors.bin_gaps(table)[0]).max() == pytest.approx(
        float(Fraction(case["mce"])), abs=1e-15
    )
    assert mean_square(table) == pytest.approx(float(Fraction(case["mean_square"])), abs=1e-15)
    debiased = float(Fraction(case["debiased_mean_square"]))
    assert debiased_mean_square_gap(table) == pytest.approx(debiased, abs=1e-15)
    top_label = float(Fraction(case["top_label_ece_ties_to_first_class"]))
    assert errors.ece(statistics, 5) == pytest.approx(top_label, abs=1e-15)


def mean_square(table):
    gaps, shares = errors.bin_gaps(table)
    return shares @ gaps**2


def class_one(case):
    return coarsen(binary(case["p"], case["y"]).class_wise[1], case["bins"])


def test_closed_last_bin_and_documented_examples_golden():
    case = GOLDEN["closed_last_bin"]
    assert errors.mean_absolute_gap(class_one(case)) == pytest.approx(
        float(Fraction(case["ece"])), abs=1e-15
    )
    case = GOLDEN["sklearn_curve"]
    table = class_one(case)
    assert table[:, 2] / table[:, 0] == pytest.approx(case["frequency"], abs=1e-12)
    assert table[:, 1] / table[:, 0] == pytest.approx(case["confidence"], abs=1e-12)
    several = GOLDEN["docs_multiclass"]
    statistics = from_batch(several["p"], several["y"])
    for case, table in (
        (GOLDEN["docs_binary"], class_one(GOLDEN["docs_binary"])),
        (several, coarsen(statistics.top_label, several["bins"])),
    ):
        found = (
            errors.mean_absolute_gap(table),
            mean_square(table) ** 0.5,
            np.abs(errors.bin_gaps(table)[0]),
        )
        assert (*found[:2], found[2].max()) == pytest.approx(
            [case[name] for name in ("l1", "l2", "max")], abs=5e-5
        )
    found = errors.ece(statistics, several["bins"]), errors.mce(statistics, several["bins"])
    assert found == pytest.approx((several["l1"], several["max"]), abs=5e-5)


def test_ace_agrees_with_sorted_records():
    generator = np.random.default_rng(6)
    probabilities = generator.dirichlet(np.ones(3), 3000)
    labels = np.array([generator.choice(3, p=row**2 / (row**2).sum()) for row in probabilities])
    per_class = []
    for c in range(3):
        parts = np.array_split(np.argsort(probabilities[:, c]), 15)
        per_class.append(
            np.mean(
                [abs(probabilities[part, c].mean() - (labels[part] == c).mean()) for part in parts]
            )
        )
    # One record changes sides per edge at most where a fine bin straddles it: 14 edges of about
    # 3000/960 records.
    assert errors.ace(from_batch(probabilities, labels)) == pytest.approx(
        np.mean(per_class), abs=14 * 3.2 / 3000
    )


def test_binary_view_is_not_the_top_label_golden():
    case = GOLDEN["ten_points"]
    statistics = binary(case["p"], case["y"])
    assert errors.ece_binary(statistics, 5) == pytest.approx(
        float(Fraction(case["ece"])), abs=1e-15
    )
    statistics = binary(
        [0.2, 0.8], [1, 1]
    )  # top label: 80 % sure, right once; p(y = 1): .2 and .8, both 1
    assert errors.ece(statistics, 5) == pytest.approx(0.3, abs=1e-12)
    assert errors.ece_binary(statistics, 5) == pytest.approx(0.5, abs=1e-12)
    assert errors.ece_binary(from_batch([[0.2, 0.7, 0.1]], [0])) is None


def test_debiased_square_of_single_records_is_zero_and_of_a_negative_one_the_root_limit():
    assert debiased_mean_square_gap(coarsen(binary([0.9], [0]).top_label, 15)) == 0
    statistics = binary(np.full(10, 0.5), [0, 1] * 5)
    assert debiased_mean_square_gap(coarsen(statistics.top_label, 15)) < 0
    assert errors.rms_debiased(statistics).value == 0


def test_without_records_undefined_limit():
    metrics = (
        errors.ece,
        errors.ece_equal_mass,
        errors.ece_binary,
        errors.mce,
        errors.rms_debiased,
        errors.ace,
        errors.sce,
        errors.ece_true,
        errors.rms_true,
    )
    assert {metric(empty(2)) for metric in metrics} == {None}
    rows = reliability_bins(empty(2))
    assert len(rows) == 15
    assert {(row.n, row.confidence, row.accuracy, row.band_low, row.band_high) for row in rows} == {
        (0, *[None] * 4)
    }


@given(SEEDS, SEEDS)
def test_pooled_error_property_at_most_the_weighted_mean_of_sites(first, second):
    a = random_statistics(first, 70)
    b = random_statistics(second + 20_000, 130)
    for metric in (errors.ece, errors.sce):
        assert metric(merge(a, b)) <= 0.35 * metric(a) + 0.65 * metric(b) + 1e-12


@given(SEEDS)
def test_label_flip_property_and_sce_of_two_classes(seed):
    generator = np.random.default_rng(seed)
    p = generator.uniform(0, 1, 100)
    y = generator.integers(0, 2, 100)
    statistics = [binary(*pair) for pair in ((p, y), (1 - p, 1 - y))]
    tables = [coarsen(each.class_wise[1], 15) for each in statistics]
    gaps = [errors.mean_absolute_gap(table) for table in tables]
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-12)
    assert errors.sce(statistics[0]) == pytest.approx(gaps[0], abs=1e-12)
    assert auroc(statistics[0]).value == pytest.approx(auroc(statistics[1]).value, abs=1e-12)


def test_true_errors_by_hand():
    # One bin of 15 holds the first two: mean confidence .65, mean truth .5; the third's gap is .2.
    statistics = from_batch(
        [[0.64, 0.36], [0.34, 0.66], [1.0, 0.0]],
        [0, 0, 0],
        truth=[[0.7, 0.3], [0.7, 0.3], [0.8, 0.2]],
    )
    assert ece_true(statistics) == pytest.approx((2 * 0.15 + 0.2) / 3, abs=1e-12)
    assert rms_true(statistics) == pytest.approx(((2 * 0.15**2 + 0.2**2) / 3) ** 0.5, abs=1e-12)


def test_it_is_the_mean_of_what_the_debiased_error_estimates():
    squares = []
    for seed in range(200):
        predicted, labels, truth = miscalibrated(400, 2, 3.0, seed)
        statistics = from_batch(predicted, labels, truth=truth)
        squares.append(rms_debiased(statistics).value ** 2 - rms_true(statistics) ** 2)
    error = np.std(squares, ddof=1) / len(squares) ** 0.5
    # Single-record bins count as 0: a bias below the tolerance at 400 records.
    assert abs(np.mean(squares)) < 3 * error
    assert rms_true(statistics) > 0.1


def test_unknown_where_one_record_has_no_truth_and_zero_where_it_is_predicted():
    predicted, labels, truth = miscalibrated(500, 2, 1.0, 1)
    known = from_batch(predicted, labels, truth=truth)
    unknown = from_batch(predicted[:1], labels[:1])
    for statistics in (merge(known, unknown), merge(unknown, known), unknown):
        assert ece_true(statistics) is rms_true(statistics) is None
    for statistics in (known, merge(known, empty(2))):
        assert (ece_true(statistics), rms_true(statistics)) == pytest.approx((0, 0), abs=1e-12)
        assert ece(statistics) > 0.01


def test_bars_by_hand():
    rows = reliability_bins(
        from_batch([[0.9, 0.1, 0], [0.98, 0.02, 0], [0.3, 0.7, 0]] * 400, [0, 1, 1] * 400), 10
    )
    assert [row.n for row in rows] == [0] * 7 + [400, 0, 800]
    assert (rows[9].low, rows[9].high, rows[9].accuracy) == (0.9, 1.0, 0.5)
    assert rows[9].confidence == pytest.approx(0.94)
    assert (rows[7].low, rows[7].accuracy) == (0.7, 1.0)
    assert (rows[7].band_low, rows[7].band_high) == tuple(binom.ppf([0.025, 0.975], 400, 0.7) / 400)
    # The band of certain predictions is certain.
    last = reliability_bins(from_batch([[1.0, 0.0, 0.0]] * 4, [0, 0, 0, 1]))[-1]
    assert (last.band_low, last.band_high, last.accuracy) == (1.0, 1.0, 0.75)


def test_of_two_classes_the_bars_are_of_the_risk_and_few_records_share_fewer_bins():
    generator = np.random.default_rng(4)
    risk = generator.uniform(0, 1, 100)
    label = (generator.random(100) < risk).astype(int)
    statistics = from_batch(np.stack([1 - risk, risk], axis=1), label)
    rows = reliability_bins(statistics)
    assert [row.n for row in rows] == [25] * 4
    assert (rows[0].low, rows[-1].high) == (0.0, 1.0)
    assert [row.high for row in rows[:-1]] == [row.low for row in rows[1:]]
    order = np.argsort(risk)
    for row, members in zip(rows, order.reshape(4, 25), strict=True):
        assert row.confidence == pytest.approx(risk[members].mean())
        assert row.accuracy == pytest.approx(label[members].mean())


def test_roc_points_bound_the_curve_of_the_records():
    generator = np.random.default_rng(5)
    risk = generator.beta(2, 2, 300)
    label = (generator.random(300) < risk).astype(int)
    points = np.array(roc_points(from_batch(np.stack([1 - risk, risk], axis=1), label)))
    assert points[0].tolist() == [0, 0]
    assert points[-1].tolist() == [1, 1]
    x, y = points.T
    step = np.diff(x)
    exact = roc_auc_score(label, risk)
    assert step @ y[:-1] <= exact <= step @ y[1:]
    assert step @ (y[1:] - y[:-1]) < 0.02
    false, true, _ = roc_curve(label, risk, drop_intermediate=False)
    known = np.stack([false, true], axis=1)
    assert all(np.abs(known - point).sum(axis=1).min() < 2e-5 for point in points)
    assert roc_points(from_batch([[0.2, 0.8]], [1])) == ()
