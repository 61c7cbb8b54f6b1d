"""A look at one's own table, for a scenario."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from fl_dpbayes.commands.column_decisions import ColumnDecision, feature_decisions
from fl_dpbayes.commands.column_features import (
    LeftOut,
    ProposedFeatures,
    as_numbers,
    check_any_feature,
    group_rare_values,
    proposed_features,
)
from fl_dpbayes.commands.default_settings import DEFAULTS
from fl_dpbayes.commands.event import Event, event_among
from fl_dpbayes.commands.privacy_units import guessed_unit, is_patient_column
from fl_dpbayes.commands.scenario_draft import (
    ALLOW_SHARED_UNITS,
    LEAST_UNITS,
    SHARED_UNITS_LINES,
    DataChoices,
    DataDescription,
    proposed_sites,
    toml_value,
)
from fl_dpbayes.config import class_keys, column_hint, counted
from fl_dpbayes.data.shared_units import check_shared_units, shared_units
from fl_dpbayes.data.sources.table import (
    DATE_FORMS,
    MISSING,
    column_dates,
    column_texts,
    days_since,
    read_table,
    row_place,
    site_names,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.templates import templates

PATIENTS_LEFT_OUT = "patients by its name, which are no measurement: name the right one by --unit"
# A table's files, as `read_table` takes them.
Files = Path | tuple[Path, ...]


@dataclass(frozen=True)
class _Units:
    """Whose privacy is counted.

    Attributes:
        line: What the scenario's source says of it.
        decisions: What is told of it.
        data_lines: What the scenario says of units at several sites.
    """

    line: str
    decisions: list[ColumnDecision]
    data_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class _LabelledTable:
    """A table, and which of its columns are no features.

    Attributes:
        data: Its files.
        rows: A row for each record; label, site and unit are text.
        label: The column of labels.
        site: The column of sites.
        unit: The column of privacy units; None where each row is one.
    """

    data: Files
    rows: pandas.DataFrame
    label: str
    site: str
    unit: str | None

    @property
    def candidates(self) -> pandas.DataFrame:
        """The columns that may be features."""
        used = [self.label, self.site, self.unit]
        return self.rows.drop(columns=[name for name in used if name is not None])

    @property
    def site_sizes(self) -> pandas.Series:
        """The number of privacy units by site, falling."""
        units = self.rows
        if self.unit is not None:
            units = units.drop_duplicates([self.site, self.unit])
        return units[self.site].value_counts()


def describe_table(choices: DataChoices) -> DataDescription:
    """Look at a table, or several of the same columns.

    Args:
        choices: Where it lies, and what its columns are.

    Raises:
        UserError: If the table or a column cannot be used.
    """
    table = _read_labelled(choices)
    label = table.label
    labels = table.rows[label]
    units = _about_units(table, choices)
    event = event_among(labels, chosen=choices.event)
    class_names = sorted_texts(labels) if event is None else event.class_names
    label_keys = class_keys(class_names, f"--label {label}")
    features = _features_of(table.candidates, table.data, choices.days_since)
    site_values = table.rows[table.site].to_numpy(dtype=np.str_)
    names = site_names(site_values, f"--site {table.site}: the column")
    sites = proposed_sites(table.site_sizes, names)
    label_reason = (
        f"{len(class_names)} classes without an order, so no event, and no verdict on risks"
        if event is None
        else event.sentence
    )
    decisions = [
        ColumnDecision(column=label, use="label", reason=label_reason),
        ColumnDecision(column=table.site, use="site", reason=_of_sites(len(sites), table)),
        *units.decisions,
        *feature_decisions(table.candidates, features, choices.days_since),
    ]
    return DataDescription(
        paths=choices.paths,
        sites=sites,
        source_lines=[
            *_label_lines(label_keys, label, event),
            f"site_column = {toml_value(table.site)}",
            units.line,
            *_feature_lines(features, choices.days_since),
        ],
        unit=table.unit or "record",
        label=label,
        clip_norm=DEFAULTS.clip_norm(features.inputs),
        summary=_summary(features),
        data_lines=units.data_lines,
        decisions=decisions,
    )


def check_columns(table: pandas.DataFrame, names: Mapping[str, str], where: str) -> None:
    """Check that columns are there and have no gaps.

    Args:
        table: The table.
        names: Option or argument -> the column that it names.
        where: What the table is called in errors.

    Raises:
        UserError: If a column is absent, or a row has no value in it.
    """
    for option, name in names.items():
        if name not in table.columns:
            raise UserError(
                f"{option} is {name!r}: {where} has no such column: "
                f"{column_hint(name, table.columns)}"
            )
        gaps = int(table[name].isna().sum())
        if gaps:
            raise UserError(
                f"{option} is {name!r}: {gaps} of {len(table)} rows have no value: fill in "
                "or remove them"
            )


def sorted_texts(column: pandas.Series) -> list[str]:
    """Return the values of a column as sorted text, each once."""
    return sorted(set(map(str, column_texts(column))))


def _check_different(columns: Mapping[str, str]) -> None:
    option_of: dict[str, str] = {}
    for option, column in columns.items():
        first = option_of.setdefault(column, option)
        if first != option:
            raise UserError(
                f"{first} and {option} are both {column!r}: name another column by one of them"
            )


def _read_labelled(choices: DataChoices) -> _LabelledTable:
    """Read a table with the columns that a person named, or whose name tells that it is patients.

    Raises:
        UserError: If a column is absent, has gaps, or is named twice.
    """
    data: Files = choices.paths[0] if len(choices.paths) == 1 else tuple(choices.paths)
    if choices.label is None:
        raise UserError(
            "--label is missing: name the column of what is to be predicted; "
            f"{column_hint('', read_table(data).columns)}"
        )
    columns = {"--label": choices.label, "--site": choices.site}
    if choices.unit is not None:
        columns["--unit"] = choices.unit
    _check_different(columns)
    rows = read_table(data, tuple(columns.values()))
    check_columns(rows, columns, str(data))
    unit = choices.unit
    if unit is None:
        unit = guessed_unit(rows, set(columns.values()), LEAST_UNITS)
        if unit is not None:
            # As text: a patient 007 is not a patient 7.
            rows = read_table(data, (*columns.values(), unit))
    return _LabelledTable(data=data, rows=rows, label=choices.label, site=choices.site, unit=unit)


def _about_units(table: _LabelledTable, choices: DataChoices) -> _Units:
    """Say whose privacy is counted.

    Raises:
        UserError: If units stand at several sites and that was not allowed.
    """
    unit = table.unit
    if unit is None:
        line = (
            "# unit_column: every row is taken for another patient. If patients have several "
            "rows, name theirs."
        )
        reason = "each row is another patient; if they have several rows:  --unit COLUMN"
        return _Units(line, [ColumnDecision(column="(no column)", use="unit", reason=reason)])
    line = f"unit_column = {toml_value(unit)}"
    reason = f"{table.rows[unit].nunique():,} patients in {len(table.rows):,} rows"
    if choices.unit is None:
        line += "   # guessed by its name: privacy is counted in these"
        reason += ", guessed by its name; another one:  --unit COLUMN"
    decision = ColumnDecision(column=unit, use="unit", reason=reason)
    shared = shared_units(table.rows[unit], table.rows[table.site])
    check_shared_units(shared, are_allowed=choices.allow_shared_units, allow=ALLOW_SHARED_UNITS)
    if shared is None:
        return _Units(line, [decision])
    reason = f"{shared.fact}: {shared.loss}"
    told = ColumnDecision(column=unit, use="unit", reason=reason)
    return _Units(line, [decision, told], SHARED_UNITS_LINES)


def _of_sites(used: int, table: _LabelledTable) -> str:
    reason = counted(used, "hospital")
    left_out = table.site_sizes.iloc[used:]
    if not left_out.empty:
        units = "rows" if table.unit is None else "patients"
        reason += (
            f"; {left_out.sum():,} of {table.site_sizes.sum():,} {units} are left out, as their "
            f"{counted(len(left_out), 'hospital')} have fewer than {LEAST_UNITS} each: join small "
            "ones under one name"
        )
    return reason


def _features_of(
    candidates: pandas.DataFrame, data: Files, zeros: Mapping[str, date]
) -> ProposedFeatures:
    """Propose features of the columns that may be some."""
    patients = [name for name in candidates.columns if is_patient_column(name)]
    table = candidates.drop(columns=patients)
    days = {name: _days(table, name, zero) for name, zero in zeros.items()}
    features = proposed_features(as_numbers(table.assign(**days)), measurements=days)
    # Read again as text, in the letters that a simulation will meet.
    many_words = features.many_words
    words = read_table(data, (*features.categories, *many_words))
    for name in features.categories:
        values = set(map(str, column_texts(words[name])))
        features.categories[name] = sorted(values, key=lambda value: (value == MISSING, value))
    group_rare_values(features, words[many_words])
    for name, why in features.unusable.items():
        if why.kind == "dates":
            reason = _how_to_use_dates(candidates[name], name)
            features.unusable[name] = replace(why, reason=reason)
    for name in patients:
        features.unusable[name] = LeftOut(kind="patients", reason=PATIENTS_LEFT_OUT)
    check_any_feature(features)
    return features


def _days(table: pandas.DataFrame, name: str, zero: date) -> pandas.Series:
    """Return a column of dates as days since a day; a value that is no date is refused."""
    if name not in table.columns:
        raise UserError(
            f"--days-since is {name}={zero}: no such column is free for that: "
            f"{column_hint(name, table.columns)}"
        )
    days = days_since(table[name], zero)
    if table[name].isna().all():
        raise UserError(f"--days-since is {name}={zero}: every cell of that column is empty")
    bad = (days.isna() & table[name].notna()).to_numpy()
    if bad.any():
        first = int(bad.argmax())
        raise UserError(
            f"--days-since is {name}={zero}: {row_place(table, first)} has "
            f"{str(table[name].iloc[first])[:60]!r}, which is no date: write dates as {DATE_FORMS}"
        )
    return days


def _how_to_use_dates(column: pandas.Series, name: str) -> str:
    are_readable = column_dates(column).notna().equals(column.notna())
    first = "" if are_readable else f"write them as {DATE_FORMS}, then "
    return (
        f"dates: {first}add  --days-since {shlex.quote(name)}=2020-01-01  with a day that is "
        "known without these records, and the days since then are used"
    )


def _summary(features: ProposedFeatures) -> str:
    used_columns = len(features.numbers) + len(features.categories)
    summary = f"{features.inputs} features of {used_columns} columns"
    if features.unusable:
        summary += f", {counted(len(features.unusable), 'column')} left out"
    return summary


def _label_lines(keys: Mapping[str, Any], label: str, event: Event | None) -> list[str]:
    lines = [f"label = {toml_value(label)}"]
    if event is not None:
        lines.append(f"# The event is {toml_value(event.name)} ({event.reason}): risks are of it.")
    lines.append(f"classes = {keys['classes']}")
    if keys["class_names"]:
        last = "" if event is None else "   # the event comes last"
        lines.append(f"class_names = {toml_value(keys['class_names'])}{last}")
    return lines


def _feature_lines(features: ProposedFeatures, zeros: Mapping[str, date]) -> list[str]:
    """Write the keys of all features, and of each column that is left out the reason."""
    lines = [f"# left out: {json.dumps(name)}, {why}" for name, why in features.left_out.items()]
    lines.append(templates("init")["constants"].rstrip())
    if features.numbers:
        scalings = features.numbers.values()
        centers = [scaling.center for scaling in scalings]
        scales = [scaling.scale for scaling in scalings]
        lines.append(f"features = {toml_value(list(features.numbers))}")
        lines.append(f"centers = {toml_value(centers)}")
        lines.append(f"scales = {toml_value(scales)}")
    if zeros:
        lines.append(
            "# Columns of dates, in days since a day that is known without the records, as the "
            "study's first."
        )
        lines.append(f"days_since = {toml_value(dict(zeros))}")
    if features.missing:
        lines.append(
            "# What stands in where a value is missing; one more feature says that it was."
        )
        lines.append(f"missing = {toml_value(features.missing)}")
    if features.categories:
        lines.append("# One feature for each value; a value that is not named here is refused.")
        lines.append(f"categories = {toml_value(features.categories)}")
    if features.others:
        lines.append(
            "# In these columns, a value that is not named above is this one instead. Edit both."
        )
        lines.append(f"others = {toml_value(features.others)}")
    return lines
