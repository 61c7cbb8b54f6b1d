"""What a look at one's own data found out, before it is a scenario's file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
import pandas

from fl_dpbayes.commands.column_decisions import ColumnDecision
from fl_dpbayes.config import Role, counted
from fl_dpbayes.errors import UserError

# Fewer privacy units than this are not trained on.
LEAST_UNITS = 20
ALLOW_SHARED_UNITS = "add  --allow-shared-units"
# What a scenario says of patients who stand at several hospitals; their number is not for sharing.
SHARED_UNITS_LINES = (
    "# Some patients stand at several hospitals: each hospital spends an epsilon of its own on "
    "such a patient.",
    "allow_shared_units = true",
)


@dataclass(frozen=True)
class ProposedSite:
    """A site of the scenario to be written, with its number of privacy units."""

    name: str
    role: Role
    units: int


@dataclass(frozen=True)
class DataChoices:
    """What a person says of the data that a scenario is wanted for.

    Attributes:
        paths: CSV or Parquet tables of the same columns, or one folder of images.
        site: The column of sites; of images the pattern that finds the site in a path.
        label: The column of what is to be predicted; None for images, whose sub-folders are it.
        unit: The column of privacy units, or the pattern that finds them; None: each row, or each
            image, is one.
        event: The class of two that is the event; None: the rarer.
        days_since: Column of dates -> the day from which days are counted.
        allow_shared_units: Whether a unit may stand at several sites.
    """

    paths: Sequence[Path]
    site: str
    label: str | None = None
    unit: str | None = None
    event: str | None = None
    days_since: Mapping[str, date] = field(default_factory=dict)
    allow_shared_units: bool = False


@dataclass(frozen=True)
class DataDescription:
    """What a look at the data found out for the scenario's file.

    Attributes:
        paths: Where the data lie; a folder of images alone.
        sites: The sites that have units enough.
        source_lines: Lines of `data.source` after its path.
        data_lines: Further lines of `data`.
        unit: What a privacy unit is called.
        label: What is predicted, in words.
        clip_norm: Clip norm of a record's gradient.
        summary: The data's size in words.
        decisions: What each column of a table is used as.
    """

    paths: Sequence[Path]
    sites: Sequence[ProposedSite]
    source_lines: Sequence[str]
    unit: str
    label: str
    clip_norm: float
    summary: str
    data_lines: Sequence[str] = ()
    decisions: Sequence[ColumnDecision] = ()


def proposed_sites(sizes: pandas.Series, names: dict[str, str]) -> list[ProposedSite]:
    """Give each site of enough units a role, largest first; of three and more the last is held out.

    Args:
        sizes: Number of units by site, falling.
        names: What the records call a site -> its name.

    Raises:
        UserError: If no site has enough units.
    """
    large = [(site, int(units)) for site, units in sizes.items() if units >= LEAST_UNITS]
    if not large:
        raise UserError(
            f"none of {counted(len(sizes), 'hospital')} has {LEAST_UNITS} patients, the least to "
            "train on: join small ones under one name, or name another column by --site"
        )
    training = len(large) - 1 if len(large) > 2 else len(large)
    return [
        ProposedSite(
            name=names[str(site)], role="train" if place < training else "held_out", units=units
        )
        for place, (site, units) in enumerate(large)
    ]


def days_by_column(assignments: Sequence[str]) -> dict[str, date]:
    """Read `COLUMN=DAY` of each option `--days-since`.

    Raises:
        UserError: If one has another form.
    """
    days = {}
    for assignment in assignments:
        column, _, day = assignment.rpartition("=")
        try:
            days[column] = date.fromisoformat(day)
        except ValueError:
            column = ""
        if not column:
            raise UserError(
                f"--days-since is {assignment!r}: write COLUMN=DAY, as admitted=2020-01-01"
            )
    return days


def proposed_delta(most_units: int) -> str:
    """Propose the largest power of ten below 1 / (2 n), for the largest site's n units."""
    return f"1e-{int(np.ceil(np.log10(2 * most_units)))}"


def toml_value(value: object) -> str:
    """Write a value as inline TOML, whose strings, numbers and lists are those of JSON."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict):
        pairs = [f"{json.dumps(name)} = {toml_value(item)}" for name, item in value.items()]
        return "{ " + ", ".join(pairs) + " }"
    return json.dumps(value, ensure_ascii=False)
