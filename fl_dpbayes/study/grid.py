"""From a study to its cells: one validated scenario for each combination of the axes' values."""

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from fl_dpbayes.calibration import CalibrationValues
from fl_dpbayes.config import (
    PATH_KEYS,
    PREDICTOR,
    SEED,
    AxisValue,
    Scenario,
    Study,
    read_record,
    set_key,
    with_absolute_paths,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.version import __version__

# What a study may compare, and a paper print: each number that is measured of a site.
COLUMNS = tuple(
    name
    for name, field in CalibrationValues.model_fields.items()
    if field.annotation == (float | None)
)
MAX_CELLS = 10_000
DIGEST_CHARACTERS = 16
# Sections of a scenario that decide what its sites' records are.
KEYS_OF_RECORDS = {"data", "partition", "sites", "seed"}


@dataclass(frozen=True)
class StudyCell:
    """One run of a study.

    Attributes:
        digest: Names its file.
        labels: Axis -> what the tables call its value.
        scenario: What is run.
        shift_labels: Site that the shift axes make -> what the tables call its kind of shift.
    """

    digest: str
    labels: Mapping[str, Any]
    scenario: Scenario
    shift_labels: Mapping[str, str]

    @property
    def title(self) -> str:
        """The cell in one line."""
        return ", ".join(f"{name} {label}" for name, label in self.labels.items())


def study_cells(study: Study) -> list[StudyCell]:
    """Expand the grid and validate every cell.

    Args:
        study: The study.

    Returns:
        The cells. Those that share their records follow each other, so that features which are
        computed once stay in the cache.

    Raises:
        UserError: If something else than a metric is compared, there are too many cells, one is no
            valid scenario, or two are the same.
    """
    _check_metrics(study)
    count = prod(len(axis.values) for axis in study.axes)
    if count > MAX_CELLS:
        raise UserError(
            f"study {study.name!r} has {count} cells: at most {MAX_CELLS} are allowed, so "
            "shorten an axis"
        )
    combinations = itertools.product(*(axis.values for axis in study.axes))
    cells = [_cell(study, values) for values in combinations]
    _check_different(study, cells)
    cells_by_records: dict[str, list[StudyCell]] = {}
    for cell in cells:
        records = cell.scenario.model_dump_json(include=KEYS_OF_RECORDS)
        cells_by_records.setdefault(records, []).append(cell)
    return [cell for sharing in cells_by_records.values() for cell in sharing]


def _check_metrics(study: Study) -> None:
    for name in study.section.metrics:
        if name not in COLUMNS:
            raise UserError(
                f"study {study.name!r}: study: metrics: {name!r} is no metric: choose among "
                f"{', '.join(COLUMNS)}"
            )
    printed = (*COLUMNS, "epsilon")
    for published in study.published:
        if published.column not in printed:
            axes = ", ".join([*(axis.name for axis in study.axes), PREDICTOR])
            raise UserError(
                f"study {study.name!r}: paper.values has {published.column} = "
                f"{published.value:g}: it must be an axis ({axes}), site, or a number of "
                f"{', '.join(printed)}"
            )


def _check_different(study: Study, cells: Sequence[StudyCell]) -> None:
    cell_of_digest: dict[str, StudyCell] = {}
    for cell in cells:
        twin = cell_of_digest.setdefault(cell.digest, cell)
        if twin is not cell:
            raise UserError(
                f"study {study.name!r}: the cells ({twin.title}) and ({cell.title}) are the same "
                "scenario: remove one of the values by which they differ"
            )


def _digest(scenario: Scenario) -> str:
    """Name a cell by the SHA-256 of its scenario.

    Where its records lie, and what its processes may use, are not part of it.
    """
    content = _without_places(scenario.model_dump(mode="json", exclude={"resources"}))
    text = json.dumps([content, __version__], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: Path(item).name
            if key in PATH_KEYS and isinstance(item, str)
            else _without_places(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_without_places(item) for item in value]
    return value


def _cell(study: Study, values: Sequence[AxisValue]) -> StudyCell:
    labels = {axis.name: value.label for axis, value in zip(study.axes, values, strict=True)}
    content = copy.deepcopy(dict(study.scenario))
    settings = [item for value in values for item in value.settings.items()]
    title = ", ".join(f"{name} {label}" for name, label in labels.items())
    origin = f"study {study.name!r}, cell ({title})"
    set_keys = {key for key, _ in settings}
    # A whole section first, then keys in it.
    for key, value in sorted(settings, key=lambda item: len(item[0])):
        new_value = None if value == {} else value
        set_key(content, key, new_value, set_keys, f"{origin}: {'.'.join(key)}")
        simulation = content.get("simulation")
        if key == (SEED,) and isinstance(simulation, dict) and "insecure_seed" in simulation:
            simulation["insecure_seed"] = value
    shift_labels = _add_shifted_sites(content, study)
    scenario = with_absolute_paths(read_record(Scenario, content, origin))
    return StudyCell(
        digest=_digest(scenario), labels=labels, scenario=scenario, shift_labels=shift_labels
    )


def _add_shifted_sites(content: dict[str, Any], study: Study) -> dict[str, str]:
    """Give the run a shifted copy of a site for each combination of the shift axes' values.

    Returns what the study calls the kind of each.
    """
    labels: dict[str, str] = {}
    if not study.shift_axes:
        return labels
    for values in itertools.product(*(axis.values for axis in study.shift_axes)):
        shift: dict[str, Any] = {}
        for value in values:
            ((key, setting),) = value.settings.items()
            shift |= setting if isinstance(setting, dict) else {key[-1]: setting}
        name = "-".join(str(value.label) for value in values)
        labels[name] = str(values[0].label)
        sites = content.setdefault("sites", {})
        copied = sites.get(study.section.shifted_copy_of)
        prevalence = copied.get("prevalence") if isinstance(copied, dict) else None
        sites[name] = {
            "role": "shifted",
            "records_of": study.section.shifted_copy_of,
            "shift": shift,
        }
        # A declared prevalence is that of the records before the shift; an estimate is made anew.
        if prevalence == "estimated":
            sites[name]["prevalence"] = prevalence
    return labels
