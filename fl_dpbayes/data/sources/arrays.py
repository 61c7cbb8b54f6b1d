"""Records in a NumPy archive, as a simulation from Python writes them beside its run."""

import zipfile

import numpy as np

from fl_dpbayes.config import Arrays, OfficialPart
from fl_dpbayes.data.records import Records
from fl_dpbayes.errors import UserError


def load(source: Arrays, part: OfficialPart) -> Records:
    """Load an archive, never unpickling.

    Args:
        source: Names the archive of `features`, `labels` and, where there are any, `sites` and
            `units`; without `units` each record is its own.
        part: The official part; an archive has one only.

    Raises:
        UserError: If it is absent, no archive of plain arrays, or shapes and labels are not as the
            source says.
    """
    try:
        with np.load(source.path, allow_pickle=False) as archive:
            features = archive["features"]
            labels = archive["labels"]
            sites = archive.get("sites")
            units = archive.get("units", np.arange(len(labels)))
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{source.path} cannot be read as an archive of features and labels: {error}"
        ) from None
    columns = [labels, units]
    if sites is not None:
        columns.append(sites)
    has_equal_lengths = all(column.shape == (len(features),) for column in columns)
    if features.shape[1:] != source.input_shape or not has_equal_lengths:
        raise UserError(
            f"{source.path}: features have shape {features.shape}: source.input_shape or a "
            "length is wrong"
        )
    outcome = source.task.outcome
    if not outcome.holds(labels).all():
        raise UserError(f"{source.path}: labels must be {outcome.allowed}")
    if features.dtype != np.uint8:
        features = features.astype(np.float32)
    if not np.isfinite(features).all():
        raise UserError(
            f"{source.path}: a feature is missing or not a finite number: remove such records"
        )
    return Records(
        features=features,
        labels=labels.astype(outcome.target_type),
        units=units,
        natural_site=sites,
        task=source.task,
        unit=source.unit,
    )
