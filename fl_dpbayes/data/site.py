"""From a site file to a site: load, select, shift, split, check the declared units."""

import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import (
    SHARED_RECORDS,
    Role,
    Selection,
    Shift,
    SiteFile,
    Task,
    check_prevalence,
    first_names,
    near_hint,
)
from fl_dpbayes.data.feature_cache import cached_features
from fl_dpbayes.data.records import Records, array_bytes, frozen, load_unscaled, magnitude_warnings
from fl_dpbayes.data.shifts.apply import apply_shift
from fl_dpbayes.data.snapshot import read_snapshot
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT
from fl_dpbayes.privacy import Part, parts_of_units

logger = logging.getLogger("fl_dpbayes.site")

MAX_DECLARATION_ERROR = 0.2
# Of the keyed split, in standard deviations: an honest site passes but for 1 in 10^8 keys.
SPLIT_DEVIATIONS = 6.0


def most_declared(units: int) -> float:
    """Return the largest real number of units for which a site may declare `units`: units / .8.

    Args:
        units: The declared number of privacy units.
    """
    return units / (1 - MAX_DECLARATION_ERROR)


def most_in_part(units: int, ratio: float) -> float:
    """Bound the number of units in a further part of a training site.

        m r + 6 sqrt(m r (1 + r)) + 6,   m = units / .8

    Given the number in one part, that in another is negative binomial.

    Args:
        units: The declared number of privacy units of the training part.
        ratio: r >= 0, the part's share of all units over that of the training part.
    """
    most = most_declared(units) * ratio
    return most + SPLIT_DEVIATIONS * math.sqrt(most * (1 + ratio)) + SPLIT_DEVIATIONS


def most_units(site_file: SiteFile, part: Part) -> float:
    """Bound the real number of units in a part from what the site declares.

    A site that holds more does not load, so a delta below one over the bound is below 1/n for the
    real n.

    Args:
        site_file: What the site declares: its role, units and split.
        part: The part of the site's records.
    """
    if site_file.role != "train" or part == "train":
        return most_declared(site_file.units)
    split = site_file.split
    share = split.test_fraction if part == "test" else split.recalibration_fraction
    train_share = max(1 - split.test_fraction - split.recalibration_fraction, 1e-9)
    return most_in_part(site_file.units, share / train_share)


def is_delta_allowed(site_file: SiteFile, part: Part, delta: float) -> bool:
    """Say whether a delta is below 1/n for every number of units that a part may really hold.

    Args:
        site_file: What the site declares.
        part: The part of the site's records.
        delta: The delta of (epsilon, delta) differential privacy.
    """
    return delta * most_units(site_file, part) < 1


def recalibration_units(site_file: SiteFile) -> int:
    """Return the expected number of units in the recalibration part, 0 without one.

    Args:
        site_file: What the site declares: a public constant follows from public constants.
    """
    split = site_file.split
    share = split.recalibration_fraction
    train_share = 1 - split.test_fraction - share
    if site_file.role != "train" or not share or split.test_fraction + share >= 1:
        return 0
    return max(1, round(site_file.units * share / train_share))


def check_declaration(declared: int, actual: int, unit: str) -> None:
    """Check a site's declared number of units against the real one.

    Args:
        declared: The number that the site file declares.
        actual: The number of units that the site holds.
        unit: What a privacy unit is called, for example "patient".

    Raises:
        UserError: If the site holds no unit, or its declaration is off by more than
            `MAX_DECLARATION_ERROR` of the real number.
    """
    if not actual:
        raise UserError(
            "every record is kept for testing, so nothing is left to train on: lower "
            "split.test_fraction"
        )
    if abs(actual - declared) > MAX_DECLARATION_ERROR * actual:
        step = 10 ** max(len(str(actual)) - 2, 0)
        round_number = actual // step * step
        raise UserError(
            f"units is declared as {declared}, but the site holds {actual} privacy units "
            f"({unit}s): declare a round number within {MAX_DECLARATION_ERROR:.0%} of that, "
            f"for example units = {round_number}"
        )


@dataclass(frozen=True)
class SiteSplit:
    """A site's records for one purpose: training, test or recalibration.

    Attributes:
        features: (N, *input_shape).
        labels: (N,), in 0 .. classes - 1.
        unit_index: (N,), which privacy unit each record belongs to, in 0 .. `unit_count` - 1.
        unit_count: The number of privacy units.
        truth: (N, classes), the probabilities that labels were drawn from, where known.
        groups: Attribute -> (N,) text, each record's subgroup.
        unit_names: (unit_count,), the units' names.
        published: (N,), the risk of class 1 by a published score, where known.
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

    Attributes:
        name: The site's name.
        role: Whether it trains, is held out, or is shifted.
        task: The records' shape and number of classes.
        unit: What a privacy unit is called.
        units: The declared number of units, a public constant.
        train: None at a held-out or shifted site, whose records are all in `test`.
        test: The records that measure calibration.
        shift: The shift in the words of reports, empty without one.
        recalibration: None where the site file keeps no share for it.
        recalibration_units: The number of units that the declared number and the split's shares
            let expect in `recalibration`, a public constant too.
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
    """Build a site from its file; its arrays are read-only.

    The records keep the order of their source, so that a restart finds each at the same place. They
    come from the snapshot that the file names, if it names one. A site is built once in a process,
    while file, source and snapshot stay as they are.

    Args:
        site_file: The site's file, with absolute paths.

    Raises:
        UserError: If records are missing, damaged or not as described, or their number is far from
            the declared one.
        DataChangedError: As `read_snapshot`.
        DataUncheckedError: As `read_snapshot`.
    """
    has_snapshot = site_file.records_file is not None
    records = (
        read_snapshot(site_file)
        if has_snapshot
        else load_unscaled(site_file.source, site_file.selection.part)
    )

    def build() -> Site:
        site_records = records if has_snapshot else prepared(site_file, records)
        return frozen(_with_shared_features(site_file, site_of(site_file, site_records)))

    indices = site_file.selection.indices
    files = () if indices is None else (indices,)
    return KEPT.get(("site", site_file.model_dump_json()), build, array_bytes, files, records)


def _with_shared_features(site_file: SiteFile, site: Site) -> Site:
    """Map the features from a file that processes share, if the environment says so."""
    if not os.environ.get(SHARED_RECORDS):
        return site
    recalibration = site.recalibration
    return replace(
        site,
        train=None if site.train is None else _with_mapped_features(site_file, site, site.train),
        test=_with_mapped_features(site_file, site, site.test),
        recalibration=(
            None if recalibration is None else _with_mapped_features(site_file, site, recalibration)
        ),
    )


def _with_mapped_features(site_file: SiteFile, site: Site, part: SiteSplit) -> SiteSplit:
    # Sampling finds the norms of mapped records anew at each message, since another process may
    # write their file. Where the file cannot be written, or holds something else, each process
    # holds its own records.
    with suppress(OSError):
        mapped = cached_features(
            site_file.cache_folder, site.task, part.features, lambda records: records
        )
        if mapped.dtype == part.features.dtype and np.array_equal(mapped, part.features):
            return replace(part, features=mapped)
    return part


def prepared(site_file: SiteFile, records: Records) -> Records:
    """Select the site's records of its source's, scale and shift them.

    Args:
        site_file: Names the selection and the shift.
        records: All records of the source's official part.

    Raises:
        UserError: If the selection does not fit the records, or they do not allow the shift.
    """
    records = _select(records, site_file.selection).scaled()
    if site_file.shift is None:
        return records
    return apply_shift(records, site_file.shift, np.random.default_rng(site_file.shift_seed))


def site_of(site_file: SiteFile, records: Records) -> Site:
    """Check the site's records and divide them into its parts.

    Args:
        site_file: What the site declares.
        records: The site's records, selected, scaled and shifted.

    Raises:
        UserError: As `load_site`.
    """
    _check_records(records)
    for magnitude_warning in magnitude_warnings(records, site_file.source):
        # To the site's own log, as sizes are computed from records.
        logger.warning(
            "of another size than about 1 after centers and scales: %s",
            dict(magnitude_warning.values)["features"],
        )
    check_prevalence("prevalence", site_file.prevalence, records.task.outcome)
    parts = _parts(site_file, records)
    declared_part = parts.get("train", parts["test"])
    check_declaration(site_file.units, declared_part.unit_count, records.unit)
    for name, part in parts.items():
        most = most_units(site_file, name)
        if part.unit_count > most * (1 + 1e-9):
            raise UserError(
                f"the part for {name} holds {part.unit_count} units, and units = "
                f"{site_file.units} lets expect at most {most:.0f}: correct units"
            )
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


def _parts(site_file: SiteFile, records: Records) -> dict[Part, SiteSplit]:
    if site_file.role != "train":
        return {"test": _part(records)}
    split = site_file.split
    part_of_record = parts_of_units(
        records.units.tolist(), split.key, split.test_fraction, split.recalibration_fraction
    )
    names: list[Part] = ["train", "test"]
    if split.recalibration_fraction:
        names.append("recalibration")
    return {name: _part(records.subset(part_of_record == name)) for name in names}


def shift_label(shift: Shift | None) -> str:
    """Name a shift in the words that reports use; no shift is the empty text.

    Args:
        shift: The site's shift.
    """
    if shift is None:
        return ""
    feature = f" by {shift.feature}" if shift.feature else ""
    return f"{shift.kind}{feature} (severity {shift.severity})"


def _select(records: Records, selection: Selection) -> Records:
    name = selection.natural_site
    if name is not None:
        members = of_natural_site(records, name, f"selection.natural_site is {name!r}")
        records = records.subset(members)
    if selection.indices is not None:
        records = records.subset(_read_indices(selection.indices, len(records)))
    return records


def of_natural_site(records: Records, name: str, key: str) -> npt.NDArray[np.bool_]:
    """Say which records a natural site collected, (N,).

    Args:
        records: N records.
        name: The natural site.
        key: The setting that named the site; error messages begin with it.

    Raises:
        UserError: If there is no such site.
    """
    if records.natural_site is None:
        raise UserError(
            f"{key}, but the source does not say which site a record is from: name a table's "
            "site_column or a folder's site_pattern, or use a source of several hospitals "
            "('stroke', 'heart', 'logistic-2d', 'gaussian-classes', 'radiographs')"
        )
    is_member = records.natural_site == name
    if not is_member.any():
        names = sorted(set(records.natural_site.tolist()))
        hint = near_hint(name, names)
        raise UserError(f"{key}: {hint}choose one of {first_names(names)}")
    return is_member


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
        raise UserError(
            f"selection.indices: {path} holds {indices.min()} to {indices.max()}, allowed are "
            f"0 to {count - 1}: was it made for another source or part?"
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
    outcome = records.task.outcome
    if not outcome.holds(records.labels).all():
        raise UserError(
            f"a label is not allowed: they must be {outcome.allowed}; correct it, or the outcome"
        )


def _part(records: Records) -> SiteSplit:
    unit_names, unit_index = np.unique(records.units, return_inverse=True)
    return SiteSplit(
        features=records.features,
        labels=records.labels,
        unit_index=unit_index.astype(np.int64),
        unit_count=len(unit_names),
        truth=records.truth,
        groups=records.groups,
        unit_names=unit_names,
        published=records.published,
    )
