"""Apply a shift of any family to a site's records."""

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import ImageShift, Shift, ShiftKind, as_classification
from fl_dpbayes.data.records import Records
from fl_dpbayes.errors import UserError

ONLY_IMAGES = get_args(ImageShift)
ONLY_TABLES = ("tilt", "missing_features")
LOGIT_OFFSETS = (0.5, 1.0, 1.5, 2.0, 2.5)
TILT_RATES = (0.25, 0.5, 1.0, 1.5, 2.0)
MISSING_SHARES = (0.1, 0.2, 0.4, 0.6, 0.8)
# Beyond two standard deviations all weigh alike: else one extreme record would leave a site with a
# handful of others.
HIGHEST_STANDARD_SCORE = 2.0
FLIP_RATES = (0.02, 0.05, 0.10, 0.20, 0.30)
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def apply_shift(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    """Change the records of one site as another scanner, population or labelling practice would.

    Draws do not depend on the severity, so that severities can be compared in pairs of the same
    patients. Known truth becomes that of the shifted site: flips mix its classes, dropping records
    of a class makes it rarer, and another scanner leaves it.

    Args:
        records: The site's records.
        shift: Kind, severity and, for a tilt, the feature.
        generator: Draws the shift.

    Raises:
        UserError: If these records do not allow the shift, see `check_shift` and `kept_indices`.
    """
    check_shift(records, shift)
    match shift.kind:
        case "prevalence":
            return _with_rarer_classes(records, shift, generator)
        case "tilt":
            return records.subset(kept_indices(records, shift, generator))
        case "missing_features":
            features = lose_features(records.features, shift.severity, generator)
            return replace(records, features=features)
        case "label_flip" | "under_reporting" | "boundary_flip":
            return _with_wrong_labels(records, shift, generator)
    # Only images need torchvision.
    from fl_dpbayes.data.shifts.acquisition import shift_images

    features = shift_images(records.features, shift.kind, shift.severity, generator)
    return replace(records, features=features)


def kept_indices(records: Records, shift: Shift, generator: np.random.Generator) -> Integers:
    """Say which records a shift keeps, in increasing order.

    Args:
        records: The site's records.
        shift: The shift.
        generator: In the state that `apply_shift` gets.

    Raises:
        UserError: If all values of a tilt's feature are equal.
    """
    if shift.kind == "prevalence":
        return prevalence_indices(
            records.labels, _classes(records, shift), shift.severity, generator
        )
    if shift.feature is not None:
        column = records.features[:, records.feature_names.index(shift.feature)]
        return tilt_indices(column, shift.severity, generator)
    return np.arange(len(records))


def _classes(records: Records, shift: Shift) -> int:
    return as_classification(records.task.outcome, f"shift.kind {shift.kind!r}").classes


def check_shift(records: Records, shift: Shift) -> None:
    """Refuse a shift that the records of a site do not allow, before anything is computed.

    Args:
        records: The site's records.
        shift: The shift.

    Raises:
        UserError: If there are no records, the kind is for images, for tables or for classes only,
            `feature` names none of the records' features, or labels of one class only leave no
            boundary to flip them at.
    """
    if not len(records):
        raise UserError("the site has no records: check selection and shift")
    is_image = len(records.task.input_shape) == 3
    refused = ONLY_TABLES if is_image else ONLY_IMAGES
    if shift.kind in refused:
        allowed = ", ".join(repr(kind) for kind in get_args(ShiftKind) if kind not in refused)
        raise UserError(
            f"shift.kind {shift.kind!r} needs {'a table' if is_image else 'images'}, these records "
            f"have shape {records.task.input_shape}: choose one of {allowed}"
        )
    if shift.kind not in (*ONLY_IMAGES, *ONLY_TABLES):
        _classes(records, shift)
    if shift.feature is not None and shift.feature not in records.feature_names:
        remedy = "it names none"
        if records.feature_names:
            remedy = f"choose one of {', '.join(records.feature_names)}"
        raise UserError(
            f"shift.feature is {shift.feature!r}, which is no feature of the source: {remedy}"
        )
    if (
        shift.kind == "boundary_flip"
        and records.truth is None
        and len(np.unique(records.labels)) < 2
    ):
        raise UserError(
            "shift.kind 'boundary_flip' needs records of two classes, the site has one: choose "
            "'label_flip', or another partition"
        )


def _with_rarer_classes(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    chosen = records.subset(kept_indices(records, shift, generator))
    if chosen.truth is None:
        return chosen
    classes = _classes(records, shift)
    before = np.bincount(records.labels, minlength=classes)
    after = np.bincount(chosen.labels, minlength=classes)
    # Records are kept whole, so the realised shares are the truth of those that stay; of an absent
    # class there is none.
    planned = prevalence_shares(classes, shift.severity)
    shares = np.divide(after, before, out=planned, where=before > 0)
    # Saerens, Latinne and Decaestecker, Neural Computation 14, 2002, equation 2.4.
    weighted = chosen.truth * shares
    return replace(chosen, truth=weighted / weighted.sum(axis=1, keepdims=True))


def _with_wrong_labels(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    classes = _classes(records, shift)
    rate = FLIP_RATES[shift.severity - 1]
    if shift.kind == "label_flip":
        labels = flip_labels(records.labels, classes, shift.severity, generator)
        flip_matrix = symmetric_flips(classes, rate)
    elif shift.kind == "under_reporting":
        labels = under_report(records.labels, shift.severity, generator)
        flip_matrix = under_reporting_flips(classes, rate)
    else:
        # Rates that hung on the labels, as by class means, would leave no truth to follow.
        closeness = records.truth
        if closeness is None:
            closeness = centroid_closeness(records.features, records.labels, classes)
        flips = boundary_flips(closeness, shift.severity)
        labels = flips.flip(records.labels, generator)
        flip_matrix = flips.matrices(classes)
    truth = None if records.truth is None else flipped_truth(records.truth, flip_matrix)
    return replace(records, labels=labels, truth=truth)


def prevalence_shares(classes: int, severity: int) -> Floats:
    """Return the share of each class that a prevalence shift keeps, (classes,).

        share(c) = exp(-offset c / (classes - 1)),  before rounding to whole records

    Args:
        classes: The number of classes, at least two.
        severity: 1 to 5, an offset of LOGIT_OFFSETS.
    """
    return np.exp(-LOGIT_OFFSETS[severity - 1] * np.arange(classes) / (classes - 1))


def prevalence_indices(
    labels: Integers, classes: int, severity: int, generator: np.random.Generator
) -> Integers:
    """Choose records so that high classes become rarer, as in screening after a referral clinic.

        p'(c) proportional to p(c) exp(-offset c / (classes - 1))

    With two classes this is logit p'(1) = logit p(1) - offset, up to rounding to whole records.
    Records are chosen without replacement, and those at one severity include those at every higher
    one.

    Args:
        labels: (N,), each record's class.
        classes: The number of classes.
        severity: 1 to 5, an offset of LOGIT_OFFSETS.
        generator: Draws the records.

    Returns:
        The chosen records' numbers, in increasing order.

    Source:
        Castro, Walker and Glocker, Nat. Commun. 11:3673, 2020.
    """
    order = np.argsort(generator.random(len(labels)))
    chosen = []
    for label, share in enumerate(prevalence_shares(classes, severity)):
        members = order[labels[order] == label]
        chosen.append(members[: round(len(members) * share)])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def tilt_indices(
    values: npt.NDArray[np.float32], severity: int, generator: np.random.Generator
) -> Integers:
    """Choose records without replacement so that high values of a feature become commoner.

        P(keep i) = exp(rate (min(z_i, c) - c)),  c = min(2, max z)
        p'(x) proportional to p(x) exp(rate min(z, c))

    z is the value less the site's mean, over the site's standard deviation, which stay there.
    Records kept at one severity include those kept at every higher one, and those of the highest
    value are always kept.

    Args:
        values: (N,), the feature.
        severity: 1 to 5, a rate of TILT_RATES.
        generator: Draws the records.

    Returns:
        The chosen records' numbers, in increasing order.

    Raises:
        UserError: If all values are equal.

    Source:
        Castro, Walker and Glocker, Nat. Commun. 11:3673, 2020.
    """
    draws = generator.random(len(values))
    exact = values.astype(np.float64)
    spread = exact.std()
    if not spread > 0:
        raise UserError(
            f"shift.feature: the site's {len(values)} records all have the same value, so no tilt "
            "can be made: choose another feature"
        )
    score = (exact - exact.mean()) / spread
    highest = min(HIGHEST_STANDARD_SCORE, score.max())
    probabilities = np.exp(TILT_RATES[severity - 1] * (np.minimum(score, highest) - highest))
    return np.flatnonzero(draws < probabilities)


def lose_features(
    features: npt.NDArray[np.float32], severity: int, generator: np.random.Generator
) -> npt.NDArray:
    """Replace values by 0, each with the same probability and independent of all others.

    0 is the declared centre of a feature that is centred by public constants, so this is imputation
    by a public value; an indicator that is lost reads "no". Values lost at one severity are lost at
    every higher one.

    Args:
        features: (N, F).
        severity: 1 to 5, a probability of MISSING_SHARES.
        generator: Draws which values are lost.
    """
    is_lost = generator.random(features.shape) < MISSING_SHARES[severity - 1]
    return np.where(is_lost, np.float32(0), features)


def flip_labels(
    labels: Integers, classes: int, severity: int, generator: np.random.Generator
) -> Integers:
    """Replace each label with probability `rate` by one of the other classes, all equally likely.

    Flips at one severity are those of every higher one too.

    Args:
        labels: (N,), each record's class.
        classes: The number of classes.
        severity: 1 to 5, a rate of FLIP_RATES.
        generator: Draws the flips.

    Source:
        JMIR Med. Inform. 2020;8:e18089, for the rates.
    """
    scores = generator.random(len(labels))
    steps = generator.integers(1, classes, size=len(labels))
    return np.where(scores < FLIP_RATES[severity - 1], (labels + steps) % classes, labels)


def symmetric_flips(classes: int, rate: float) -> Floats:
    """Return P(recorded c' | right c) under `flip_labels`, (C, C).

    1 - rate on the diagonal, rate / (C - 1) off it
    """
    matrix = np.full((classes, classes), rate / (classes - 1))
    np.fill_diagonal(matrix, 1 - rate)
    return matrix


def under_report(labels: Integers, severity: int, generator: np.random.Generator) -> Integers:
    """Record positives (any class above 0) as class 0 with probability `rate`; negatives stay.

    Positives missed at one severity are missed at every higher one.

    Args:
        labels: (N,), each record's class.
        severity: 1 to 5, a rate of FLIP_RATES.
        generator: Draws which are missed.

    Source:
        One-sided label noise; Oakden-Rayner 2019 on what radiology reports leave out.
    """
    return np.where(generator.random(len(labels)) < FLIP_RATES[severity - 1], 0, labels)


def under_reporting_flips(classes: int, rate: float) -> Floats:
    """Return P(recorded c' | right c) under `under_report`, (C, C)."""
    matrix = (1 - rate) * np.eye(classes)
    matrix[:, 0] += rate
    return matrix


def flipped_truth(truth: Floats, flip_matrix: Floats) -> Floats:
    """Return the probabilities of the recorded labels, (N, C), given those of the right ones.

        t'(c') = sum_c t(c) M(c, c'),  M(c, c') = P(recorded c' | right c)

    It holds where the flip of a record depends on its features and its right label alone.

    Args:
        truth: t, (N, C).
        flip_matrix: M, (C, C), or (N, C, C) where rates differ from record to record.

    Source:
        Natarajan et al., NeurIPS 2013; Patrini et al., CVPR 2017.
    """
    return np.matmul(truth[:, None, :], flip_matrix)[:, 0, :]


@dataclass(frozen=True)
class BoundaryFlips:
    """How likely each record is taken for the other of the two classes that it is nearest to.

    Attributes:
        rates: (N,), the probability of a wrong label.
        nearest: (N,), the class that each record is nearest to.
        second: (N,), the next class.
    """

    rates: Floats
    nearest: Integers
    second: Integers

    def flip(self, labels: Integers, generator: np.random.Generator) -> Integers:
        """Draw wrong labels: the nearest class for any other, the second for the nearest.

        One draw per record, so that those flipped at one severity are flipped at every higher one.

        Args:
            labels: (N,), each record's class.
            generator: Draws the flips.
        """
        wrong = np.where(labels == self.nearest, self.second, self.nearest)
        return np.where(generator.random(len(labels)) < self.rates, wrong, labels)

    def matrices(self, classes: int) -> Floats:
        """Return P(recorded c' | right c) of each record, (N, classes, classes)."""
        rows = np.arange(len(self.rates))
        matrices = (1 - self.rates)[:, None, None] * np.eye(classes)
        matrices[rows, :, self.nearest] += self.rates[:, None]
        matrices[rows, self.nearest, self.nearest] -= self.rates
        matrices[rows, self.nearest, self.second] += self.rates
        return matrices


def boundary_flips(closeness: Floats, severity: int) -> BoundaryFlips:
    """Make flips likelier for records near the boundary between their two nearest classes.

        rate_i = 2 rate (1 - F_i)

    F_i is the share of the records that are no farther from the boundary than record i. The mean is
    `rate`, whatever the scale of `closeness`; no rate is above .6.

    Args:
        closeness: (N, C), higher for a nearer class: known probabilities, or `centroid_closeness`.
        severity: 1 to 5, a rate of FLIP_RATES.

    Source:
        Instance-dependent label noise; Menon, van Rooyen and Natarajan, Machine Learning 107, 2018
        (boundary-consistent noise).
    """
    from scipy.stats import rankdata

    order = np.argsort(-closeness, axis=1, kind="stable")[:, :2]
    highest = np.take_along_axis(closeness, order, axis=1)
    ranks = rankdata(highest[:, 0] - highest[:, 1])
    rates = 2 * FLIP_RATES[severity - 1] * (1 - (ranks - 0.5) / len(ranks))
    return BoundaryFlips(rates=rates, nearest=order[:, 0], second=order[:, 1])


def centroid_closeness(features: npt.NDArray[np.float32], labels: Integers, classes: int) -> Floats:
    """Return minus each record's distance to the site's own mean of each class, (N, C).

    Args:
        features: (N, *input_shape).
        labels: (N,), each record's class.
        classes: The number of classes; of one without records the result is -inf.
    """
    flat = features.reshape(len(features), -1)
    closeness = np.full((len(flat), classes), -np.inf)
    for label in np.unique(labels):
        centroid = flat[labels == label].mean(axis=0, dtype=np.float64).astype(np.float32)
        closeness[:, label] = -np.linalg.norm(flat - centroid, axis=1)
    return closeness
