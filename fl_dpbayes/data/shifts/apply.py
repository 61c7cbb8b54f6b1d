"""Apply a shift of any family to a site's records."""

from dataclasses import replace

import numpy as np

from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.annotation import flip_labels
from fl_dpbayes.data.shifts.population import prevalence_indices
from fl_dpbayes.data.specs import Shift
from fl_dpbayes.errors import UserError


def apply_shift(records: Records, shift: Shift, generator: np.random.Generator) -> Records:
    """Change records as another scanner, population or labelling practice would.

    Draws do not depend on the severity, which only scales them: the same generator state gives the same patients at
    every severity (common random numbers), so that severities can be compared in pairs.

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
        return records.subset(prevalence_indices(records.labels, records.task.classes, shift.severity, generator))
    if shift.kind == "label_flip":
        return replace(records, labels=flip_labels(records.labels, records.task.classes, shift.severity, generator))
    if len(records.task.input_shape) != 3:
        raise UserError(
            f"shift.kind {shift.kind!r} needs images, these records have shape {records.task.input_shape}: choose "
            "'prevalence' or 'label_flip'"
        )
    from fl_dpbayes.data.shifts.acquisition import shift_images

    return replace(records, features=shift_images(records.features, shift.kind, shift.severity, generator))
