import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fl_dpbayes.calibration.bins import coarsen
from fl_dpbayes.calibration.release import (
    SENT_COLUMNS,
    bounded_shares,
    bounded_sum,
    noised_table,
    sensitivity,
    top_label_counts,
)
from fl_dpbayes.calibration.statistics import from_batch


def records(classes, steps):
    grid = [row for row in itertools.product(range(steps + 1), repeat=classes) if sum(row) == steps]
    return [(np.array(row) / steps, label) for row in grid for label in range(classes)]


def sent(probabilities, labels):
    return top_label_counts(probabilities, np.asarray(labels), 15).sums.ravel()


def no_record(bins, max_records_per_unit=1):
    return top_label_counts(np.zeros((0, 2)), np.zeros(0, np.int64), bins, max_records_per_unit)


def test_a_table_has_the_bins_of_the_statistics_that_leave_exactly():
    generator = np.random.default_rng(50)
    probabilities = generator.dirichlet(np.ones(3), 2_000)
    edges = np.arange(8, 16) / 15
    probabilities = np.vstack([probabilities, np.column_stack([edges, 1 - edges, 0 * edges])])
    labels = generator.integers(0, 3, len(probabilities))
    exact = coarsen(from_batch(probabilities, labels).top_label, 15)[:, :SENT_COLUMNS]
    np.testing.assert_allclose(top_label_counts(probabilities, labels, 15).sums, exact, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_sensitivity_is_the_largest_change_by_any_record(classes):
    others = np.full((7, classes), 1 / classes)
    labels = np.arange(7) % classes
    changes = [
        np.linalg.norm(
            sent(np.vstack([others, p]), np.append(labels, label)) - sent(others, labels)
        )
        for p, label in records(classes, 6)
    ]
    assert max(changes) == pytest.approx(sensitivity(), abs=1e-12)
    assert sensitivity() == pytest.approx(math.sqrt(3))


def test_sensitivity_of_capped_units_is_the_largest_change_by_any_unit():
    singles = [sent(p[None], [label]) for p, label in records(2, 6)]
    changes = [
        np.linalg.norm(first + second)
        for first, second in itertools.combinations_with_replacement(singles, 2)
    ]
    assert max(changes) == pytest.approx(sensitivity(2), abs=1e-12)
    with pytest.raises(ValueError, match="1 or more"):
        sensitivity(0)


def test_noise_has_the_stated_scale():
    generator = np.random.default_rng(51)
    tables = [noised_table(no_record(960, 3), 2.0, generator) for _ in range(20)]
    noise = np.concatenate([table.sums.ravel() for table in tables])
    expected = 2 * 3 * math.sqrt(3)
    assert tables[0].noise_std == pytest.approx(expected)
    assert abs(noise.mean()) < 4 * expected / math.sqrt(noise.size)
    assert abs(noise.std() / expected - 1) < 4 / math.sqrt(2 * noise.size)


@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.inf, math.nan])
def test_release_without_noise_is_refused(noise_multiplier):
    with pytest.raises(ValueError, match="positive"):
        noised_table(no_record(15), noise_multiplier, np.random.default_rng(0))


EXTREMES = st.one_of(
    st.floats(width=64),
    st.sampled_from(
        [0.0, 5e-324, -5e-324, 1e-160, 1e160, 1e307, -1e307, 1.7e308, math.inf, -math.inf, math.nan]
    ),
)
BOUNDS = st.sampled_from([1e-100, 1e-6, 0.7, 1.0, math.sqrt(3), 1e6, 1e100])


@given(
    arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=EXTREMES), BOUNDS
)
def test_a_sum_of_any_floats_is_finite_and_each_unit_moves_it_by_the_bound_at_most(shares, bound):
    whole = bounded_sum(shares, bound)
    assert np.isfinite(whole.sums).all()
    assert np.linalg.norm(whole.sums / bound) <= len(shares) * (1 + 1e-11)
    for unit in range(len(shares)):
        without = bounded_sum(np.delete(shares, unit, axis=0), bound)
        assert (
            np.linalg.norm((whole.sums - without.sums) / bound)
            <= whole.sensitivity / bound
            <= 1 + 1e-11
        )


@given(
    arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=EXTREMES), BOUNDS
)
def test_a_share_that_fits_stays_and_one_that_is_no_number_counts_as_nothing(shares, bound):
    kept = bounded_shares(shares, bound)
    for before, after in zip(shares, kept, strict=True):
        if not np.isfinite(before).all():
            assert (after == 0).all()
        elif np.abs(before).sum() <= bound:
            assert (after == before).all()
        else:
            assert np.linalg.norm(after / bound) <= 1 + 1e-11


@pytest.mark.parametrize("bound", [0.0, -1.0, 1e-101, 1e101, math.inf, math.nan])
def test_what_is_no_bound_is_refused(bound):
    with pytest.raises(ValueError, match="must lie between"):
        bounded_sum(np.zeros((1, 1)), bound)


@given(arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=EXTREMES))
def test_a_table_of_any_predictions_is_finite_and_each_record_moves_it_by_its_sensitivity_at_most(
    probabilities,
):
    labels = np.arange(len(probabilities)) % 3
    whole = top_label_counts(probabilities, labels, 15)
    assert np.isfinite(whole.sums).all()
    for record in range(len(labels)):
        kept = np.arange(len(labels)) != record
        move = whole.sums - top_label_counts(probabilities[kept], labels[kept], 15).sums
        assert np.linalg.norm(move) <= whole.sensitivity * (1 + 1e-12)
