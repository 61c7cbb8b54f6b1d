"""The table that leaves with noise: how far one record moves it, and what is read back from it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fl_dpbayes.calibration.bins import FINE_BINS
from fl_dpbayes.calibration.noised_counts import (
    CODE,
    COUNT_BINS,
    INNER_EDGES,
    MIDDLES,
    UNIT_COVARIANCE,
    NoisedCounts,
    coded_counts,
    largest_sensitivity,
    release_counts,
    without_noise,
)
from fl_dpbayes.calibration.release import BoundedSum
from fl_dpbayes.calibration.statistics import from_batch

ANY_FLOAT = st.one_of(
    st.floats(width=64), st.sampled_from([0.0, 1.0, 5e-324, 1e307, math.inf, -math.inf, math.nan])
)
NOTHING = BoundedSum(np.zeros((COUNT_BINS, 2)), 1.0)


def released(tables, generator, noise_multiplier=1.0, most_records=1, tables_of_a_record=1):
    return release_counts(
        tables,
        max_records_per_unit=most_records,
        noise_multiplier=noise_multiplier,
        generator=generator,
        tables_of_a_record=tables_of_a_record,
    )


def record(bin_: int, outcome: int) -> np.ndarray:
    p = MIDDLES[bin_]
    return coded_counts(np.array([[1 - p, p]]), np.array([outcome])).sums


def test_sensitivity_is_the_largest_change_by_any_unit_and_hardly_more() -> None:
    cells = [record(b, y).ravel() for b, y in itertools.product(range(COUNT_BINS), range(2))]
    assert max(map(np.linalg.norm, cells)) <= largest_sensitivity()
    assert min(map(np.linalg.norm, cells)) > 1 - 1e-6
    pairs = [
        np.linalg.norm(first + second)
        for first, second in itertools.combinations_with_replacement(cells, 2)
    ]
    assert max(pairs) <= largest_sensitivity(2)
    assert max(pairs) == pytest.approx(2, abs=1e-6)
    # A record of the whole and of a subgroup of each of two attributes.
    joint = [np.linalg.norm(np.concatenate([cell] * 3)) for cell in cells]
    assert max(joint) <= largest_sensitivity(tables=3)
    assert max(joint) == pytest.approx(math.sqrt(3), abs=1e-6)


@pytest.mark.parametrize(("records", "tables"), [(0, 1), (1, 0)])
def test_what_no_unit_can_be_has_no_sensitivity(records: int, tables: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        largest_sensitivity(records, tables)


def test_a_record_moves_sums_by_its_own_vector_and_by_no_rounding() -> None:
    generator = np.random.default_rng(1)
    counts = generator.integers(0, 2**15, (COUNT_BINS, 2)).astype(np.float64)
    assert counts.sum() < 2**22
    for bin_ in range(COUNT_BINS):
        more = counts.copy()
        more[bin_, 1] += 1
        assert ((CODE @ more - CODE @ counts)[:, 1] == CODE[:, bin_]).all()
        assert ((CODE @ more - CODE @ counts)[:, 0] == 0).all()


@given(
    arrays(np.float64, st.tuples(st.integers(1, 6), st.sampled_from([2, 3])), elements=ANY_FLOAT)
)
def test_any_predictions_give_finite_sums_that_a_record_moves_by_its_sensitivity_at_most(
    probabilities: np.ndarray,
) -> None:
    labels = np.arange(len(probabilities)) % probabilities.shape[1]
    whole = coded_counts(probabilities, labels)
    assert np.isfinite(whole.sums).all()
    for number in range(len(labels)):
        kept = np.arange(len(labels)) != number
        move = whole.sums - coded_counts(probabilities[kept], labels[kept]).sums
        assert np.linalg.norm(move) <= whole.sensitivity


@pytest.mark.parametrize("classes", [2, 3])
def test_counts_are_read_back_and_those_of_exact_sums(classes: int) -> None:
    generator = np.random.default_rng(2)
    probabilities = generator.dirichlet(np.full(classes, 0.4), 5_000)
    edges = INNER_EDGES / FINE_BINS
    at_edges = np.zeros((len(edges), classes))
    at_edges[:, 0], at_edges[:, 1] = 1 - edges, edges
    probabilities = np.vstack([probabilities, at_edges])
    labels = generator.integers(0, classes, len(probabilities))
    coded = NoisedCounts(coded_counts(probabilities, labels).sums, 0.0, classes)
    outcome = labels == 1 if classes == 2 else probabilities.argmax(axis=1) == labels
    np.testing.assert_allclose(coded.counts.sum(axis=0), [(~outcome).sum(), outcome.sum()])
    np.testing.assert_allclose(coded.counts, np.round(coded.counts), atol=1e-6)
    np.testing.assert_allclose(coded.possible, coded.counts, atol=1e-6)
    exact = without_noise(from_batch(probabilities, labels))
    np.testing.assert_allclose(coded.sums, exact.sums, atol=1e-6)


def test_noise_has_the_stated_deviation_in_every_table() -> None:
    generator = np.random.default_rng(3)
    tables = [
        table
        for _ in range(40)
        for table in released([NOTHING, NOTHING], generator, 2.0, 3, tables_of_a_record=2)
    ]
    expected = 2 * 3 * math.sqrt(2)
    noise = np.stack([table.sums for table in tables])
    assert all(table.noise_std == pytest.approx(expected) for table in tables)
    assert abs(noise.mean()) < 4 * expected / math.sqrt(noise.size)
    assert abs(noise.std() / expected - 1) < 4 / math.sqrt(2 * noise.size)
    # No table has the noise of another.
    flat = noise.reshape(len(tables), -1)
    correlations = np.corrcoef(flat)[np.triu_indices(len(flat), 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(flat.shape[1])


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.inf, math.nan])
def test_release_without_noise_is_refused(noise_multiplier: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        released([NOTHING], np.random.default_rng(0), noise_multiplier)


def test_noise_on_sums_over_many_bins_is_a_fraction_of_that_on_plain_counts() -> None:
    generator = np.random.default_rng(4)
    tables = [
        NoisedCounts(table.sums, table.noise_std, 2)
        for _ in range(300)
        for table in released([NOTHING], generator)
    ]
    counts = np.stack([table.counts for table in tables])
    deviations = counts.std(axis=0)
    expected = np.sqrt(np.diag(UNIT_COVARIANCE))
    assert np.abs(deviations / expected[:, None] - 1).max() < 5 / math.sqrt(2 * 300)
    totals = counts.sum(axis=(1, 2)).std()
    assert totals == pytest.approx(tables[0].records_noise_std, rel=5 / math.sqrt(2 * 300))
    assert tables[0].records_noise_std < math.sqrt(2 * COUNT_BINS) / 3


def test_sites_counts_add_up_and_their_noise_in_variance() -> None:
    first = NoisedCounts(np.full((COUNT_BINS, 2), 2.0), 3.0, 2)
    both = first.plus(NoisedCounts(np.full((COUNT_BINS, 2), 5.0), 4.0, 2))
    assert both.noise_std == pytest.approx(5)
    assert (both.sums == 7).all()
