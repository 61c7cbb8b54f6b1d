"""From a site file to a site: load, select, shift, split, and check the declared number of units."""

import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import (
    SHARED_RECORDS,
    Role,
    Selection,
    Shift,
    SiteFile,
    Task,
    check_prevalence_classes,
)
from fl_dpbayes.data.feature_cache import cached_features
from fl_dpbayes.data.records import Records, array_bytes, frozen, load_unscaled, magnitude_warnings
from fl_dpbayes.data.shifts.apply import apply_shift
from fl_dpbayes.data.snapshot import read_snapshot
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT
from fl_dpbayes.privacy import PARTS, Part, in_recalibration_part, in_test_part

logger = logging.getLogger("fl_dpbayes.site")

MAX_DECLARATION_ERROR = 0.2
# Of the keyed split: an honest site of any size passes but for 1 in 10^8 keys.
SPLIT_DEVIATIONS = 6.0


def most_declared(units: int) -> float:
    """Return the largest real number of units for which a site may declare `units`: units / .8."""
    return units / (1 - MAX_DECLARATION_ERROR)


def most_in_part(units: int, ratio: float) -> float:
    """Bound the number of units in a further part of a training site.

        m r + 6 sqrt(m r (1 + r)) + 6,   m = units / .8

    n = `units`, declared, of the training part; r >= 0 is the part's share of all units over that
    of the training part. Given the number in one part, that in another is negative binomial.
    """
    most = most_declared(units) * ratio
    return most + SPLIT_DEVIATIONS * math.sqrt(most * (1 + ratio)) + SPLIT_DEVIATIONS


def most_units(site_file: SiteFile, part: Part) -> float:
    """Bound the real number of units in a part from what the site declares.

    A site that holds more does not load.

    A delta below one over the bound is below 1/n for the real n.
    """
    if site_file.role != "train" or part == "train":
        return most_declared(site_file.units)
    split = site_file.split
    share = split.test_fraction if part == "test" else split.recalibration_fraction
    rest = max(1 - split.test_fraction - split.recalibration_fraction, 1e-9)
    return most_in_part(site_file.units, share / rest)


def is_delta_allowed(site_file: SiteFile, part: Part, delta: float) -> bool:
    """Say whether a delta is below 1/n for every number of units that a part may really hold."""
    return delta * most_units(site_file, part) < 1


def recalibration_units(site_file: SiteFile) -> int:
    """Return the expected number of units in the recalibration part, from what the site declares.

    0 without one.
    """
    split = site_file.split
    share = split.recalibration_fraction
    if site_file.role != "train" or not share or split.test_fraction + share >= 1:
        return 0
    return max(1, round(site_file.units * share / (1 - split.test_fraction - share)))


def check_declaration(declared: int, actual: int, unit: str) -> None:
    """Raise UserError if a site holds no unit, or declares one off by more than `MAX_DECLARATION_ERROR` of the real."""
    if not actual:
        raise UserError(
            "every record is kept for testing, so nothing is left to train on: lower "
            "split.test_fraction"
        )
    if abs(actual - declared) > MAX_DECLARATION_ERROR * actual:
        step = 10 ** max(len(str(actual)) - 2, 0)
        raise UserError(
            f"units is declared as {declared}, but the site holds {actual} privacy units "
            f"({unit}s): declare a round "
            f"number within {MAX_DECLARATION_ERROR:.0%} of that, for example units = {actual // step * step}"
        )


@dataclass(frozen=True)
class SiteSplit:
    """A site's records for one purpose: `unit_index`, (N,), in 0 ..

    `unit_count` - 1; the names, where one asks.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    unit_index: npt.NDArray[np.int64]
    unit_count: int
    truth: npt.NDArray[np.float64] | None = None
    groups: Mapping[str, npt.NDArray] = field(default_factory=dict)
    unit_names: npt.NDArray | None = None
    published: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Site:
    """A site's records and what it declares of itself.

    `units` is the declared n, a public constant; `train` is None at a held-out or shifted site,
    whose records are all in `test`. `recalibration` is None there, and where the site file keeps no
    share for it; `recalibration_units` is the number of units that the declared n and the shares of
    the split let expect, a public constant too.
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

    The records keep the order of their source, so that a restart finds each at the same place; they
    come from the snapshot that the file names, if it names one. Built once in a process, while
    file, source and snapshot stay as they are; its arrays are read-only. Raises UserError if
    records are missing, damaged or not as described, or their number is far from the declared one;
    DataChangedError, DataUncheckedError as `read_snapshot`.
    """
    checked, indices = site_file.records_file is not None, site_file.selection.indices
    records = (
        read_snapshot(site_file)
        if checked
        else load_unscaled(site_file.source, site_file.selection.part)
    )

    def load() -> Site:
        return frozen(
            _mapped(
                site_file, site_of(site_file, records if checked else prepared(site_file, records))
            )
        )

    files = () if indices is None else (indices,)
    return KEPT.get(("site", site_file.model_dump_json()), load, array_bytes, files, records)


def _mapped(site_file: SiteFile, site: Site) -> Site:
    # Sampling finds the norms of mapped records anew at each message, since another process may
    # write their file.
    names = PARTS if os.environ.get(SHARED_RECORDS) else ()
    parts: dict[str, Any] = {
        name: part for name in names if (part := getattr(site, name)) is not None
    }
    for name, part in parts.items():
        # Where it cannot be written, or holds something else, each process holds its own.
        with suppress(OSError):
            found = cached_features(
                site_file.cache_folder, site.task, part.features, lambda records: records
            )
            if found.dtype == part.features.dtype and np.array_equal(found, part.features):
                parts[name] = replace(part, features=found)
    return replace(site, **parts)


def read_records(site_file: SiteFile) -> Records:
    """Read the site's records from its source: those that it selects, scaled and shifted.

    UserError as `load_site`.
    """
    return prepared(site_file, load_unscaled(site_file.source, site_file.selection.part))


def prepared(site_file: SiteFile, records: Records) -> Records:
    """Select the site's records of its source's, scale and shift them."""
    records = _select(records, site_file.selection).scaled()
    if site_file.shift is not None:
        records = apply_shift(records, site_file.shift, np.random.default_rng(site_file.shift_seed))
    return records


def site_of(site_file: SiteFile, records: Records) -> Site:
    """Check the site's records and divide them into its parts; UserError as `load_site`."""
    _check_records(records)
    for found in magnitude_warnings(records, site_file.source):
        # To the site's own log: what it says is computed from records.
        named = dict(found.values).values()
        logger.warning(
            "feature %s is about %s after centers and scales: it should be about 1", *named
        )
    check_prevalence_classes("prevalence", site_file.prevalence, records.task.classes)
    parts: dict[Part, SiteSplit] = {"test": _part(records)}
    if site_file.role == "train":
        split, units = site_file.split, records.units.tolist()
        in_test = in_test_part(units, split.key, split.test_fraction)
        in_recalibration = in_recalibration_part(
            units, split.key, split.test_fraction, split.recalibration_fraction
        )
        parts = {
            "train": _part(records.subset(~in_test & ~in_recalibration)),
            "test": _part(records.subset(in_test)),
        }
        if split.recalibration_fraction:
            parts["recalibration"] = _part(records.subset(in_recalibration))
    check_declaration(site_file.units, next(iter(parts.values())).unit_count, records.unit)
    for name, part in parts.items():
        if part.unit_count > (most := most_units(site_file, name)) * (1 + 1e-9):
            lets = f"units = {site_file.units} lets expect at most {most:.0f}"
            raise UserError(
                f"the part for {name} holds {part.unit_count} units, and {lets}: correct units"
            )
    return Site(
        site_file.name,
        site_file.role,
        records.task,
        records.unit,
        site_file.units,
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
    return (
        f"{shift.kind}{f' by {shift.feature}' if shift.feature else ''} (severity {shift.severity})"
    )


def _select(records: Records, selection: Selection) -> Records:
    if (name := selection.natural_site) is not None:
        records = records.subset(
            of_natural_site(records, name, f"selection.natural_site is {name!r}")
        )
    if selection.indices is not None:
        records = records.subset(_read_indices(selection.indices, len(records)))
    return records


def of_natural_site(records: Records, name: str, key: str) -> npt.NDArray[np.bool_]:
    """Say which records a natural site collected, (N,).

    UserError, which `key` begins, if there is no such site.
    """
    if records.natural_site is None:
        raise UserError(
            f"{key}, but the source does not say which site a record is from: name a table's "
            "site_column or a folder's "
            "site_pattern, or use a source of several hospitals ('stroke', 'heart', "
            "'logistic-2d', 'radiographs')"
        )
    chosen = records.natural_site == name
    if not chosen.any():
        raise UserError(
            f"{key}: choose one of {', '.join(sorted(set(records.natural_site.tolist())))}"
        )
    return chosen


def _read_indices(path: Path, count: int) -> npt.NDArray[np.int64]:
    try:
        indices = np.load(str(path), allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"selection.indices: file {path} does not exist") from None
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"selection.indices: {path} is not a NumPy array file: {error}") from None
    if (
        not isinstance(indices, np.ndarray)
        or indices.ndim != 1
        or not np.issubdtype(indices.dtype, np.integer)
    ):
        raise UserError(f"selection.indices: {path} must hold one row of whole numbers")
    if len(indices) and (indices.min() < 0 or indices.max() >= count):
        found = f"holds {indices.min()} to {indices.max()}, allowed are 0 to {count - 1}"
        raise UserError(
            f"selection.indices: {path} {found}: was it made for another source or part?"
        )
    if len(np.unique(indices)) != len(indices):
        raise UserError(f"selection.indices: {path} holds a record twice: list each record once")
    return np.sort(indices).astype(np.int64)


def _check_records(records: Records) -> None:
    if not len(records):
        raise UserError("the site has no records: check selection and shift")
    if records.features.shape[1:] != records.task.input_shape:
        raise UserError(
            f"records have shape {records.features.shape[1:]}, the task says "
            f"{records.task.input_shape}"
        )
    if not np.isfinite(records.features).all():
        raise UserError(
            "a feature is not a finite number: remove or impute such records before they "
            "reach the site"
        )
    if records.labels.min() < 0 or records.labels.max() >= records.task.classes:
        raise UserError(
            f"a label is outside 0 to {records.task.classes - 1}: correct it, or the "
            "number of classes"
        )


def _part(records: Records) -> SiteSplit:
    distinct, unit_index = np.unique(records.units, return_inverse=True)
    index = unit_index.astype(np.int64)
    shared = (records.truth, records.groups, distinct, records.published)
    return SiteSplit(records.features, records.labels, index, len(distinct), *shared)
