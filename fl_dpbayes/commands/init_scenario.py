"""What `fl-dpbayes init` writes: a complete scenario for a table of one's own, to be read and corrected by a person."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
from pydantic import ValidationError
from rich.console import Console

from fl_dpbayes.config import ImageFolder, counted, explain, load_scenario, site_name
from fl_dpbayes.data.sources.images import IMAGE_SUFFIXES, found_names, image_name
from fl_dpbayes.data.sources.table import MISSING, column_texts, read_table, site_names
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.files.templates import templates

MOST_CATEGORIES = 10
MOST_CLASSES = 20
LEAST_UNITS = 20
SIDE = 28
IMAGE_LINES = {
    'kind = "table"': 'kind = "images"',
    "of a table of your own": "of images of your own",
    "has the rows that carry its name": "has the images whose path names it",
    'kind = "logistic"   # or "mlp", with hidden = [32]': (
        'kind = "logistic"   # or '
        '"cnn"\nfeatures = { kind = "scattering" }   # fixed, so that it costs no privacy'
    ),
}


@dataclass(frozen=True)
class ProposedFeatures:
    """Columns by what they hold: center and scale, values of words, what fills gaps, and why one is left out."""

    numbers: dict[str, tuple[float, float]]
    categories: dict[str, list[str]]
    missing: dict[str, float]
    left_out: dict[str, str]


def init_scenario(
    data: Sequence[Path],
    label: str | None,
    columns: tuple[str, str | None],
    out: Path | None,
    console: Console,
) -> None:
    """Write a commented scenario for CSV or Parquet tables, or a folder of images, after a look on this machine.

    `columns`: those of sites and of privacy units (None: each row is one); of images the patterns
    that find them in paths. Raises UserError if the data or a column cannot be used, or the file
    exists.
    """
    out = Path(f"{data[0].stem}.toml") if out is None else out
    if out.exists():
        raise UserError(f"{out} exists already: give another name by --out, nothing is overwritten")
    if data[0].is_dir():
        if len(data) > 1 or label is not None:
            raise UserError(
                f"--from {data[0]} is a folder of images: give it alone, its sub-folders "
                "are the labels"
            )
        text, said = _of_images(data[0], columns, out)
    elif label is None:
        raise UserError("--label is missing: name the column of what is to be predicted")
    else:
        text, said = _of_table(data[0] if len(data) == 1 else tuple(data), label, columns, out)
    write_atomically(out, text)
    load_scenario(str(out))
    console.print(
        f"wrote {out}: {said}; read it, then:  fl-dpbayes simulate {out}",
        markup=False,
        soft_wrap=True,
    )


def _of_images(data: Path, patterns: tuple[str, str | None], out: Path) -> tuple[str, str]:
    site, unit = patterns
    try:
        source = ImageFolder(
            path=data, height=SIDE, width=SIDE, site_pattern=site, patient_pattern=unit
        )
    except ValidationError as error:
        raise UserError(f"--site, --unit: {explain(error, ImageFolder)}") from None
    paths = [path for path in sorted(data.glob("*/**/*")) if path.suffix.lower() in IMAGE_SUFFIXES]
    if not paths:
        raise UserError(f"image folder {data} has no images ({', '.join(IMAGE_SUFFIXES)})")
    units = found_names(source, paths, "patient_pattern") or [
        image_name(source, path) for path in paths
    ]
    table = pandas.DataFrame({"site": found_names(source, paths, "site_pattern"), "unit": units})
    sizes = table.drop_duplicates()["site"].value_counts()
    patient = (
        "# patient_pattern: every image is another patient. If patients have several, find theirs."
    )
    keys = [f"height = {SIDE}   # every image is resized to this", f"width = {SIDE}"]
    keys += [
        f"site_pattern = {toml_value(site)}",
        patient if unit is None else f"patient_pattern = {toml_value(unit)}",
    ]
    names = site_names(table["site"].to_numpy(dtype=np.str_), f"--site {site}: the pattern")
    classes = source.class_names
    text, said = _filled(
        out, (sizes, names), data, keys, unit=source.unit, label=" or ".join(classes), clip_norm=2.0
    )
    for given, images in IMAGE_LINES.items():
        text = text.replace(given, images)
    return text, f"{said}, {len(paths)} images of {len(classes)} classes"


def _of_table(
    data: Path | tuple[Path, ...], label: str, columns: tuple[str, str | None], out: Path
) -> tuple[str, str]:
    (site, unit), named = columns, [name for name in (label, *columns) if name is not None]
    table = read_table(data, tuple(named))
    check_columns(
        table,
        {"--label": label, "--site": site} | ({} if unit is None else {"--unit": unit}),
        str(data),
    )
    found = proposed_features(table.drop(columns=named))
    # As text, in the letters that a simulation will meet.
    words = read_table(data, tuple(found.categories))
    for name in found.categories:
        values = set(map(str, column_texts(words[name])))
        found.categories[name] = sorted(values, key=lambda value: (value == MISSING, value))
    sizes = (
        table[site] if unit is None else table.drop_duplicates([site, unit])[site]
    ).value_counts()
    names = site_names(table[site].to_numpy(dtype=np.str_), f"--site {site}: the column")
    features = len(found.numbers) + len(found.missing) + sum(map(len, found.categories.values()))
    text, said = _filled(
        out,
        (sizes, names),
        data,
        _source(table, label, columns, found),
        unit=unit or "record",
        label=label,
        clip_norm=proposed_clip_norm(features),
    )
    left = (
        f", {counted(len(found.left_out), 'column')} left out (the file says why)"
        if found.left_out
        else ""
    )
    return (
        text,
        (
            f"{said}, {features} features of {len(found.numbers) + len(found.categories)} "
            f"columns{left}"
        ),
    )


def _filled(
    out: Path,
    sites: tuple[pandas.Series, dict[str, str]],
    data: Path | tuple[Path, ...],
    source: list[str],
    *,
    unit: str,
    label: str,
    clip_norm: float,
) -> tuple[str, str]:
    """Fill the template, `sites` being their sizes and names.

    Return it with the number of hospitals by role.
    """
    roles, folder = _roles(*sites), out.resolve().parent
    places = [
        os.path.relpath(place.resolve(), folder)
        for place in ([data] if isinstance(data, Path) else data)
    ]
    text = templates("init")["scenario.toml"].format(
        file=out.name,
        path=toml_value(places[0] if isinstance(data, Path) else places),
        clip_norm=clip_norm,
        name=json.dumps(site_name(out.stem) or "own"),
        description=toml_value(f"{label} at {len(roles)} hospitals"),
        source="\n".join(source),
        unit=unit,
        delta=proposed_delta(int(sites[0].max())),
        sites="".join(
            f'[sites.{json.dumps(name)}]   # {n} {unit}s\nrole = "{role}"\n'
            for name, role, n in roles
        ),
    )
    trained = sum(role == "train" for _, role, _ in roles)
    return text, f"{trained} hospitals train, {len(roles) - trained} held out"


def proposed_features(table: pandas.DataFrame) -> ProposedFeatures:
    """Look at each column: numbers get a round center and scale, words their values.

    A useless one is left out.
    """
    found = ProposedFeatures({}, {}, {}, {})
    for name, column in table.items():
        column, values = column.convert_dtypes(), column.nunique()
        if values < 2:
            found.left_out[name] = "one value in every row"
        elif pandas.api.types.is_numeric_dtype(column) and not pandas.api.types.is_bool_dtype(
            column
        ):
            if values == len(table) and pandas.api.types.is_integer_dtype(column):
                found.left_out[name] = (
                    "another whole number in every row: add it if it is a measurement"
                )
                continue
            numbers = column.dropna().astype(float)
            binary = set(numbers) <= {0.0, 1.0}
            found.numbers[name] = (
                (0.0, 1.0) if binary else _rounded(numbers.median(), numbers.std())
            )
            if column.isna().any():
                found.missing[name] = found.numbers[name][0]
        elif values <= MOST_CATEGORIES:
            found.categories[name] = []
        elif (
            pandas.to_datetime(column.astype(str), errors="coerce", format="mixed", dayfirst=True)
            .isna()
            .mean()
            < 0.1
        ):
            found.left_out[name] = (
                "dates: write a number of days, for example of the stay, to use it"
            )
        else:
            found.left_out[name] = (
                f"{values} values of text: group them to {MOST_CATEGORIES} or fewer to use it"
            )
    if not found.numbers and not found.categories:
        raise UserError(
            "no column is left to be a feature: give a table with numbers or words of few values"
        )
    return found


def proposed_delta(most_units: int) -> str:
    """Return the largest power of ten that is below half of one over the largest site's number of units."""
    return f"1e-{int(np.ceil(np.log10(2 * most_units)))}"


def proposed_clip_norm(features: int) -> float:
    """Return about the length of a record's gradient in logistic regression on centred and scaled features."""
    return float(f"{np.sqrt(1 + features / 2):.1g}")


def _rounded(center: float, scale: float) -> tuple[float, float]:
    """Round a scale to one digit, and a center to the place of that digit: it stays within a scale of the records'."""
    scale = float(f"{scale:.0e}") or 1.0
    return round(float(center), -int(np.floor(np.log10(scale)))), scale


def _roles(sizes: pandas.Series, names: dict[str, str]) -> list[tuple[str, str, int]]:
    """Give each site of enough units a role, largest first: of three and more the smallest is held out."""
    large = [
        (names[str(site)], int(count)) for site, count in sizes.items() if count >= LEAST_UNITS
    ]
    if not large:
        raise UserError(
            f"no site has {LEAST_UNITS} rows or units, the least to train on: join small sites"
        )
    last = len(large) - 1 if len(large) > 2 else len(large)
    return [
        (name, "train" if place < last else "held_out", count)
        for place, (name, count) in enumerate(large)
    ]


def _source(
    table: pandas.DataFrame, label: str, columns: tuple[str, str | None], found: ProposedFeatures
) -> list[str]:
    """Write the keys of `data.source` after its path, each column that is left out with the reason."""
    site, unit = columns
    classes = class_texts(table[label], f"--label {label}")
    lines = [
        f"label = {toml_value(label)}",
        f"classes = {len(classes)}",
        f"site_column = {toml_value(site)}",
    ]
    if classes != [str(number) for number in range(len(classes))]:
        lines.append(
            f"class_names = {toml_value(classes)}   # in their order; of two, risks are "
            "of the second"
        )
    patient = (
        "# unit_column: every row is taken for another patient. If patients have several "
        "rows, name theirs."
    )
    lines.append(patient if unit is None else f"unit_column = {toml_value(unit)}")
    lines += [f"# left out: {json.dumps(name)}, {why}" for name, why in found.left_out.items()]
    lines.append(templates("init")["constants"].rstrip())
    if found.numbers:
        centers, scales = zip(*found.numbers.values(), strict=True)
        names = (("features", list(found.numbers)), ("centers", centers), ("scales", scales))
        lines += [f"{key} = {toml_value(values)}" for key, values in names]
    if found.missing:
        lines.append(
            "# What stands in where a value is missing; one more feature says that it was."
        )
        lines.append(f"missing = {toml_value(found.missing)}")
    if found.categories:
        lines.append("# One feature for each value; a value that is not named here is refused.")
        lines.append(f"categories = {toml_value(found.categories)}")
    return lines


def check_columns(table: pandas.DataFrame, names: Mapping[str, str], where: str) -> None:
    """Raise UserError if one of the columns that are named by options or arguments is absent or has gaps."""
    for said, name in names.items():
        if name not in table.columns:
            there = ", ".join(map(str, table.columns))
            raise UserError(
                f"{said} is {name!r}: {where} has no such column, its columns are {there}"
            )
        if empty := int(table[name].isna().sum()):
            raise UserError(
                f"{said} is {name!r}: {empty} of {len(table)} rows have no value: fill in "
                "or remove them"
            )


def class_texts(column: pandas.Series, where: str) -> list[str]:
    """Return the values of a label column as sorted text, 2 to MOST_CLASSES, or raise UserError, begun by `where`."""
    classes = sorted(set(map(str, column_texts(column))))
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise UserError(
            f"{where}: it has {len(classes)} values, a class needs 2 to {MOST_CLASSES}: group them"
        )
    return classes


def toml_value(value: object) -> str:
    """Write a value as inline TOML, whose strings, numbers and lists are those of JSON."""
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{json.dumps(name)} = {toml_value(one)}" for name, one in value.items())
            + " }"
        )
    return json.dumps(value, ensure_ascii=False)
