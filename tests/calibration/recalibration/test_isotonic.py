"""Isotonic maps: fitted to merged counts of bins, applied to predictions."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from fl_dpbayes.calibration.bins import bin_index
from fl_dpbayes.calibration.recalibration import isotonic
from fl_dpbayes.calibration.recalibration.isotonic import LARGEST_DEVIATION
from fl_dpbayes.calibration.recalibration.maps import describe, recalibrate
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, sensitivity
from fl_dpbayes.config.recalibration import ISOTONIC_BINS, RecalibrationMap
from tests.counted import miscalibrated


def exact(probabilities, labels) -> NoisedTable:
    return NoisedTable(isotonic.count(probabilities, labels).sums, 0.0)


def values_of(mapping: RecalibrationMap) -> np.ndarray:
    return np.array(mapping.parameters[ISOTONIC_BINS:])


def test_map_of_exact_counts_is_that_of_scikit_learn_golden() -> None:
    probabilities, labels, _ = miscalibrated(2000, 2, 2.5)
    table = isotonic.count(probabilities, labels).sums
    places = bin_index(probabilities[:, 1], ISOTONIC_BINS)
    np.testing.assert_array_equal(table[:, 0], np.bincount(places, minlength=ISOTONIC_BINS))
    np.testing.assert_array_equal(table[:, 2], np.bincount(places, labels, ISOTONIC_BINS))
    assert (table[:, 0] > 1).all()
    count, confidence, outcome = table.T
    reference = IsotonicRegression(y_min=1 / 2002, y_max=1 - 1 / 2002, out_of_bounds="clip")
    reference.fit(confidence / count, outcome / count, sample_weight=count)
    mapping = isotonic.fit(exact(probabilities, labels))
    mapped = recalibrate(probabilities, mapping)
    distinct = len(set(mapping.parameters[:ISOTONIC_BINS]))
    assert describe(mapping) == f"an isotonic map on 15 merged bins ({distinct} distinct)"
    assert np.abs(mapped[:, 1] - reference.predict(probabilities[:, 1])).max() < 1e-12


def test_violators_are_pooled_by_their_counts_golden() -> None:
    table = np.zeros((ISOTONIC_BINS, SENT_COLUMNS))
    # Shares .5, then .2 of thrice as many: pooled (5 + 6) / 40 = .275; then .9.
    table[3] = (10, 10 * 0.23, 5)
    table[7] = (30, 30 * 0.5, 6)
    table[12] = (10, 10 * 0.83, 9)
    mapping = isotonic.fit(NoisedTable(table, 0.0))
    mapped = recalibrate(np.array([[0.77, 0.23], [0.5, 0.5], [0.17, 0.83]]), mapping)[:, 1]
    np.testing.assert_allclose(mapped, [0.275, 0.275, 0.9], atol=1e-12)
    assert len(set(mapping.parameters[:ISOTONIC_BINS])) == 3


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 4), noise=st.floats(0, 6))
def test_map_rises_and_rows_sum_to_one_property(seed: int, classes: int, noise: float) -> None:
    probabilities, labels, _ = miscalibrated(300, classes, 3.0, seed)
    table = isotonic.count(probabilities, labels).sums
    noisy = table + noise * np.random.default_rng(seed).standard_normal(table.shape)
    mapping = isotonic.fit(NoisedTable(noisy, noise))
    if mapping is None:
        return
    assert (np.diff(values_of(mapping)) >= 0).all()
    assert 0 < values_of(mapping)[0] <= values_of(mapping)[-1] < 1
    mapped = recalibrate(probabilities, mapping)
    assert (mapped >= 0).all()
    np.testing.assert_allclose(mapped.sum(axis=1), 1.0, atol=1e-12)
    if classes == 2:
        order = np.argsort(probabilities[:, 1])
        assert (np.diff(mapped[order, 1]) >= 0).all()


@given(seed=st.integers(0, 10**6), classes=st.integers(2, 5))
def test_the_identity_changes_nothing_and_is_what_calibrated_counts_give_property(
    seed: int, classes: int
) -> None:
    probabilities = np.random.default_rng(seed).dirichlet(np.full(classes, 0.4), size=40)
    np.testing.assert_allclose(
        recalibrate(probabilities, isotonic.identity()), probabilities, atol=1e-12
    )
    middle = (np.arange(ISOTONIC_BINS) + 0.3) / ISOTONIC_BINS
    mapping = isotonic.fit(
        NoisedTable(200 * np.column_stack([np.ones(ISOTONIC_BINS), middle, middle]), 0.0)
    )
    p = np.clip(probabilities[:, 0], middle[0], middle[-1])
    np.testing.assert_allclose(
        recalibrate(np.column_stack([1 - p, p]), mapping)[:, 1], p, atol=1e-12
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_no_unit_moves_the_counts_further_than_the_sensitivity(classes: int) -> None:
    # Every neighbour: one unit of up to m records, at the corners and edges of bins, right or
    # wrong.
    edges = np.linspace(0, 1, ISOTONIC_BINS + 1)
    rows = []
    for top in {*edges, 0.5, 1 + 1e-6}:
        other = max(0.0, 1 - top)
        rows.append([other, top] if classes == 2 else [other * 0.4, top, other * 0.6])
    records = list(itertools.product(range(len(rows)), range(classes)))
    largest = 0.0
    for m in (1, 2):
        for unit in itertools.combinations_with_replacement(records, m):
            p = np.array([rows[row] for row, _ in unit])
            y = np.array([label for _, label in unit])
            moved = float(np.linalg.norm(isotonic.count(p, y).sums))
            assert moved <= sensitivity(m) + 1e-12
            largest = max(largest, moved / m)
    # The bound is met, so the noise is not larger than it need be.
    assert largest == pytest.approx(np.sqrt(3))


@pytest.mark.parametrize("classes", [2, 5])
def test_mapped_predictions_of_other_records_are_better_calibrated(classes: int) -> None:
    probabilities, labels, _ = miscalibrated(4000, classes, 2.5)
    others, _, true = miscalibrated(4000, classes, 2.5, seed=1)
    noise = np.sqrt(3) * 2.0
    table = isotonic.count(probabilities, labels).sums
    noisy = NoisedTable(
        table + noise * np.random.default_rng(0).standard_normal(table.shape), noise
    )
    mapped = recalibrate(others, isotonic.fit(noisy))

    def divergence(predicted: np.ndarray) -> float:
        return float((true * np.log(true / predicted)).sum(axis=1).mean())

    assert divergence(mapped) < 0.4 * divergence(others)


def test_bins_are_joined_until_noise_in_their_shares_is_small() -> None:
    table = np.zeros((ISOTONIC_BINS, SENT_COLUMNS))
    table[:, 0] = 20.0
    noise = 4.0
    table[:, 1] = 20 * (np.arange(ISOTONIC_BINS) + 0.5) / ISOTONIC_BINS
    table[:, 2] = table[:, 1]
    # k bins have 20 k records and noise 4 sqrt(k): clear from 400 k >= 1600 on, so 4, 4 and the
    # last 7.
    mapping = isotonic.fit(NoisedTable(table, noise))
    assert len(set(mapping.parameters[:ISOTONIC_BINS])) == 3
    assert values_of(mapping)[[0, 4, 8, 14]] == pytest.approx(
        np.array([2, 6, 11.5, 11.5]) / ISOTONIC_BINS
    )
    assert noise * np.sqrt(7) / 140 <= LARGEST_DEVIATION


@pytest.mark.parametrize("records", [0, 1, 12])
def test_without_two_clear_bins_there_is_no_map(records: int) -> None:
    probabilities, labels, _ = miscalibrated(records, 3, 2.0)
    assert isotonic.fit(NoisedTable(isotonic.count(probabilities, labels).sums, 4.0)) is None
    assert isotonic.fit(NoisedTable(np.full((ISOTONIC_BINS, 3), -5.0), 2.0)) is None
    # One clear bin would map every prediction to one value.
    one = np.zeros((ISOTONIC_BINS, 3))
    one[8] = 100, 100 * 0.55, 40
    assert isotonic.fit(NoisedTable(one, 0.0)) is None


def test_certain_top_label_leaves_the_others_equal_shares() -> None:
    values = np.linspace(0.1, 0.7, ISOTONIC_BINS)
    mapping = RecalibrationMap(
        method="isotonic", parameters=(*np.linspace(0, 1, ISOTONIC_BINS).tolist(), *values.tolist())
    )
    mapped = recalibrate(np.array([[0.0, 1.0, 0.0, 0.0], [0.2, 0.2, 0.0, 0.6]]), mapping)
    np.testing.assert_allclose(mapped[0], [0.1, 0.7, 0.1, 0.1])
    share = 1 - (0.1 + 0.6 * 0.6)
    np.testing.assert_allclose(mapped[1], [share / 2, share / 2, 0.0, 0.46])


RISING = np.linspace(0, 1, ISOTONIC_BINS).tolist()


@pytest.mark.parametrize(
    "knots",
    [
        RISING,
        [*RISING, *RISING, 1.0],
        [*RISING[::-1], *RISING],
        [*RISING, *RISING[::-1]],
        [-0.5, *RISING[1:], *RISING],
        [*RISING, *RISING[:-1], 1.5],
        [*RISING, *RISING[:-1], float("nan")],
    ],
)
def test_hostile_map_is_refused(knots: list[float]) -> None:
    with pytest.raises(ValueError, match=r"isotonic map|finite"):
        RecalibrationMap(method="isotonic", parameters=tuple(knots))
