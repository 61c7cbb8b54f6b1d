"""Whether a shift can be applied to a site's records, before anything is computed."""

from typing import get_args

import numpy as np

from fl_dpbayes.config.data import ImageShift, Shift, ShiftKind
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.data.records import Records

ONLY_IMAGES = (*get_args(ImageShift), "shortcut_marker")
ONLY_TABLES = ("tilt", "missing_features")


def check_shift(records: Records, shift: Shift) -> None:
    """Refuse a shift that these records do not allow.

    Args:
        records: records of one site.
        shift: kind, severity, feature.

    Raises:
        UserError: if there are no records, the kind is for images or for tables only, `feature` names none of the
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
