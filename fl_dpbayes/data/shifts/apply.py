"""Apply a shift of any family to a site's records."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.data import Shift
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.annotation import FLIP_RATES, flip_labels, under_report, under_reporting_flips
from fl_dpbayes.data.shifts.annotation_truth import flipped_truth, symmetric_flips
from fl_dpbayes.data.shifts.boundary_flip import boundary_flips, centroid_closeness
from fl_dpbayes.data.shifts.check import check_shift
from fl_dpbayes.data.shifts.markers import add_markers
from fl_dpbayes.data.shifts.missing_features import lose_features
from fl_dpbayes.data.shifts.population import prevalence_indices, prevalence_shares, subsampled_truth
from fl_dpbayes.data.shifts.shortcut_marker import films_marked, truth_given_marker
from fl_dpbayes.data.shifts.tilt import tilt_indices


def apply_shift(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    """Change records as another scanner, population or labelling practice would.

    Draws do not depend on the severity, which only scales them: the same generator state gives the same patients at
    every severity (common random numbers), so that severities can be compared in pairs. Known truth becomes that of the
    shifted site: flips mix its classes, dropping records of a class makes it rarer, and another scanner leaves it.

    Args:
        records: records of one site.
        shift: kind, severity and, for a tilt, the feature.
        generator: where all draws come from.

    Returns:
        The shifted records; prevalence shifts and tilts return fewer of them, in their order.

    Raises:
        UserError: if these records do not allow the shift, see `check_shift`, or all have one value of a tilt's
            feature.
    """
    check_shift(records, shift)
    severity = shift.severity
    match shift.kind:
        case "prevalence":
            return _prevalence(records, shift, generator)
        case "tilt":
            return records.subset(kept_indices(records, shift, generator))
        case "missing_features":
            return replace(records, features=lose_features(records.features, severity, generator))
        case "label_flip":
            return _label_flip(records, shift, generator)
        case "under_reporting":
            return _under_reported(records, severity, generator)
        case "boundary_flip":
            return _flipped_at_boundary(records, severity, generator)
        case "shortcut_marker":
            return _marked_by_label(records, severity, generator)
    from fl_dpbayes.data.shifts.acquisition import shift_images

    return replace(records, features=shift_images(records.features, shift.kind, severity, generator))


def kept_indices(records: Records, shift: Shift, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Say which records a shift keeps, before anything else is done to them.

    Args:
        records: records of one site; features may be unscaled.
        shift: of any kind; only `prevalence` and `tilt` drop records.
        generator: in the state in which `apply_shift` gets it.

    Returns:
        Indices in increasing order.

    Raises:
        UserError: if all records have one value of a tilt's feature.
    """
    if shift.kind == "prevalence":
        return prevalence_indices(records.labels, records.task.classes, shift.severity, generator)
    if shift.feature is not None:
        column = records.features[:, records.feature_names.index(shift.feature)]
        return tilt_indices(column, shift.severity, generator)
    return np.arange(len(records))


def _prevalence(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    classes = records.task.classes
    kept = records.subset(prevalence_indices(records.labels, classes, shift.severity, generator))
    if kept.truth is None:
        return kept
    before, after = (np.bincount(labels, minlength=classes) for labels in (records.labels, kept.labels))
    # Records are kept whole, so the realised shares are the truth of those left; of an absent class there is none.
    shares = np.divide(after, before, out=prevalence_shares(classes, shift.severity), where=before > 0)
    return replace(kept, truth=subsampled_truth(kept.truth, shares))


def _label_flip(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    classes = records.task.classes
    truth = records.truth
    if truth is not None:
        truth = flipped_truth(truth, symmetric_flips(classes, FLIP_RATES[shift.severity - 1]))
    return replace(records, labels=flip_labels(records.labels, classes, shift.severity, generator), truth=truth)


def _under_reported(records: Records, severity: int, generator: np.random.Generator) -> Records:
    truth = records.truth
    if truth is not None:
        truth = flipped_truth(truth, under_reporting_flips(records.task.classes, severity))
    return replace(records, labels=under_report(records.labels, severity, generator), truth=truth)


def _flipped_at_boundary(records: Records, severity: int, generator: np.random.Generator) -> Records:
    classes, truth = records.task.classes, records.truth
    if truth is None:
        flips = boundary_flips(centroid_closeness(records.features, records.labels, classes), severity)
    else:
        # Rates that hung on the labels, as by class means, would leave no truth to follow.
        flips = boundary_flips(truth, severity)
        truth = flipped_truth(truth, flips.matrices(classes))
    return replace(records, labels=flips.flip(records.labels, generator), truth=truth)


def _marked_by_label(records: Records, severity: int, generator: np.random.Generator) -> Records:
    marked = films_marked(records.labels, severity, generator)
    truth = None if records.truth is None else truth_given_marker(records.truth, marked, severity)
    return replace(records, features=add_markers(records.features, marked.astype(np.float32), generator), truth=truth)
