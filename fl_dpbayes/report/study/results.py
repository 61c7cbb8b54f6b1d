"""The files of a study's folder as validated records and tables."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field, ValidationError

from fl_dpbayes.config import PREDICTOR, PREDICTORS, SEED, SHIFT_AXES, SummaryPart, Text, printable
from fl_dpbayes.errors import UserError
from fl_dpbayes.report.wording import POINT_PREDICTORS

RECORD_FILE = "study.json"
SHIFT, SEVERITY, UNSHIFTED = "shift", "severity", 0
POOLED = ("pooled:", "mean:")
NUMBERS = ("severity", "n", "samples", "epsilon", "heterogeneity", "seconds", "warnings")


class CellCounts(SummaryPart):
    """How many cells there are, and how they ended."""

    all: int
    finished: int
    failed: int = 0


class FailedCell(SummaryPart):
    """A cell that failed."""

    labels: dict[str, Any] = Field(default_factory=dict)
    error: Text = ""


class StudyRecord(SummaryPart):
    """`study.json`."""

    study: Text
    question: Text = ""
    axes: dict[str, tuple[Any, ...]]
    compare: tuple[str, ...] = ()
    metrics: tuple[str, ...] = Field(min_length=1)
    where: Text
    focus: dict[str, Any] = Field(default_factory=dict)
    baseline: dict[str, Any] = Field(default_factory=dict)
    separate: tuple[str, ...] = ()
    notes: tuple[Text, ...] = ()
    cells: CellCounts
    seconds: float = 0.0
    versions: dict[str, Text] = Field(default_factory=dict)
    failed: tuple[FailedCell, ...] = ()


@dataclass(frozen=True)
class StudyResults:
    """A study as its folder holds it; a table that is not there is empty.

    Labels of axes are texts in every table, as `label_text` writes them.
    """

    record: StudyRecord
    settings: Mapping[str, Any]
    results: pd.DataFrame
    subgroups: pd.DataFrame
    conformal: pd.DataFrame
    shift_detection: pd.DataFrame
    paper: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def metric(self) -> str:
        """What is compared first."""
        return self.record.metrics[0]

    @property
    def axes(self) -> dict[str, list[str]]:
        """Axes that make cells, without the seed, with their labels in the order of the study file."""
        return {
            name: [label_text(value) for value in values]
            for name, values in self.record.axes.items()
            if name not in (SEED, *SHIFT_AXES)
        }

    @property
    def headline(self) -> pd.DataFrame:
        """The rows of the result table at the study's place."""
        return rows_at(self.results, {"site": self.record.where})

    def focus(self, axis: str) -> dict[str, str]:
        """Return the values to which the answer keeps in what it says of an axis: never of that axis itself."""
        return {
            name: label_text(label) for name, label in self.record.focus.items() if name != axis
        }

    @property
    def baseline(self) -> dict[str, str]:
        """The value of each axis that the declared baseline has; empty where none is declared."""
        return {name: label_text(label) for name, label in self.record.baseline.items()}

    def in_focus(self, axis: str) -> pd.DataFrame:
        """Return the rows at the study's place that the answer speaks of where it speaks of an axis."""
        return rows_at(self.headline, self.focus(axis))

    @property
    def original_site(self) -> str | None:
        """The site of which shifted sites hold the records, where the study says so."""
        return dict(self.settings.get("study") or {}).get("shifted_copy_of")

    def predictors(self, frame: pd.DataFrame) -> list[str]:
        """Return the predictors of a table in reading order, point estimate first."""
        return predictors_in_order(frame[PREDICTOR].dropna()) if PREDICTOR in frame.columns else []

    def main_predictor(self) -> str | None:
        """Return the predictor that stands for a method: the averaged posterior where it was measured."""
        found = self.predictors(self.headline)
        return "posterior" if "posterior" in found else next(iter(found), None)

    def words(self, axis: str, label: str) -> str:
        """Name a method: a predictor in words, or the label of an axis."""
        if axis != PREDICTOR:
            return label
        samples = rows_at(self.results, {PREDICTOR: label}).get("samples", ())
        return (POINT_PREDICTORS if set(samples) == {1} else PREDICTORS).get(label, label)

    def methods(self, axis: str) -> list[str]:
        """Return the values of an axis, or the predictors."""
        return self.predictors(self.headline) if axis == PREDICTOR else self.axes.get(axis, [])


def predictors_in_order(found: Iterable[str]) -> list[str]:
    """Return predictors once each, in reading order; unknown ones last."""
    given = dict.fromkeys(found)
    return [name for name in dict.fromkeys((*PREDICTORS, *given)) if name in given]


def rows_at(frame: pd.DataFrame, labels: Mapping[str, str]) -> pd.DataFrame:
    """Select the rows that have these labels; none where the table has no such column."""
    for name, label in labels.items():
        frame = frame[frame[name] == label] if name in frame.columns else frame.iloc[:0]
    return frame


def label_text(value: object) -> str:
    """Write the label of an axis' value so that tables and the study's record agree: 100.0 and "100" are "100"."""
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, bool):
        return str(value)
    try:
        return f"{float(str(value)):.12g}"
    except ValueError:
        return str(value)


def read_study(folder: Path) -> StudyResults:
    """Read `study.json`, `study.toml` and the tables of a study's folder.

    Raises UserError if a file is missing or damaged.
    """
    path = folder / RECORD_FILE
    again = f"write it again with  fl-dpbayes study --resume {folder}"
    try:
        record = StudyRecord.model_validate(printable(json.loads(path.read_text(encoding="utf-8"))))
        settings = tomllib.loads((folder / "study.toml").read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}: {again}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path} is no study's record: {field}: {first['msg']}: {again}") from None
    except ValueError as error:
        raise UserError(f"{path} or study.toml beside it is damaged ({error}): {again}") from None
    axes = [name for name in record.axes if name not in (SEED, *SHIFT_AXES)]
    names = ("results", "subgroups", "conformal", "shift_detection", "paper")
    try:
        tables = {name: _read_table(folder / f"{name}.csv", axes) for name in names}
    except (OSError, ValueError) as error:
        raise UserError(f"a table in {folder} is damaged ({error}): {again}") from None
    if record.cells.finished and tables["results"].empty:
        raise UserError(f"{folder} has neither results.csv nor results.parquet: {again}")
    return StudyResults(record, settings, **tables)


def _read_table(path: Path, axes: Iterable[str]) -> pd.DataFrame:
    if path.is_file() and path.read_text(encoding="utf-8").strip():
        # A label such as "none" or "null" is a label.
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    elif (copy := path.with_suffix(".parquet")).is_file():
        frame = pd.read_parquet(copy)
    else:
        return pd.DataFrame()
    for name in (*axes, SHIFT, "value"):
        if name in frame.columns:
            frame[name] = [label_text(value) for value in frame[name]]
    for name in NUMBERS:
        if name in frame.columns:
            frame[name] = pd.to_numeric(frame[name], errors="coerce")
    return frame
