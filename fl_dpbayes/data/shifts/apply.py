"""Apply a shift of any family to a site's records."""

from dataclasses import replace
from typing import get_args

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.data import ImageShift, Shift, ShiftKind
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts import annotation, population

ONLY_IMAGES = (*get_args(ImageShift), "shortcut_marker")
ONLY_TABLES = ("tilt", "missing_features")


def apply_shift(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    """Change the records of one site as another scanner, population or labelling practice would.

    Draws do not depend on the severity, which only scales them: the same generator state gives the same patients at
    every severity (common random numbers), so that severities can be compared in pairs. Known truth becomes that of the
    shifted site: flips mix its classes, dropping records of a class makes it rarer, and another scanner leaves it.

    Raises UserError if these records do not allow the shift, see `check_shift` and `kept_indices`.
    """
    check_shift(records, shift)
    severity, classes = shift.severity, records.task.classes
    match shift.kind:
        case "prevalence":
            return _prevalence(records, shift, generator)
        case "tilt":
            return records.subset(kept_indices(records, shift, generator))
        case "missing_features":
            return replace(records, features=population.lose_features(records.features, severity, generator))
        case "label_flip":
            labels = annotation.flip_labels(records.labels, classes, severity, generator)
            return _relabelled(
                records, labels, annotation.symmetric_flips(classes, annotation.FLIP_RATES[severity - 1])
            )
        case "under_reporting":
            labels = annotation.under_report(records.labels, severity, generator)
            return _relabelled(
                records, labels, annotation.under_reporting_flips(classes, annotation.FLIP_RATES[severity - 1])
            )
        case "boundary_flip":
            # Rates that hung on the labels, as by class means, would leave no truth to follow.
            closeness = records.truth
            if closeness is None:
                closeness = annotation.centroid_closeness(records.features, records.labels, classes)
            flips = annotation.boundary_flips(closeness, severity)
            return _relabelled(records, flips.flip(records.labels, generator), flips.matrices(classes))
    # Only images need torchvision.
    from fl_dpbayes.data.shifts import acquisition

    if shift.kind != "shortcut_marker":
        return replace(records, features=acquisition.shift_images(records.features, shift.kind, severity, generator))
    marked = acquisition.films_marked(records.labels, severity, generator)
    truth = None if records.truth is None else acquisition.truth_given_marker(records.truth, marked, severity)
    features = acquisition.add_markers(records.features, marked.astype(np.float32), generator)
    return replace(records, features=features, truth=truth)


def kept_indices(records: Records, shift: Shift, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Say which records a shift keeps, before anything else is done to them.

    `shift`: of any kind; only `prevalence` and `tilt` drop records. `generator`: in the state in which
    `apply_shift` gets it. Raises UserError if all records have one value of a tilt's feature.
    """
    if shift.kind == "prevalence":
        return population.prevalence_indices(records.labels, records.task.classes, shift.severity, generator)
    if shift.feature is not None:
        column = records.features[:, records.feature_names.index(shift.feature)]
        return population.tilt_indices(column, shift.severity, generator)
    return np.arange(len(records))


def check_shift(records: Records, shift: Shift) -> None:
    """Refuse a shift that the records of a site do not allow, before anything is computed.

    Raises UserError if there are no records, the kind is for images or for tables only, `feature` names none of the
    records' features, or labels of one class only leave no boundary to flip them at.
    """
    if not len(records):
        raise UserError("the site has no records: check selection and shift")
    images = len(records.task.input_shape) == 3
    refused = ONLY_TABLES if images else ONLY_IMAGES
    if shift.kind in refused:
        allowed = ", ".join(repr(kind) for kind in get_args(ShiftKind) if kind not in refused)
        raise UserError(
            f"shift.kind {shift.kind!r} needs {'a table' if images else 'images'}, these records have shape "
            f"{records.task.input_shape}: choose one of {allowed}"
        )
    if shift.feature is not None and shift.feature not in records.feature_names:
        raise UserError(
            f"shift.feature is {shift.feature!r}, which is no feature of the source: "
            + (f"choose one of {', '.join(records.feature_names)}" if records.feature_names else "it names none")
        )
    if shift.kind == "boundary_flip" and records.truth is None and len(np.unique(records.labels)) < 2:
        raise UserError(
            "shift.kind 'boundary_flip' needs records of two classes, the site has one: choose 'label_flip', or "
            "another partition"
        )


def _prevalence(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    kept = records.subset(kept_indices(records, shift, generator))
    if kept.truth is None:
        return kept
    classes = records.task.classes
    before, after = (np.bincount(labels, minlength=classes) for labels in (records.labels, kept.labels))
    # Records are kept whole, so the realised shares are the truth of those left; of an absent class there is none.
    planned = population.prevalence_shares(classes, shift.severity)
    shares = np.divide(after, before, out=planned, where=before > 0)
    return replace(kept, truth=population.subsampled_truth(kept.truth, shares))


def _relabelled(records: Records, labels: npt.NDArray[np.int64], flips: npt.NDArray[np.float64]) -> Records:
    truth = None if records.truth is None else annotation.flipped_truth(records.truth, flips)
    return replace(records, labels=labels, truth=truth)
