"""Apply a shift of any family to a site's records."""

from dataclasses import replace

import numpy as np

from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.annotation import FLIP_RATES, flip_labels
from fl_dpbayes.data.shifts.annotation_truth import flipped_truth, symmetric_flips
from fl_dpbayes.data.shifts.population import prevalence_indices, prevalence_shares, subsampled_truth
from fl_dpbayes.data.specs import Shift
from fl_dpbayes.errors import UserError


def apply_shift(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    """Change records as another scanner, population or labelling practice would.

    Draws do not depend on the severity, which only scales them: the same generator state gives the same patients at
    every severity (common random numbers), so that severities can be compared in pairs. Known truth becomes that of the
    shifted site: flips mix its classes, dropping records of a class makes it rarer, and another scanner leaves it.

    Args:
        records: records of one site.
        shift: kind and severity.
        generator: where all draws come from.

    Returns:
        The shifted records; a population shift returns fewer of them, in their order.

    Raises:
        UserError: if an image shift is asked for records that are not images.
    """
    if shift.kind == "prevalence":
        return _prevalence(records, shift, generator)
    if shift.kind == "label_flip":
        return _label_flip(records, shift, generator)
    if len(records.task.input_shape) != 3:
        raise UserError(
            f"shift.kind {shift.kind!r} needs images, these records have shape {records.task.input_shape}: choose "
            "'prevalence' or 'label_flip'"
        )
    from fl_dpbayes.data.shifts.acquisition import shift_images

    return replace(records, features=shift_images(records.features, shift.kind, shift.severity, generator))


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
