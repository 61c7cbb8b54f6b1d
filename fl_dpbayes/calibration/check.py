"""What may enter the statistics: valid predictions from our own code, possible sums from another machine."""

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
    """Return probabilities (N, C >= 2), rows that sum to 1 within 1e-6, rounding above 1 cut, or raise ValueError."""
    probability = np.asarray(probabilities, np.float64)
    if probability.ndim != 2 or probability.shape[1] < 2:
        raise ValueError(
            f"probabilities have shape {probability.shape}: expected (records, 2 or more classes)"
        )
    if np.isnan(probability).any():
        raise ValueError("a probability is NaN: the predictor has diverged")
    if probability.size and (probability.min() < 0 or probability.max() > 1 + ROUNDING):
        found = f"probabilities span [{probability.min():.6g}, {probability.max():.6g}]"
        raise ValueError(f"{found}: they must lie in [0, 1]; apply softmax to logits first")
    sums = probability.sum(axis=1)
    if (np.abs(sums - 1) > SUM_TOLERANCE).any():
        worst = sums[np.abs(sums - 1).argmax()]
        raise ValueError(
            f"a row of probabilities sums to {worst:.9g}: it must be 1 within {SUM_TOLERANCE}"
        )
    return np.minimum(probability, 1.0)


def check_labels(labels: npt.ArrayLike, count: int, classes: int) -> npt.NDArray[np.int64]:
    """Return labels (N,), integers or whole floats 0 .. C - 1, as int64, or raise ValueError."""
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
    """Raise a ValueError at the first sign that finite sums, as of `CalibrationStatistics`, did not come from records.

    `largest_nll`: the largest -log p_label of a record, nats.
    """
    top_label, class_wise, truth = arrays["top_label"], arrays["class_wise"], arrays["truth"]
    count, classes = scalars["count"], class_wise.shape[0]
    slack = SUM_TOLERANCE * (1 + count)
    for name in ("count", "correct", "nll_clipped", "truth_count"):
        _require(scalars[name] == np.floor(scalars[name]), f"{name} is not a whole number")
    _require(0 <= count <= MAX_RECORDS, f"count is outside [0, {MAX_RECORDS:.0e}]")
    _check_table(top_label, "top_label")
    _check_table(class_wise, "class_wise")
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
    _require(scalars["nll_clipped"] >= 0, "nll_clipped is negative")
    _require(
        scalars["nll_clipped"] * largest_nll <= scalars["nll"] + slack,
        "nll is too small for nll_clipped",
    )
    for name, largest in (("nll", largest_nll), ("brier", 2.0)):
        square, total = scalars[f"{name}_squared"], scalars[name]
        _require(
            -slack <= total <= count * largest + slack,
            f"{name} is outside what {count:.0f} records can give",
        )
        _require(
            total**2 <= count * square + slack * (1 + abs(total)),
            f"{name}_squared is too small for {name}",
        )
        _require(square <= largest * (total + slack), f"{name}_squared is too large for {name}")
    _check_nll(class_wise[..., OUTCOME].sum(axis=0), scalars, largest_nll, slack)
    for name in ("epistemic", "aleatoric", "total"):
        _require(
            -slack <= scalars[name] <= count * np.log(classes) + 10 * slack,
            f"{name} is outside its range",
        )
    gap = scalars["total"] - scalars["aleatoric"] - scalars["epistemic"]
    _require(abs(gap) <= 20 * slack, "total differs from aleatoric + epistemic")
    for histogram, name in zip(arrays["uncertainty"], MEASURES, strict=True):
        whole = (histogram == np.floor(histogram)).all() and (histogram >= 0).all()
        _require(whole, "a count of uncertainty is not a whole number >= 0")
        _require(
            histogram.sum() == count,
            f"the records counted by {name} uncertainty do not add up to count",
        )
        least, most = (np.log(classes) * (histogram @ edge) for edge in (LOW, HIGH))
        follows = least - 10 * slack <= scalars[name] <= most + 10 * slack
        _require(follows, f"{name} does not follow from its histogram")
    _require(0 <= scalars["truth_count"] <= count, "truth_count is outside [0, count]")
    inside = (truth >= 0) & (truth <= top_label[:, COUNT] * (1 + SUM_TOLERANCE))
    _require(inside.all(), "a sum of true probabilities is outside [0, its count]")
    most = scalars["truth_count"] * (1 + SUM_TOLERANCE)
    _require(truth.sum() <= most, "true probabilities add up to more than truth_count")


def _check_nll(
    labels: Floats, scalars: Mapping[str, float], largest_nll: float, slack: float
) -> None:
    """Check sums of -log p_label and of its square against `labels`, the records by the cell of p_label."""
    floor = np.exp(-largest_nll)
    least, most = (-np.log(np.maximum(ends, floor)) for ends in (CELL_HIGH, CELL_LOW))
    for name, power in (("nll", 1), ("nll_squared", 2)):
        lowest = labels @ least**power
        highest = labels @ most**power
        follows = lowest - slack <= scalars[name] <= highest * (1 + ROUNDING) + slack
        _require(follows, f"{name} does not follow from class_wise")


def _check_table(table: Floats, name: str) -> None:
    count, confidence, outcome = table[..., COUNT], table[..., CONFIDENCE], table[..., OUTCOME]
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
    for column, of in ((CONFIDENCE, count), (SQUARE, confidence), (PRODUCT, outcome)):
        inside = (table[..., column] >= LOW * of - slack) & (
            table[..., column] <= HIGH * of + slack
        )
        _require(inside.all(), f"column {column} of {name} lies outside its bins")
    spread = count * table[..., SQUARE] - confidence**2
    _require(
        (spread >= -slack * (1 + count)).all(),
        f"squares of {name} are too small for its confidences",
    )


def _require(holds: bool | np.bool_, complaint: str) -> None:
    if not holds:
        raise ValueError(f"cannot come from records: {complaint}")
