"""What may enter the statistics.

It lets in valid predictions from our own code, and possible sums from another machine.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

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

SUM_TOLERANCE = 1e-6
ROUNDING = 1e-9
MAX_RECORDS = 1e12
MEASURES = ("epistemic", "total")  # the rows of the histograms of uncertainty


def check_probabilities(probabilities: npt.ArrayLike) -> Floats:
    """Return probabilities of records in float64, rounding above 1 cut.

    Args:
        probabilities: Shape (N, C >= 2), rows that sum to 1 within 1e-6.

    Returns:
        Shape (N, C), at most 1.

    Raises:
        ValueError: If they are of another shape, not in [0, 1], or do not sum to 1.
    """
    probability = np.asarray(probabilities, np.float64)
    if probability.ndim != 2 or probability.shape[1] < 2:
        raise ValueError(
            f"probabilities have shape {probability.shape}: expected (records, 2 or more classes)"
        )
    if np.isnan(probability).any():
        raise ValueError("a probability is NaN: the predictor has diverged")
    if probability.size and (probability.min() < 0 or probability.max() > 1 + ROUNDING):
        raise ValueError(
            f"probabilities span [{probability.min():.6g}, {probability.max():.6g}]: "
            "they must lie in [0, 1]; apply softmax to logits first"
        )
    sums = probability.sum(axis=1)
    off = np.abs(sums - 1)
    if (off > SUM_TOLERANCE).any():
        worst = sums[off.argmax()]
        raise ValueError(
            f"a row of probabilities sums to {worst:.9g}: it must be 1 within {SUM_TOLERANCE}"
        )
    return np.minimum(probability, 1.0)


def check_labels(labels: npt.ArrayLike, count: int, classes: int) -> npt.NDArray[np.int64]:
    """Return labels of records as int64.

    Args:
        labels: Integers or whole floats 0 .. C - 1.
        count: N.
        classes: C.

    Returns:
        Shape (N,).

    Raises:
        ValueError: If they are of another shape, or one is not a class.
    """
    label = np.asarray(labels)
    if label.shape != (count,):
        raise ValueError(
            f"labels have shape {label.shape}: expected ({count},), one per row of probabilities"
        )
    if not np.isin(label, np.arange(classes)).all():
        raise ValueError(f"a label is not a class: labels must be whole numbers 0 .. {classes - 1}")
    return label.astype(np.int64)


def check_sums(
    arrays: Mapping[str, Floats], scalars: Mapping[str, float], largest_nll: float
) -> None:
    """Check that finite sums, as of `CalibrationStatistics`, can come from records.

    Args:
        arrays: Its tables.
        scalars: Its single sums.
        largest_nll: The largest -log p_label of a record, nats.

    Raises:
        ValueError: At the first sign that they did not.
    """
    classes = len(arrays["class_wise"])
    count = scalars["count"]
    slack = SUM_TOLERANCE * (1 + count)
    for name in ("count", "correct", "nll_clipped", "truth_count"):
        _require(scalars[name] == np.floor(scalars[name]), f"{name} is not a whole number")
    _require(0 <= count <= MAX_RECORDS, f"count is outside [0, {MAX_RECORDS:.0e}]")
    _check_table(arrays["top_label"], "top_label")
    _check_table(arrays["class_wise"], "class_wise")
    _check_totals(
        top_label=arrays["top_label"],
        class_wise=arrays["class_wise"],
        scalars=scalars,
        slack=slack,
    )
    _check_scores(scalars=scalars, largest_nll=largest_nll, slack=slack)
    _check_nll(
        labels=arrays["class_wise"][..., OUTCOME].sum(axis=0),
        scalars=scalars,
        largest_nll=largest_nll,
        slack=slack,
    )
    _check_uncertainty(
        histograms=arrays["uncertainty"], scalars=scalars, largest=np.log(classes), slack=slack
    )
    _check_truth(
        truth=arrays["truth"],
        records=arrays["top_label"][:, COUNT],
        truth_count=scalars["truth_count"],
        count=count,
    )


def _check_totals(
    top_label: Floats, class_wise: Floats, scalars: Mapping[str, float], slack: float
) -> None:
    """Check that the tables add up to the single sums."""
    classes = len(class_wise)
    count = scalars["count"]
    _require(top_label[:, COUNT].sum() == count, "the counts of top_label do not add up to count")
    _require(
        top_label[:, OUTCOME].sum() == scalars["correct"],
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
    impossible = top_label[1 / classes + ROUNDING >= 2 * HIGH - LOW, COUNT]
    _require(impossible.sum() == 0, f"top_label has confidences below 1/{classes}")
    brier = class_wise[..., SQUARE] - 2 * class_wise[..., PRODUCT] + class_wise[..., OUTCOME]
    _require(abs(brier.sum() - scalars["brier"]) <= slack, "brier does not follow from class_wise")


def _check_scores(scalars: Mapping[str, float], largest_nll: float, slack: float) -> None:
    """Check the sums of the log and Brier scores against the sums of their squares."""
    count = scalars["count"]
    _require(scalars["nll_clipped"] >= 0, "nll_clipped is negative")
    _require(
        scalars["nll_clipped"] * largest_nll <= scalars["nll"] + slack,
        "nll is too small for nll_clipped",
    )
    for name, largest in (("nll", largest_nll), ("brier", 2.0)):
        total = scalars[name]
        squares = scalars[f"{name}_squared"]
        _require(
            -slack <= total <= count * largest + slack,
            f"{name} is outside what {count:.0f} records can give",
        )
        _require(
            total**2 <= count * squares + slack * (1 + abs(total)),
            f"{name}_squared is too small for {name}",
        )
        _require(squares <= largest * (total + slack), f"{name}_squared is too large for {name}")


def _check_nll(
    labels: Floats, scalars: Mapping[str, float], largest_nll: float, slack: float
) -> None:
    """Check sums of -log p_label and of its square against `labels`, records by cell of p_label."""
    floor = np.exp(-largest_nll)
    least = -np.log(np.maximum(CELL_HIGH, floor))
    most = -np.log(np.maximum(CELL_LOW, floor))
    for name, power in (("nll", 1), ("nll_squared", 2)):
        lowest = labels @ least**power
        highest = labels @ most**power
        follows = lowest - slack <= scalars[name] <= highest * (1 + ROUNDING) + slack
        _require(follows, f"{name} does not follow from class_wise")


def _check_uncertainty(
    histograms: Floats, scalars: Mapping[str, float], largest: float, slack: float
) -> None:
    """Check sums of entropies, each at most `largest`, and their histograms."""
    count = scalars["count"]
    for name in ("epistemic", "aleatoric", "total"):
        _require(
            -slack <= scalars[name] <= count * largest + 10 * slack,
            f"{name} is outside its range",
        )
    gap = scalars["total"] - scalars["aleatoric"] - scalars["epistemic"]
    _require(abs(gap) <= 20 * slack, "total differs from aleatoric + epistemic")
    for histogram, name in zip(histograms, MEASURES, strict=True):
        are_counts = (histogram == np.floor(histogram)).all() and (histogram >= 0).all()
        _require(are_counts, "a count of uncertainty is not a whole number >= 0")
        _require(
            histogram.sum() == count,
            f"the records counted by {name} uncertainty do not add up to count",
        )
        least = largest * (histogram @ LOW)
        most = largest * (histogram @ HIGH)
        follows = least - 10 * slack <= scalars[name] <= most + 10 * slack
        _require(follows, f"{name} does not follow from its histogram")


def _check_truth(truth: Floats, records: Floats, truth_count: float, count: float) -> None:
    """Check sums of true probabilities against the records of each cell."""
    _require(0 <= truth_count <= count, "truth_count is outside [0, count]")
    inside = (truth >= 0) & (truth <= records * (1 + SUM_TOLERANCE))
    _require(inside.all(), "a sum of true probabilities is outside [0, its count]")
    most = truth_count * (1 + SUM_TOLERANCE)
    _require(truth.sum() <= most, "true probabilities add up to more than truth_count")


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
