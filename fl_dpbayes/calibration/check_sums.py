"""What may be merged: sums of class probabilities that records can have, from another machine."""

import numpy as np

from fl_dpbayes.calibration.bins import (
    CELL_HIGH,
    CELL_LOW,
    CONFIDENCE,
    COUNT,
    HIGH,
    LOW,
    OUTCOME,
    PRODUCT,
    SQUARE,
    Floats,
)
from fl_dpbayes.calibration.check_predictions import ROUNDING, SUM_TOLERANCE
from fl_dpbayes.calibration.statistics import MEASURES, PROBABILITY_FLOOR, CalibrationStatistics

MAX_RECORDS = 1e12
# Of a record, in nats and as a Brier score.
LARGEST_NLL = float(-np.log(PROBABILITY_FLOOR))
LARGEST_BRIER = 2.0


def check_sums(sums: CalibrationStatistics) -> None:
    """Check that finite sums can come from records.

    Raises:
        ValueError: At the first sign that they did not.
    """
    for name in ("count", "correct", "nll_clipped", "truth_count"):
        value = getattr(sums, name)
        _require(value == np.floor(value), f"{name} is not a whole number")
    _require(0 <= sums.count <= MAX_RECORDS, f"count is outside [0, {MAX_RECORDS:.0e}]")
    _check_table(sums.top_label, "top_label")
    _check_table(sums.class_wise, "class_wise")
    _check_totals(sums)
    _check_scores(sums)
    _check_nll(sums)
    _check_uncertainty(sums)
    _check_truth(sums)


def _slack(sums: CalibrationStatistics) -> float:
    return SUM_TOLERANCE * (1 + sums.count)


def _check_totals(sums: CalibrationStatistics) -> None:
    """Check that the tables add up to the single sums."""
    top_label = sums.top_label
    class_wise = sums.class_wise
    count = sums.count
    slack = _slack(sums)
    _require(top_label[:, COUNT].sum() == count, "the counts of top_label do not add up to count")
    _require(
        top_label[:, OUTCOME].sum() == sums.correct,
        "the outcomes of top_label do not add up to correct",
    )
    _require(
        (class_wise[..., COUNT].sum(axis=1) == count).all(),
        "the counts of class_wise do not add up to count",
    )
    _require(
        class_wise[..., OUTCOME].sum() == count, "the labels of class_wise do not add up to count"
    )
    _require(
        abs(class_wise[..., CONFIDENCE].sum() - count) <= slack,
        "probabilities do not add up to count",
    )
    # One bin of slack: rows sum to 1 +- 1e-6.
    impossible = top_label[1 / sums.classes + ROUNDING >= 2 * HIGH - LOW, COUNT]
    _require(impossible.sum() == 0, f"top_label has confidences below 1/{sums.classes}")
    brier = class_wise[..., SQUARE] - 2 * class_wise[..., PRODUCT] + class_wise[..., OUTCOME]
    _require(abs(brier.sum() - sums.brier) <= slack, "brier does not follow from class_wise")


def _check_scores(sums: CalibrationStatistics) -> None:
    """Check the sums of the log and Brier scores against the sums of their squares."""
    count = sums.count
    slack = _slack(sums)
    _require(sums.nll_clipped >= 0, "nll_clipped is negative")
    _require(sums.nll_clipped * LARGEST_NLL <= sums.nll + slack, "nll is too small for nll_clipped")
    scores = (
        ("nll", sums.nll, sums.nll_squared, LARGEST_NLL),
        ("brier", sums.brier, sums.brier_squared, LARGEST_BRIER),
    )
    for name, total, squares, largest in scores:
        _require(
            -slack <= total <= count * largest + slack,
            f"{name} is outside what {count:.0f} records can give",
        )
        _require(
            total**2 <= count * squares + slack * (1 + abs(total)),
            f"{name}_squared is too small for {name}",
        )
        _require(squares <= largest * (total + slack), f"{name}_squared is too large for {name}")


def _check_nll(sums: CalibrationStatistics) -> None:
    """Check sums of -log p_label and of its square against the labels by cell of p_label."""
    labels = sums.class_wise[..., OUTCOME].sum(axis=0)
    slack = _slack(sums)
    floor = np.exp(-LARGEST_NLL)
    least = -np.log(np.maximum(CELL_HIGH, floor))
    most = -np.log(np.maximum(CELL_LOW, floor))
    for name, total, power in (("nll", sums.nll, 1), ("nll_squared", sums.nll_squared, 2)):
        lowest = labels @ least**power
        highest = labels @ most**power
        follows = lowest - slack <= total <= highest * (1 + ROUNDING) + slack
        _require(follows, f"{name} does not follow from class_wise")


def _check_uncertainty(sums: CalibrationStatistics) -> None:
    """Check sums of entropies, each at most that of equal probabilities, and their histograms."""
    count = sums.count
    slack = _slack(sums)
    largest = np.log(sums.classes)
    for name in ("epistemic", "aleatoric", "total"):
        _require(
            -slack <= getattr(sums, name) <= count * largest + 10 * slack,
            f"{name} is outside its range",
        )
    gap = sums.total - sums.aleatoric - sums.epistemic
    _require(abs(gap) <= 20 * slack, "total differs from aleatoric + epistemic")
    for histogram, name in zip(sums.uncertainty, MEASURES, strict=True):
        are_counts = (histogram == np.floor(histogram)).all() and (histogram >= 0).all()
        _require(are_counts, "a count of uncertainty is not a whole number >= 0")
        _require(
            histogram.sum() == count,
            f"the records counted by {name} uncertainty do not add up to count",
        )
        least = largest * (histogram @ LOW)
        most = largest * (histogram @ HIGH)
        follows = least - 10 * slack <= getattr(sums, name) <= most + 10 * slack
        _require(follows, f"{name} does not follow from its histogram")


def _check_truth(sums: CalibrationStatistics) -> None:
    """Check sums of true probabilities against the records of each cell."""
    _require(0 <= sums.truth_count <= sums.count, "truth_count is outside [0, count]")
    records = sums.top_label[:, COUNT]
    inside = (sums.truth >= 0) & (sums.truth <= records * (1 + SUM_TOLERANCE))
    _require(inside.all(), "a sum of true probabilities is outside [0, its count]")
    most = sums.truth_count * (1 + SUM_TOLERANCE)
    _require(sums.truth.sum() <= most, "true probabilities add up to more than truth_count")


def _check_table(table: Floats, name: str) -> None:
    """Check a table of sums per cell, each by itself."""
    count = table[..., COUNT]
    confidence = table[..., CONFIDENCE]
    outcome = table[..., OUTCOME]
    slack = ROUNDING * (1 + np.abs(count))
    _require(
        (count == np.floor(count)).all() and (count >= 0).all(),
        f"a count of {name} is not a whole number >= 0",
    )
    _require((outcome == np.floor(outcome)).all(), f"an outcome of {name} is not a whole number")
    _require(
        ((outcome >= 0) & (outcome <= count)).all(),
        f"an outcome of {name} is outside [0, its count]",
    )
    # Each column sums the factor times p.
    for column, factor in ((CONFIDENCE, count), (SQUARE, confidence), (PRODUCT, outcome)):
        sums = table[..., column]
        inside = (sums >= LOW * factor - slack) & (sums <= HIGH * factor + slack)
        _require(inside.all(), f"column {column} of {name} lies outside its bins")
    spread = count * table[..., SQUARE] - confidence**2
    _require(
        (spread >= -slack * (1 + count)).all(),
        f"squares of {name} are too small for its confidences",
    )


def _require(holds: bool | np.bool_, complaint: str) -> None:
    if not holds:
        raise ValueError(f"cannot come from records: {complaint}")
