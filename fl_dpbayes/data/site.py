"""From a site file to a site: load, select, shift, split."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.data import Shift
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import Role
from fl_dpbayes.config.prevalence import check_prevalence_classes
from fl_dpbayes.config.site_file import Selection, SiteFile
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.declared_units import check_declaration, check_most_units, recalibration_units
from fl_dpbayes.data.load import load_unscaled
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.apply import apply_shift
from fl_dpbayes.privacy.ledger.state import Part
from fl_dpbayes.privacy.splits import in_recalibration_part, in_test_part


@dataclass(frozen=True)
class SiteSplit:
    """A site's records for one purpose, grouped by privacy unit.

    Attributes:
        features: float32, (N, *input_shape).
        labels: int64, (N,).
        unit_index: int64, (N,), each record's unit as a number in 0 .. unit_count - 1.
        unit_count: how many privacy units the part holds.
        truth: float64, (N, classes), the labels' own probabilities where records are synthetic, else None.
        groups: attribute -> (N,) text, each record's subgroup.
        unit_names: (unit_count,), the names of the units, as the source has them; None where nobody asks.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    unit_index: npt.NDArray[np.int64]
    unit_count: int
    truth: npt.NDArray[np.float64] | None = None
    groups: Mapping[str, npt.NDArray] = field(default_factory=dict)
    unit_names: npt.NDArray | None = None


@dataclass(frozen=True)
class Site:
    """A site's records and what it declares of itself.

    `units` is the declared n, a public constant; `train` is None at a held-out or shifted site, whose records are all
    in `test`. `recalibration` is None there, and where the site file keeps no share for it; `recalibration_units` is
    the number of units that the declared n and the shares of the split let expect, a public constant too.
    """

    name: str
    role: Role
    task: Task
    unit: str
    units: int
    train: SiteSplit | None
    test: SiteSplit
    shift: str
    recalibration: SiteSplit | None = None
    recalibration_units: int = 0


def load_site(site_file: SiteFile) -> Site:
    """Build a site from its file, whose paths are absolute.

    The records keep the order of their source, so that a restart finds each at the same place.

    Raises UserError if records are missing, damaged or not as described, or their number is far from the declared
    one.
    """
    records = _select(load_unscaled(site_file.source, site_file.selection.part), site_file.selection).scaled()
    if site_file.shift is not None:
        records = apply_shift(records, site_file.shift, np.random.default_rng(site_file.shift_seed))
    _check_records(records)
    check_prevalence_classes("prevalence", site_file.prevalence, records.task.classes)
    parts: dict[Part, SiteSplit] = {"test": _part(records)}
    if site_file.role == "train":
        split, units = site_file.split, records.units.tolist()
        in_test = in_test_part(units, split.key, split.test_fraction)
        in_recalibration = in_recalibration_part(units, split.key, split.test_fraction, split.recalibration_fraction)
        parts = {"train": _part(records.subset(~in_test & ~in_recalibration)), "test": _part(records.subset(in_test))}
        if split.recalibration_fraction:
            parts["recalibration"] = _part(records.subset(in_recalibration))
    check_declaration(site_file.units, next(iter(parts.values())).unit_count, records.unit)
    for name, part in parts.items():
        check_most_units(site_file, name, part.unit_count)
    return Site(
        name=site_file.name,
        role=site_file.role,
        task=records.task,
        unit=records.unit,
        units=site_file.units,
        train=parts.get("train"),
        test=parts["test"],
        shift=shift_label(site_file.shift),
        recalibration=parts.get("recalibration"),
        recalibration_units=recalibration_units(site_file),
    )


def shift_label(shift: Shift | None) -> str:
    """Name a shift in the words that reports use; no shift is the empty text."""
    if shift is None:
        return ""
    kind = shift.kind if shift.feature is None else f"{shift.kind} by {shift.feature}"
    return f"{kind} (severity {shift.severity})"


def _select(records: Records, selection: Selection) -> Records:
    if selection.natural_site is not None:
        records = records.subset(_natural_site(records, selection.natural_site))
    if selection.indices is not None:
        records = records.subset(_read_indices(selection, len(records)))
    return records


def _natural_site(records: Records, name: str) -> npt.NDArray[np.bool_]:
    if records.natural_site is None:
        raise UserError(f"selection.natural_site is {name!r} but the source does not say which site a record is from")
    chosen = records.natural_site == name
    if not chosen.any():
        allowed = ", ".join(sorted(set(records.natural_site.tolist())))
        raise UserError(f"selection.natural_site is {name!r}: choose one of {allowed}")
    return chosen


def _read_indices(selection: Selection, count: int) -> npt.NDArray[np.int64]:
    try:
        indices = np.load(str(selection.indices), allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"selection.indices: file {selection.indices} does not exist") from None
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"selection.indices: {selection.indices} is not a NumPy array file: {error}") from None
    if not isinstance(indices, np.ndarray) or indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise UserError(f"selection.indices: {selection.indices} must hold one row of whole numbers")
    if len(indices) and (indices.min() < 0 or indices.max() >= count):
        raise UserError(
            f"selection.indices: {selection.indices} holds {indices.min()} to {indices.max()}, allowed are 0 to "
            f"{count - 1}: was it made for another source or part?"
        )
    if len(np.unique(indices)) != len(indices):
        raise UserError(f"selection.indices: {selection.indices} holds a record twice: list each record once")
    return np.sort(indices).astype(np.int64)


def _check_records(records: Records) -> None:
    if not len(records):
        raise UserError("the site has no records: check selection and shift")
    if records.features.shape[1:] != records.task.input_shape:
        raise UserError(f"records have shape {records.features.shape[1:]}, the task says {records.task.input_shape}")
    if not np.isfinite(records.features).all():
        raise UserError("a feature is not a finite number: remove or impute such records before they reach the site")
    if records.labels.min() < 0 or records.labels.max() >= records.task.classes:
        raise UserError(f"a label is outside 0 to {records.task.classes - 1}: correct it, or the number of classes")


def _part(records: Records) -> SiteSplit:
    distinct, unit_index = np.unique(records.units, return_inverse=True)
    index = unit_index.astype(np.int64)
    return SiteSplit(records.features, records.labels, index, len(distinct), records.truth, records.groups, distinct)
