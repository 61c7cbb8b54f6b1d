"""What a site counts about its predictions: sums over records, so that sites add up to their pool."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import CELLS, COLUMNS, Floats, cell_index
from fl_dpbayes.calibration.check import MEASURES, check_labels, check_probabilities, check_sums

PROBABILITY_FLOOR = (
    1e-12  # below it -log p_y is clipped: one confident error must not make every mean infinite
)
TABLES = ("top_label", "class_wise", "uncertainty", "truth")


@dataclass(frozen=True, eq=False)
class CalibrationStatistics:
    """Sums over records of a test set, from which every error and score of this package follows.

    The columns of a table are the sums of 1, p, y, p^2 and p y over the records of a cell (`bins`)
    of p. In `top_label` p is the largest class probability (ties: the first class) and y says
    whether that class is right; in `class_wise`, for each class c, p is the probability of c and y
    says whether c is the label.

    Of C >= 2 `classes`: `top_label` (CELLS, 5); `class_wise` (C, CELLS, 5); `uncertainty` (2,
    CELLS), counts of records by their epistemic (row 0) and total (row 1) uncertainty in cells of
    its share of ln C; `truth` (CELLS,), over the records of a cell of `top_label` whose label law
    is known (they are made up), the sum of the true probability of the class that was predicted.
    `count` of records; `correct`, those whose top label is right; `nll_clipped`, those with p_label
    below the floor; `truth_count`, those that `truth` sums over. Sums over records of -log
    max(p_label, PROBABILITY_FLOOR), `nll` in nats, of sum_c (p_c - 1{c = label})^2 in [0, 2],
    `brier`, and of the squares of both; of the mutual information of label and parameters,
    `epistemic`, the expected entropy, `aleatoric`, and the entropy of the averaged prediction,
    `total` = aleatoric + epistemic, in nats.
    """

    classes: int
    top_label: Floats
    class_wise: Floats
    uncertainty: Floats
    truth: Floats
    count: float
    correct: float
    nll: float
    nll_squared: float
    nll_clipped: float
    brier: float
    brier_squared: float
    epistemic: float
    aleatoric: float
    total: float
    truth_count: float


SCALARS = tuple(field.name for field in fields(CalibrationStatistics) if field.type is float)


def array_shapes(classes: int) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of the arrays of `to_arrays`."""
    shapes = (
        (CELLS, COLUMNS),
        (classes, CELLS, COLUMNS),
        (len(MEASURES), CELLS),
        (CELLS,),
        (len(SCALARS),),
    )
    return dict(zip((*TABLES, "scalars"), shapes, strict=True))


def empty(classes: int) -> CalibrationStatistics:
    """Return the statistics of no record, the neutral element of `merge`."""
    return _of({name: np.zeros(shape) for name, shape in array_shapes(classes).items()}, classes)


def from_batch(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    truth: npt.ArrayLike | None = None,
    **uncertainty: npt.ArrayLike,
) -> CalibrationStatistics:
    """Count the predictions of a batch of records.

    `probabilities`: never logits, (N, C), rows that sum to 1 within 1e-6; N may be 0. `labels`: 0
    .. C - 1. `truth`: the probabilities that made-up labels were drawn from, (N, C); None where
    nobody knows them. `uncertainty`: all of `epistemic`, `aleatoric` and `total` in nats; without
    them the prediction counts as that of one sample. Raises ValueError if a probability is NaN or
    outside [0, 1], rows do not sum to 1, or shapes do not fit.
    """
    probability = check_probabilities(probabilities)
    count, classes = probability.shape
    label = check_labels(labels, count, classes)
    if not uncertainty:
        entropy = -(probability * np.log(np.where(probability > 0, probability, 1.0))).sum(axis=1)
        uncertainty = {"epistemic": np.zeros_like(entropy), "aleatoric": entropy, "total": entropy}
    # Rounding may leave a mutual information a little below 0.
    parts = {
        name: np.maximum(values, 0.0, dtype=np.float64) for name, values in uncertainty.items()
    }
    law = None if truth is None else check_probabilities(truth)
    if law is not None and law.shape != probability.shape:
        raise ValueError(
            f"truth has shape {law.shape}: expected {probability.shape}, that of the probabilities"
        )

    one_hot = np.eye(classes)[label]
    top = probability.argmax(axis=1) if count else np.zeros(0, np.int64)
    rows = np.arange(count)
    right = (top == label).astype(np.float64)
    cell = cell_index(probability, rest_of(probability))
    shares = np.stack(
        [np.clip(parts[name] / np.log(classes), 0, 1) for name in MEASURES]
    )  # above 1 by rounding
    nll = -np.log(np.maximum(probability[rows, label], PROBABILITY_FLOOR))
    brier = ((probability - one_hot) ** 2).sum(axis=1)
    return CalibrationStatistics(
        classes=classes,
        top_label=_tabulate(
            cell[rows, top][:, None], probability[rows, top][:, None], right[:, None]
        )[0],
        class_wise=_tabulate(cell, probability, one_hot),
        uncertainty=np.stack([_histogram(cells) for cells in cell_index(shares, 1 - shares)]),
        truth=_histogram(cell[rows, top], np.zeros(count) if law is None else law[rows, top]),
        count=float(count),
        correct=float(right.sum()),
        nll=float(nll.sum()),
        nll_squared=float((nll**2).sum()),
        nll_clipped=float((probability[rows, label] < PROBABILITY_FLOOR).sum()),
        brier=float(brier.sum()),
        brier_squared=float((brier**2).sum()),
        truth_count=0.0 if law is None else float(count),
        **{name: float(values.sum()) for name, values in parts.items()},
    )


def rest_of(probability: Floats) -> Floats:
    """Return 1 - p, shape (N, C).

    For the largest of a row the sum of the others, as 1 - p has no digits left there.
    """
    rest = 1 - probability
    if len(rest):
        rows, top = np.arange(len(rest)), probability.argmax(axis=1)
        others = probability.copy()
        others[rows, top] = 0
        rest[rows, top] = others.sum(axis=1)
    return rest


def merge(first: CalibrationStatistics, second: CalibrationStatistics) -> CalibrationStatistics:
    """Add the statistics of two disjoint sets of records."""
    sums = {name: getattr(first, name) + getattr(second, name) for name in (*TABLES, *SCALARS)}
    return CalibrationStatistics(first.classes, **sums)


def to_arrays(statistics: CalibrationStatistics) -> dict[str, Floats]:
    """Write statistics as named float64 arrays: those of the class, and `scalars` in the order of SCALARS."""
    scalars = np.array([getattr(statistics, name) for name in SCALARS], np.float64)
    return {**{name: getattr(statistics, name) for name in TABLES}, "scalars": scalars}


def from_arrays(arrays: Mapping[str, npt.NDArray], classes: int) -> CalibrationStatistics:
    """Read statistics from `arrays` of a message whose form `protocol.arrays` has checked.

    Raises ValueError if the sums contradict each other, so that no set of records could have
    produced them.
    """
    statistics = _of(arrays, classes)
    check_sums(
        arrays, {name: getattr(statistics, name) for name in SCALARS}, -np.log(PROBABILITY_FLOOR)
    )
    return statistics


def _of(arrays: Mapping[str, npt.NDArray], classes: int) -> CalibrationStatistics:
    sums: dict[str, Any] = dict(zip(SCALARS, map(float, arrays["scalars"]), strict=True))
    return CalibrationStatistics(classes, **sums | {name: arrays[name] for name in TABLES})


class SparseStatistics(NamedTuple):
    """Statistics without the zeros of their tables, which are nearly all of a small test set's cells."""

    classes: int
    places: npt.NDArray[np.int32]
    values: Floats

    def dense(self) -> CalibrationStatistics:
        """Return the statistics."""
        shapes = array_shapes(self.classes)
        ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
        whole = np.zeros(ends[-1])
        whole[self.places] = self.values
        parts = zip(shapes.items(), np.split(whole, ends[:-1]), strict=True)
        return _of({name: part.reshape(shape) for (name, shape), part in parts}, self.classes)


def sparse(statistics: CalibrationStatistics) -> SparseStatistics:
    """Leave out the zeros: of 40 records a hundredth of the memory stays, of a million half as much again."""
    whole = np.concatenate([array.ravel() for array in to_arrays(statistics).values()])
    places = np.flatnonzero(whole).astype(np.int32)
    return SparseStatistics(statistics.classes, places, whole[places])


def _tabulate(cell: npt.NDArray[np.int64], confidence: Floats, outcome: Floats) -> Floats:
    """Sum (1, p, y, p^2, p y) per column and cell: (N, K) cells, confidences and outcomes -> (K, CELLS, 5)."""
    columns = confidence.shape[1]
    place = (cell + CELLS * np.arange(columns)).ravel()
    terms = (np.ones_like(confidence), confidence, outcome, confidence**2, confidence * outcome)
    sums = [np.bincount(place, term.ravel(), columns * CELLS) for term in terms]
    return np.stack(sums, axis=-1).astype(np.float64).reshape(columns, CELLS, COLUMNS)


def _histogram(cell: npt.NDArray[np.int64], weights: Floats | None = None) -> Floats:
    """Sum the weights, or count, per cell: (N,) cells -> (CELLS,)."""
    return np.bincount(cell, weights, CELLS).astype(np.float64)
