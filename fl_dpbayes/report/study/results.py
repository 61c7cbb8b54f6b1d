"""The files of a study's folder as validated records and tables."""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import Field, ValidationError

from fl_dpbayes.calibration import SummaryPart, Text
from fl_dpbayes.config import PREDICTOR, PREDICTORS, SEED, SHIFT_AXES
from fl_dpbayes.errors import UserError
from fl_dpbayes.report.summary import printable
from fl_dpbayes.report.wording import POINT_PREDICTORS

RECORD_FILE = "study.json"
SHIFT = "shift"
SEVERITY = "severity"
UNSHIFTED = 0
POOLED = ("pooled:", "mean:")
TABLES = ("results", "subgroups", "conformal", "shift_detection", "reliability", "paper")
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
    """`study.json`.

    Attributes:
        axes: Axis -> its values.
        compare: Axes whose values are methods.
        metrics: What is compared, the first one first.
        where: The place of the result table that the answer speaks of.
        focus: Axis -> the value to which the answer keeps.
        baseline: Axis -> the value that the declared baseline has.
        separate: Axes that are not averaged over.
        notes: What differs from the paper.
        seconds: Of all cells together.
    """

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

    Attributes:
        record: `study.json`.
        settings: The study file.
        results: A row for each cell, place and predictor.
        subgroups: The same for subgroups of the records.
        conformal: The same for prediction sets.
        shift_detection: The same for uncertainty at other places.
        reliability: The bins of the reliability diagrams at the study's place.
        paper: Values that a paper prints, beside those measured.
    """

    record: StudyRecord
    settings: Mapping[str, Any]
    results: pd.DataFrame
    subgroups: pd.DataFrame
    conformal: pd.DataFrame
    shift_detection: pd.DataFrame
    reliability: pd.DataFrame = field(default_factory=pd.DataFrame)
    paper: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def metric(self) -> str:
        """What is compared first."""
        return self.record.metrics[0]

    @property
    def axes(self) -> dict[str, list[str]]:
        """Axes that make cells, without the seed, with their labels, in the study file's order."""
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
        """Return the values to which the answer keeps in what it says of an axis.

        Never a value of that axis itself.
        """
        return {
            name: label_text(label) for name, label in self.record.focus.items() if name != axis
        }

    @property
    def baseline(self) -> dict[str, str]:
        """The value of each axis that the declared baseline has; empty where none is declared."""
        return {name: label_text(label) for name, label in self.record.baseline.items()}

    def in_focus(self, axis: str) -> pd.DataFrame:
        """Return the rows at the study's place that the answer's part on an axis speaks of."""
        return rows_at(self.headline, self.focus(axis))

    @property
    def original_site(self) -> str | None:
        """The site of which shifted sites hold the records, where the study says so."""
        return dict(self.settings.get("study") or {}).get("shifted_copy_of")

    def predictors(self, frame: pd.DataFrame) -> list[str]:
        """Return the predictors of a table in reading order, point estimate first."""
        if PREDICTOR not in frame.columns:
            return []
        return predictors_in_order(frame[PREDICTOR].dropna())

    def main_predictor(self) -> str | None:
        """Return the predictor that stands for a method: the posterior where it was measured."""
        predictors = self.predictors(self.headline)
        if "posterior" in predictors:
            return "posterior"
        return predictors[0] if predictors else None

    def words(self, axis: str, label: str) -> str:
        """Name a method: a predictor in words, or the label of an axis."""
        if axis != PREDICTOR:
            return label
        samples = rows_at(self.results, {PREDICTOR: label}).get("samples", ())
        names = POINT_PREDICTORS if set(samples) == {1} else PREDICTORS
        return names.get(label, label)

    def methods(self, axis: str) -> list[str]:
        """Return the values of an axis, or the predictors."""
        return self.predictors(self.headline) if axis == PREDICTOR else self.axes.get(axis, [])


def predictors_in_order(predictors: Iterable[str]) -> list[str]:
    """Return predictors once each, in reading order; unknown ones last."""
    distinct = dict.fromkeys(predictors)
    ordered = [name for name in PREDICTORS if name in distinct]
    return ordered + [name for name in distinct if name not in PREDICTORS]


def rows_at(frame: pd.DataFrame, labels: Mapping[str, str]) -> pd.DataFrame:
    """Select the rows that have these labels; none where the table has no such column."""
    for name, label in labels.items():
        frame = frame[frame[name] == label] if name in frame.columns else frame.iloc[:0]
    return frame


def label_text(value: object) -> str:
    """Write the label of an axis' value so that tables and the study's record agree.

    100.0 and "100" are "100".
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value)
    try:
        return f"{float(str(value)):.12g}"
    except ValueError:
        return str(value)


def read_study(folder: Path) -> StudyResults:
    """Read `study.json`, `study.toml` and the tables of a study's folder.

    Raises:
        UserError: If a file is missing or damaged.
    """
    path = folder / RECORD_FILE
    remedy = f"write it again with  fl-dpbayes study --resume {folder}"
    try:
        record = StudyRecord.model_validate(printable(json.loads(path.read_text(encoding="utf-8"))))
        settings = tomllib.loads((folder / "study.toml").read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}: {remedy}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path} is no study's record: {key}: {first['msg']}: {remedy}") from None
    except ValueError as error:
        raise UserError(f"{path} or study.toml beside it is damaged ({error}): {remedy}") from None
    axes = [name for name in record.axes if name not in (SEED, *SHIFT_AXES)]
    try:
        tables = {name: _read_table(folder / f"{name}.csv", axes) for name in TABLES}
    except (OSError, ValueError) as error:
        raise UserError(f"a table in {folder} is damaged ({error}): {remedy}") from None
    if record.cells.finished and tables["results"].empty:
        raise UserError(f"{folder} has neither results.csv nor results.parquet: {remedy}")
    return StudyResults(record=record, settings=settings, **tables)


def _read_table(path: Path, axes: Iterable[str]) -> pd.DataFrame:
    parquet = path.with_suffix(".parquet")
    if path.is_file() and path.read_text(encoding="utf-8").strip():
        # A label such as "none" or "null" is a label.
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    elif parquet.is_file():
        frame = pd.read_parquet(parquet)
    else:
        return pd.DataFrame()
    for name in (*axes, SHIFT, "value"):
        if name in frame.columns:
            frame[name] = [label_text(value) for value in frame[name]]
    for name in NUMBERS:
        if name in frame.columns:
            frame[name] = pd.to_numeric(frame[name], errors="coerce")
    return frame
