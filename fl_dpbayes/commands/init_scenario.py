"""What `fl-dpbayes init` writes: a complete scenario for one's own table or images, to be read."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
from pydantic import ValidationError

from fl_dpbayes.commands.event import Event, event_among
from fl_dpbayes.config import (
    ImageFolder,
    Role,
    class_keys,
    column_hint,
    counted,
    explain,
    load_scenario,
    site_name,
)
from fl_dpbayes.data.sources.images import IMAGE_SUFFIXES, found_names, image_name
from fl_dpbayes.data.sources.table import MISSING, column_texts, read_table, site_names
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.files.templates import templates

MOST_CATEGORIES = 10
# Fewer privacy units than this are not trained on.
LEAST_UNITS = 20
# Below this share of values that are no date, a column of text holds dates.
MOST_NO_DATES = 0.1
# Height and width of images, in pixels.
SIDE = 28
IMAGE_CLIP_NORM = 2.0
# Lines of the template for tables -> what images need in their place.
IMAGE_LINES = {
    'kind = "table"': 'kind = "images"',
    "of a table of your own": "of images of your own",
    "has the rows that carry its name": "has the images whose path names it",
    'kind = "logistic"   # or "mlp", with hidden = [32]': (
        'kind = "logistic"   # or '
        '"cnn"\nfeatures = { kind = "scattering" }   # fixed, so that it costs no privacy'
    ),
}


class Scaling(NamedTuple):
    """A feature is (value - center) / scale."""

    center: float
    scale: float


@dataclass(frozen=True)
class ProposedFeatures:
    """A table's columns by what they hold.

    Attributes:
        numbers: Column of numbers -> its scaling.
        categories: Column of words -> its values.
        missing: Column of numbers with gaps -> what fills them.
        left_out: Column that is no feature -> why.
    """

    numbers: dict[str, Scaling] = field(default_factory=dict)
    categories: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


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
    """

    paths: Sequence[Path]
    site: str
    label: str | None = None
    unit: str | None = None
    event: str | None = None


@dataclass(frozen=True)
class DataDescription:
    """What a look at the data found out for the scenario's file.

    Attributes:
        paths: Where the data lie; a folder of images alone.
        sites: The sites that have units enough.
        source_lines: Lines of `data.source` after its path.
        unit: What a privacy unit is called.
        label: What is predicted, in words.
        clip_norm: Clip norm of a record's gradient.
        summary: The data's size in words.
        notes: What its reader should know first, a line each.
    """

    paths: Sequence[Path]
    sites: Sequence[ProposedSite]
    source_lines: Sequence[str]
    unit: str
    label: str
    clip_norm: float
    summary: str
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Proposal:
    """What a written scenario proposes, in words for who asked for it.

    Attributes:
        notes: What to look at first, a line each.
        summary: What was written, and what to type next.
    """

    notes: Sequence[str]
    summary: str


def propose_scenario(choices: DataChoices, out: Path | None) -> Proposal:
    """Write a commented scenario for tables or images, after a look at them on this machine.

    Args:
        choices: Where the data lie, and what their columns are.
        out: The file to write; None: the data's name with .toml.

    Returns:
        What was decided, to be told.

    Raises:
        UserError: If the data or a column cannot be used, or the file exists.
    """
    first_path = choices.paths[0]
    out = Path(f"{first_path.stem}.toml") if out is None else out
    if out.exists():
        raise UserError(f"{out} exists already: give another name by --out, nothing is overwritten")
    if first_path.is_dir():
        description = _describe_images(choices)
        text = _filled_template(description, out)
        for table_line, image_line in IMAGE_LINES.items():
            text = text.replace(table_line, image_line)
    else:
        description = _describe_table(choices)
        text = _filled_template(description, out)
    write_atomically(out, text)
    load_scenario(str(out))
    trained = sum(proposed.role == "train" for proposed in description.sites)
    return Proposal(
        notes=description.notes,
        summary=(
            f"wrote {out}: {trained} hospitals train, {len(description.sites) - trained} held "
            f"out, {description.summary}; read it, then:  fl-dpbayes simulate {out}"
        ),
    )


def proposed_features(table: pandas.DataFrame) -> ProposedFeatures:
    """Look at each column of a table, and say what feature it may be.

    Args:
        table: One row per record, without labels, sites and units.

    Returns:
        Numbers with a round center and scale, words of few values, and useless columns.

    Raises:
        UserError: If no column is a feature.
    """
    features = ProposedFeatures()
    for name, given_column in table.items():
        column = given_column.convert_dtypes()
        reason = _reason_to_leave_out(column)
        if reason:
            features.left_out[name] = reason
        elif _is_numeric(column):
            features.numbers[name] = _scaling(column.dropna().astype(float))
            if column.isna().any():
                features.missing[name] = features.numbers[name].center
        else:
            features.categories[name] = []
    if not features.numbers and not features.categories:
        raise UserError(
            "no column is left to be a feature: give a table with numbers or words of few values"
        )
    return features


def proposed_delta(most_units: int) -> str:
    """Propose the largest power of ten below 1 / (2 n), for the largest site's n units."""
    return f"1e-{int(np.ceil(np.log10(2 * most_units)))}"


def proposed_clip_norm(features: int) -> float:
    """Propose about the length of a record's gradient in logistic regression on scaled features."""
    return float(f"{np.sqrt(1 + features / 2):.1g}")


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


def toml_value(value: object) -> str:
    """Write a value as inline TOML, whose strings, numbers and lists are those of JSON."""
    if isinstance(value, dict):
        pairs = [f"{json.dumps(name)} = {toml_value(item)}" for name, item in value.items()]
        return "{ " + ", ".join(pairs) + " }"
    return json.dumps(value, ensure_ascii=False)


def _describe_images(choices: DataChoices) -> DataDescription:
    folder = choices.paths[0]
    if len(choices.paths) > 1 or choices.label is not None or choices.event is not None:
        raise UserError(
            f"--from {folder} is a folder of images: give it alone, its sub-folders are the "
            "labels, in alphabetical order, and of two the second is the event"
        )
    site = choices.site
    unit = choices.unit
    try:
        source = ImageFolder(
            path=folder, height=SIDE, width=SIDE, site_pattern=site, patient_pattern=unit
        )
    except ValidationError as error:
        raise UserError(f"--site, --unit: {explain(error, ImageFolder)}") from None
    paths = [
        path for path in sorted(folder.glob("*/**/*")) if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not paths:
        raise UserError(f"image folder {folder} has no images ({', '.join(IMAGE_SUFFIXES)})")
    units = found_names(source, paths, "patient_pattern")
    if not units:
        units = [image_name(source, path) for path in paths]
    table = pandas.DataFrame({"site": found_names(source, paths, "site_pattern"), "unit": units})
    sizes = table.drop_duplicates()["site"].value_counts()
    names = site_names(table["site"].to_numpy(dtype=np.str_), f"--site {site}: the pattern")
    unit_line = (
        "# patient_pattern: every image is another patient. If patients have several, find theirs."
        if unit is None
        else f"patient_pattern = {toml_value(unit)}"
    )
    source_lines = [
        f"height = {SIDE}   # every image is resized to this",
        f"width = {SIDE}",
        f"site_pattern = {toml_value(site)}",
        unit_line,
    ]
    labels = source.names_of_classes
    return DataDescription(
        paths=[folder],
        sites=_proposed_sites(sizes, names),
        source_lines=source_lines,
        unit=source.unit,
        label=" or ".join(labels),
        clip_norm=IMAGE_CLIP_NORM,
        summary=f"{len(paths)} images of {source.task.outcome.description}",
    )


def _describe_table(choices: DataChoices) -> DataDescription:
    label = choices.label
    site = choices.site
    unit = choices.unit
    if label is None:
        raise UserError("--label is missing: name the column of what is to be predicted")
    paths = choices.paths
    data = paths[0] if len(paths) == 1 else tuple(paths)
    columns = {"--label": label, "--site": site}
    if unit is not None:
        columns["--unit"] = unit
    table = read_table(data, tuple(columns.values()))
    check_columns(table, columns, str(data))
    features = proposed_features(table.drop(columns=list(columns.values())))
    # Read again as text, in the letters that a simulation will meet.
    words = read_table(data, tuple(features.categories))
    for name in features.categories:
        values = set(map(str, column_texts(words[name])))
        features.categories[name] = sorted(values, key=lambda value: (value == MISSING, value))
    site_of_unit = table[site] if unit is None else table.drop_duplicates([site, unit])[site]
    names = site_names(table[site].to_numpy(dtype=np.str_), f"--site {site}: the column")
    event = event_among(table[label], choices.event)
    class_names = sorted_texts(table[label]) if event is None else event.class_names
    keys = class_keys(class_names, f"--label {label}")
    inputs = len(features.numbers) + len(features.missing)
    inputs += sum(map(len, features.categories.values()))
    used_columns = len(features.numbers) + len(features.categories)
    summary = f"{inputs} features of {used_columns} columns"
    if features.left_out:
        summary += f", {counted(len(features.left_out), 'column')} left out (the file says why)"
    return DataDescription(
        paths=paths,
        sites=_proposed_sites(site_of_unit.value_counts(), names),
        source_lines=[
            *_label_lines(keys, label, event),
            f"site_column = {toml_value(site)}",
            _unit_line(unit),
            *_feature_lines(features),
        ],
        unit=unit or "record",
        label=label,
        clip_norm=proposed_clip_norm(inputs),
        summary=summary,
        notes=[] if event is None else [event.sentence],
    )


def _filled_template(description: DataDescription, out: Path) -> str:
    folder = out.resolve().parent
    paths = [os.path.relpath(path.resolve(), folder) for path in description.paths]
    site_tables = [
        f"[sites.{json.dumps(site.name)}]   # {site.units} {description.unit}s\n"
        f'role = "{site.role}"\n'
        for site in description.sites
    ]
    return templates("init")["scenario.toml"].format(
        file=out.name,
        path=toml_value(paths[0] if len(paths) == 1 else paths),
        clip_norm=description.clip_norm,
        name=json.dumps(site_name(out.stem) or "own"),
        description=toml_value(f"{description.label} at {len(description.sites)} hospitals"),
        source="\n".join(description.source_lines),
        unit=description.unit,
        delta=proposed_delta(max(site.units for site in description.sites)),
        sites="".join(site_tables),
    )


def _reason_to_leave_out(column: pandas.Series) -> str:
    """Say why a column is no feature; "" where it is one."""
    values = column.nunique()
    if values < 2:
        return "one value in every row"
    if _is_numeric(column):
        if values == len(column) and pandas.api.types.is_integer_dtype(column):
            return "another whole number in every row: add it if it is a measurement"
        return ""
    if values <= MOST_CATEGORIES:
        return ""
    dates = pandas.to_datetime(column.astype(str), errors="coerce", format="mixed", dayfirst=True)
    if dates.isna().mean() < MOST_NO_DATES:
        return "dates: write a number of days, for example of the stay, to use it"
    return f"{values} values of text: group them to {MOST_CATEGORIES} or fewer to use it"


def _is_numeric(column: pandas.Series) -> bool:
    types = pandas.api.types
    return types.is_numeric_dtype(column) and not types.is_bool_dtype(column)


def _scaling(numbers: pandas.Series) -> Scaling:
    """Propose a scale of one digit, and a center rounded to the place of that digit.

    The center stays within a scale of the records' median.
    """
    if set(numbers) <= {0.0, 1.0}:
        return Scaling(center=0.0, scale=1.0)
    scale = float(f"{numbers.std():.0e}") or 1.0
    places = -int(np.floor(np.log10(scale)))
    return Scaling(center=round(float(numbers.median()), places), scale=scale)


def _proposed_sites(sizes: pandas.Series, names: dict[str, str]) -> list[ProposedSite]:
    """Give each site of enough units a role, largest first; of three and more the last is held out.

    `sizes`: number of units by site, falling. `names`: what the records call a site -> its name.
    """
    large = [(site, int(units)) for site, units in sizes.items() if units >= LEAST_UNITS]
    if not large:
        raise UserError(
            f"no site has {LEAST_UNITS} rows or units, the least to train on: join small sites"
        )
    training = len(large) - 1 if len(large) > 2 else len(large)
    return [
        ProposedSite(
            name=names[str(site)], role="train" if place < training else "held_out", units=units
        )
        for place, (site, units) in enumerate(large)
    ]


def _label_lines(keys: Mapping[str, Any], label: str, event: Event | None) -> list[str]:
    lines = [f"label = {toml_value(label)}"]
    if event is not None:
        lines.append(f"# The event is {toml_value(event.name)} ({event.reason}): risks are of it.")
    lines.append(f"classes = {keys['classes']}")
    if keys["class_names"]:
        last = "" if event is None else "   # the event comes last"
        lines.append(f"class_names = {toml_value(keys['class_names'])}{last}")
    return lines


def _unit_line(unit: str | None) -> str:
    if unit is None:
        return (
            "# unit_column: every row is taken for another patient. If patients have several "
            "rows, name theirs."
        )
    return f"unit_column = {toml_value(unit)}"


def _feature_lines(features: ProposedFeatures) -> list[str]:
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
    if features.missing:
        lines.append(
            "# What stands in where a value is missing; one more feature says that it was."
        )
        lines.append(f"missing = {toml_value(features.missing)}")
    if features.categories:
        lines.append("# One feature for each value; a value that is not named here is refused.")
        lines.append(f"categories = {toml_value(features.categories)}")
    return lines
