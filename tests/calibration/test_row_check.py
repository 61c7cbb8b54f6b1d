"""NumPy's results for pieces of records are checked: where rows depend, each is computed alone."""

import logging
from functools import partial

import numpy as np
import pytest

from fl_dpbayes.calibration import row_check
from fl_dpbayes.calibration.bins import in_fixed_pieces
from fl_dpbayes.calibration.prior_shift import with_prevalence
from fl_dpbayes.calibration.recalibration.descent import log_probabilities, record_gradients
from fl_dpbayes.calibration.row_check import rows_stand_alone

PROBABILITIES = np.random.default_rng(1).dirichlet(np.ones(3), 5)
LABELS = np.array([0, 1, 2, 1, 0])


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_check, "_checked", {})


def by_place(rows: np.ndarray) -> np.ndarray:
    """A product whose rows have other bits at every fourth place, as kernels with a tail."""
    return rows.sum(axis=1) * np.where(np.arange(len(rows)) % 4 == 3, 1 + 2**-52, 1.0)


def beside_large(rows: np.ndarray) -> np.ndarray:
    return rows.sum(axis=1) * (1 + 2**-52 * (np.abs(rows).max() > 1e20))


def beside_nan(rows: np.ndarray) -> np.ndarray:
    return rows.sum(axis=1) + 0 * rows.sum()


@pytest.mark.parametrize("function", [by_place, beside_large, beside_nan])
def test_rows_that_depend_are_computed_one_by_one(function, caplog) -> None:
    assert not rows_stand_alone(function, (PROBABILITIES,), 64)
    with caplog.at_level(logging.WARNING, logger="fl_dpbayes.site"):
        found = in_fixed_pieces(function, PROBABILITIES)
    assert "one by one" in caplog.text
    assert np.array_equal(found, [function(row[None])[0] for row in PROBABILITIES])


@pytest.mark.parametrize("width", [5, 9, 13, 14, 25, 30, 50, 126])
def test_a_product_gives_a_record_the_same_bits_beside_any_others(width) -> None:
    generator = np.random.default_rng(width)
    rows = generator.standard_normal((1500, width))
    slopes = generator.standard_normal(width)
    whole = in_fixed_pieces(lambda part: part @ slopes, rows)
    order = generator.permutation(1500)[:700]
    assert np.array_equal(in_fixed_pieces(lambda part: part @ slopes, rows[order]), whole[order])


def test_what_is_computed_of_records_is_checked_once_and_for_each_shape(monkeypatch) -> None:
    checked = []
    original = row_check.rows_stand_alone
    monkeypatch.setattr(
        row_check,
        "rows_stand_alone",
        lambda **parts: checked.append(parts["rows"]) or original(**parts),
    )
    for parameter in (0.9, 1.1):
        gradients = partial(record_gradients, "temperature", np.array([parameter]))
        assert in_fixed_pieces(gradients, log_probabilities(PROBABILITIES), LABELS).shape[0] == 5
    assert checked == [1024]
    corrected = partial(with_prevalence, trained=(0.2, 0.3, 0.5), target=(0.5, 0.3, 0.2))
    assert in_fixed_pieces(corrected, PROBABILITIES).shape == (5, 3)
    assert in_fixed_pieces(corrected, PROBABILITIES[:0]).shape == (0, 3)
    assert checked == [1024, 1024]
    # None of them was found to depend.
    assert all(row_check._checked.values())
