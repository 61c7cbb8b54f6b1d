"""What a site counts about its predictions: sums, so that sites add up to their pool."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import CELLS, COLUMNS, Floats, cell_index
from fl_dpbayes.calibration.check import MEASURES, check_labels, check_probabilities, check_sums

# Below it -log p_y is clipped: one confident error must not make every mean infinite.
PROBABILITY_FLOOR = 1e-12
TABLES = ("top_label", "class_wise", "uncertainty", "truth")


@dataclass(frozen=True, eq=False)
class CalibrationStatistics:
    """Sums over records of a test set, from which every error and score of this package follows.

    The columns of a table are the sums of 1, p, y, p^2 and p y over the records of a cell (`bins`)
    of p. Scores and uncertainties are sums over records, in nats but for the Brier score.

    Attributes:
        classes: C >= 2.
        top_label: Shape (CELLS, 5); p is the largest class probability (ties: the first class), y
            says whether that class is right.
        class_wise: Shape (C, CELLS, 5); for each class c, p is the probability of c, y says whether
            c is the label.
        uncertainty: Shape (2, CELLS), counts of records by their epistemic (row 0) and total (row
            1) uncertainty, in cells of its share of ln C.
        truth: Shape (CELLS,), over the records of a cell of `top_label` whose label law is known
            (they are made up): the sum of the true probability of the predicted class.
        count: Records.
        correct: Records whose top label is right.
        nll: Sum of -log max(p_label, PROBABILITY_FLOOR).
        nll_squared: Sum of its squares.
        nll_clipped: Records with p_label below the floor.
        brier: Sum of sum_c (p_c - 1{c = label})^2, in [0, 2] a record.
        brier_squared: Sum of its squares.
        epistemic: Sum of the mutual information of label and parameters.
        aleatoric: Sum of the expected entropy.
        total: Sum of the averaged prediction's entropy, aleatoric + epistemic.
        truth_count: Records that `truth` sums over.
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
    return {
        "top_label": (CELLS, COLUMNS),
        "class_wise": (classes, CELLS, COLUMNS),
        "uncertainty": (len(MEASURES), CELLS),
        "truth": (CELLS,),
        "scalars": (len(SCALARS),),
    }


def empty(classes: int) -> CalibrationStatistics:
    """Return the statistics of no record, the neutral element of `merge`."""
    zeros = {name: np.zeros(shape) for name, shape in array_shapes(classes).items()}
    return _unchecked(zeros, classes)


def from_batch(
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    *,
    truth: npt.ArrayLike | None = None,
    epistemic: npt.ArrayLike | None = None,
    aleatoric: npt.ArrayLike | None = None,
    total: npt.ArrayLike | None = None,
) -> CalibrationStatistics:
    """Count the predictions of a batch of records.

    Args:
        probabilities: Never logits, shape (N, C), rows that sum to 1 within 1e-6; N may be 0.
        labels: Shape (N,), 0 .. C - 1.
        truth: Probabilities that made-up labels were drawn from, shape (N, C); None where nobody
            knows them.
        epistemic: Mutual information of label and parameters in nats, shape (N,).
        aleatoric: Expected entropy in nats, shape (N,).
        total: Entropy of the averaged prediction in nats, shape (N,). Without all of the three, the
            prediction counts as that of one sample.

    Returns:
        The statistics.

    Raises:
        ValueError: If a probability is NaN or outside [0, 1], rows do not sum to 1, or shapes do
            not fit.
    """
    probability = check_probabilities(probabilities)
    count, classes = probability.shape
    label = check_labels(labels, count, classes)
    if epistemic is None or aleatoric is None or total is None:
        entropy = -(probability * np.log(np.where(probability > 0, probability, 1.0))).sum(axis=1)
        epistemic = np.zeros_like(entropy)
        aleatoric = entropy
        total = entropy
    # Rounding may leave a mutual information a little below 0.
    mutual_information = np.maximum(epistemic, 0.0, dtype=np.float64)
    expected_entropy = np.maximum(aleatoric, 0.0, dtype=np.float64)
    total_entropy = np.maximum(total, 0.0, dtype=np.float64)
    label_law = None if truth is None else check_probabilities(truth)
    if label_law is not None and label_law.shape != probability.shape:
        raise ValueError(
            f"truth has shape {label_law.shape}: expected {probability.shape}, "
            "that of the probabilities"
        )

    rows = np.arange(count)
    one_hot = np.eye(classes)[label]
    top = probability.argmax(axis=1) if count else np.zeros(0, np.int64)
    right = (top == label).astype(np.float64)
    cell = cell_index(probability, rest_of(probability))
    measured = [mutual_information, total_entropy]
    # Rounding may leave a share a little above 1.
    shares = np.stack([np.clip(entropies / np.log(classes), 0, 1) for entropies in measured])
    true_probability = np.zeros(count) if label_law is None else label_law[rows, top]
    of_label = probability[rows, label]
    nll = -np.log(np.maximum(of_label, PROBABILITY_FLOOR))
    brier = ((probability - one_hot) ** 2).sum(axis=1)
    top_label = _tabulate(
        cell=cell[rows, top][:, None],
        confidence=probability[rows, top][:, None],
        outcome=right[:, None],
    )
    return CalibrationStatistics(
        classes=classes,
        top_label=top_label[0],
        class_wise=_tabulate(cell=cell, confidence=probability, outcome=one_hot),
        uncertainty=np.stack([_histogram(cells) for cells in cell_index(shares, 1 - shares)]),
        truth=_histogram(cell[rows, top], true_probability),
        count=float(count),
        correct=float(right.sum()),
        nll=float(nll.sum()),
        nll_squared=float((nll**2).sum()),
        nll_clipped=float((of_label < PROBABILITY_FLOOR).sum()),
        brier=float(brier.sum()),
        brier_squared=float((brier**2).sum()),
        epistemic=float(mutual_information.sum()),
        aleatoric=float(expected_entropy.sum()),
        total=float(total_entropy.sum()),
        truth_count=0.0 if label_law is None else float(count),
    )


def rest_of(probability: Floats) -> Floats:
    """Return 1 - p, shape (N, C).

    For the largest of a row it is the sum of the others, as 1 - p has no digits left there.
    """
    rest = 1 - probability
    if len(rest):
        rows = np.arange(len(rest))
        top = probability.argmax(axis=1)
        without_top = probability.copy()
        without_top[rows, top] = 0
        rest[rows, top] = without_top.sum(axis=1)
    return rest


def merge(first: CalibrationStatistics, second: CalibrationStatistics) -> CalibrationStatistics:
    """Add the statistics of two disjoint sets of records."""
    sums = {name: getattr(first, name) + getattr(second, name) for name in (*TABLES, *SCALARS)}
    return CalibrationStatistics(first.classes, **sums)


def to_arrays(statistics: CalibrationStatistics) -> dict[str, Floats]:
    """Write statistics as named float64 arrays.

    They are the tables of the class, and `scalars` in the order of SCALARS.
    """
    arrays: dict[str, Floats] = {name: getattr(statistics, name) for name in TABLES}
    arrays["scalars"] = np.array([getattr(statistics, name) for name in SCALARS], np.float64)
    return arrays


def from_arrays(arrays: Mapping[str, npt.NDArray], classes: int) -> CalibrationStatistics:
    """Read statistics from the arrays of a message.

    Args:
        arrays: As of `to_arrays`, their form checked by `protocol.arrays`.
        classes: C >= 2.

    Returns:
        The statistics.

    Raises:
        ValueError: If the sums contradict each other, so that no set of records could have
            produced them.
    """
    statistics = _unchecked(arrays, classes)
    scalars = {name: getattr(statistics, name) for name in SCALARS}
    check_sums(arrays=arrays, scalars=scalars, largest_nll=-np.log(PROBABILITY_FLOOR))
    return statistics


def _unchecked(arrays: Mapping[str, npt.NDArray], classes: int) -> CalibrationStatistics:
    sums: dict[str, Any] = {name: arrays[name] for name in TABLES}
    sums |= zip(SCALARS, map(float, arrays["scalars"]), strict=True)
    return CalibrationStatistics(classes, **sums)


class SparseStatistics(NamedTuple):
    """Statistics without the zeros of their tables, nearly all of a small test set's cells.

    Attributes:
        classes: C.
        places: Where the other numbers stand in the arrays of `to_arrays`, joined, shape (S,).
        values: These numbers, shape (S,).
    """

    classes: int
    places: npt.NDArray[np.int32]
    values: Floats

    def dense(self) -> CalibrationStatistics:
        """Return the statistics with their zeros."""
        shapes = array_shapes(self.classes)
        ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
        joined = np.zeros(ends[-1])
        joined[self.places] = self.values
        parts = np.split(joined, ends[:-1])
        arrays = {
            name: part.reshape(shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }
        return _unchecked(arrays, self.classes)


def sparse(statistics: CalibrationStatistics) -> SparseStatistics:
    """Leave out the zeros of statistics.

    Of 40 records a hundredth of the memory stays, of a million half as much again.
    """
    joined = np.concatenate([array.ravel() for array in to_arrays(statistics).values()])
    places = np.flatnonzero(joined).astype(np.int32)
    return SparseStatistics(statistics.classes, places, joined[places])


def _tabulate(cell: npt.NDArray[np.int64], confidence: Floats, outcome: Floats) -> Floats:
    """Sum (1, p, y, p^2, p y) per column and cell: arrays of (N, K) -> (K, CELLS, 5)."""
    columns = confidence.shape[1]
    place = (cell + CELLS * np.arange(columns)).ravel()
    terms = (np.ones_like(confidence), confidence, outcome, confidence**2, confidence * outcome)
    sums = [np.bincount(place, term.ravel(), columns * CELLS) for term in terms]
    return np.stack(sums, axis=-1).astype(np.float64).reshape(columns, CELLS, COLUMNS)


def _histogram(cell: npt.NDArray[np.int64], weights: Floats | None = None) -> Floats:
    """Sum the weights, or count, per cell: (N,) cells -> (CELLS,)."""
    return np.bincount(cell, weights, CELLS).astype(np.float64)
