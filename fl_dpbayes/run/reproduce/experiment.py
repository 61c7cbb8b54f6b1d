"""What an experiment is: cells to be measured, the rows that they give, and the figures of the paper beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from fl_dpbayes.privacy.events import History

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class Cell:
    """One independent piece of work.

    Attributes:
        label: what is run, unique within an experiment and a seed.
        seed: number of the repetition; all randomness of the cell follows from it and the label.
        settings: every constant that the result depends on, JSON values; a change of one asks for a new run.
    """

    label: str
    seed: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """What one method reached in one setting; a cell may give several, which share its training.

    Attributes:
        method: as the paper names it.
        setting: data, budget, clip norm, whatever the paper varies.
        values: metric -> value; undefined is None.
        history: what was done to the records; None: without privacy, epsilon is infinite.
        delta: for which epsilon is stated; needed with a history.
    """

    method: str
    setting: str
    values: Values
    history: History | None = None
    delta: float | None = None


@dataclass(frozen=True)
class Measurement:
    """What a cell found.

    Attributes:
        rows: at least one.
        configurations_tried: how many settings were compared on the validation split before these rows were measured.
        details: JSON values that the figures need, such as histograms and curves.
    """

    rows: tuple[Row, ...]
    configurations_tried: int = 1
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredRow:
    """A row as its cell's file holds it; `privacy` is its account with the history, None without privacy."""

    method: str
    setting: str
    values: Values
    privacy: Mapping[str, Any] | None


@dataclass(frozen=True)
class CellResult:
    """A finished cell as its file holds it."""

    cell: Cell
    rows: tuple[StoredRow, ...]
    configurations_tried: int
    details: Mapping[str, Any]
    seconds: float
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Metric:
    """A column of the table: the key in a row's values, its title, and how many decimal places are shown."""

    name: str
    title: str
    places: int = 4


DrawFigure = Callable[[], Figure]


def no_figures(results: Sequence[CellResult]) -> Mapping[str, DrawFigure]:
    """Draw nothing."""
    return {}


def no_data(folder: Path | None) -> None:
    """Need no data folder."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper, and how it is measured here.

    Attributes:
        name: on the command line.
        title: what is shown.
        source: paper, table, figure.
        metrics: the columns.
        cells: (seed, full) -> the cells of that seed; reduced in size unless `full`.
        measure: (cell, data folder) -> what it found; a pure function at a module's top level, so that another process
            can run it. It chooses by a validation split and measures on the test set once.
        paper: (method, setting) -> the paper's values.
        paper_epsilon: (method, setting) -> the epsilon that the paper states.
        paper_accounting: the method by which the paper counts.
        figures: finished cells -> file stem -> function that draws the figure.
        check_data: (data folder) -> raises UserError where data are missing.
        notes: sentences below the table.
    """

    name: str
    title: str
    source: str
    metrics: tuple[Metric, ...]
    cells: Callable[[int, bool], Sequence[Cell]]
    measure: Callable[[Cell, Path | None], Measurement]
    paper: Mapping[tuple[str, str], Values] = field(default_factory=dict)
    paper_epsilon: Mapping[tuple[str, str], float] = field(default_factory=dict)
    paper_accounting: Literal["gdp", "rdp"] = "gdp"
    figures: Callable[[Sequence[CellResult]], Mapping[str, DrawFigure]] = no_figures
    check_data: Callable[[Path | None], object] = no_data
    notes: tuple[str, ...] = ()
