"""What a site counts about class probabilities."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import CELLS, COLUMNS, OUTCOME, Floats, cell_index
from fl_dpbayes.calibration.check_predictions import check_labels, check_probabilities
from fl_dpbayes.calibration.sums import Shapes, Sums, Total

# Below it -log p_y is clipped: one confident error must not make every mean infinite.
PROBABILITY_FLOOR = 1e-12
MEASURES = ("epistemic", "total")  # the rows of the histograms of uncertainty


@dataclass(frozen=True, eq=False)
class CalibrationStatistics(Sums):
    """Sums over records of a test set, from which every error and score of this package follows.

    The columns of a table are the sums of 1, p, y, p^2 and p y over the records of a cell (`bins`)
    of p. Scores and uncertainties are sums over records, in nats but for the Brier score.

    Attributes:
        top_label: Shape (CELLS, 5); p is the largest class probability (ties: the first class), y
            says whether that class is right.
        class_wise: Shape (C, CELLS, 5); for each class c, p is the probability of c, y says whether
            c is the label.
        uncertainty: Shape (2, CELLS), counts of records by their epistemic (row 0) and total (row
            1) uncertainty, in cells of its share of ln C.
        truth: Shape (CELLS,), over the records of a cell of `top_label` whose label law is known
            (they are made up): the sum of the true probability of the predicted class.
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

    top_label: Floats
    class_wise: Floats
    uncertainty: Floats
    truth: Floats
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

    @property
    def classes(self) -> int:
        """C >= 2."""
        return len(self.class_wise)

    @property
    def risk(self) -> Floats | None:
        """Of two classes the table of the second one's probability, a risk; else None."""
        return self.class_wise[1] if self.classes == 2 else None

    def of_records(self) -> tuple[float, ...]:
        """Count the records of each class."""
        return tuple(map(float, self.class_wise[..., OUTCOME].sum(axis=1)))

    def totals(self) -> dict[str, Total]:
        """Return the totals of right answers and of the log score."""
        return {
            "accuracy": Total(records=self.count, total=self.correct, squares=self.correct),
            "negative log-likelihood": Total(
                records=self.count, total=self.nll, squares=self.nll_squared
            ),
        }


def table_shapes(classes: int) -> Shapes:
    """Return name -> shape of the tables of C classes."""
    return {
        "top_label": (CELLS, COLUMNS),
        "class_wise": (classes, CELLS, COLUMNS),
        "uncertainty": (len(MEASURES), CELLS),
        "truth": (CELLS,),
    }


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
        total = entropies(probability)
        epistemic = np.zeros_like(total)
        aleatoric = total
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
    shares = np.stack([np.clip(values / np.log(classes), 0, 1) for values in measured])
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


def entropies(probabilities: Floats) -> Floats:
    """Return the entropy of each record's probabilities in nats, shape (N, C) -> (N,)."""
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return np.asarray(-(probabilities * logs).sum(axis=1))


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
