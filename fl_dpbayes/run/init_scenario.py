"""What `fl-dpbayes init` writes: a complete scenario for a table of one's own, to be read and corrected by a person."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
from rich.console import Console

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.atomic_file import write_atomically
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.data.sources.table import MISSING, column_texts, read_table, site_names

MOST_CATEGORIES = 10
MOST_CLASSES = 20
LEAST_UNITS = 20
TEMPLATE = """\
# A simulated federation of a table of your own, proposed after a look at it. Read it, correct it, run it:
#   fl-dpbayes simulate {file}
name = {name}
description = {description}
seed = 1

[data]
test_fraction = 0.2   # kept at every hospital that trains, to measure calibration there

[data.source]
kind = "table"
path = {path}   # relative to this file
{source}

[partition]
kind = "natural"   # each site has the rows that carry its name

{sites}
[model]
kind = "logistic"   # or "mlp", with hidden = [32]

[sampler]
kind = "dp-sgld"
step_size = {{ kind = "constant", initial = 0.2 }}
prior = {{ kind = "gaussian", scale = 1.0 }}

[training]
rounds = 10
steps_per_round = 20
burn_in = 100
thinning = 10

[privacy]   # of each {unit}, at each hospital that trains
epsilon = 4.0
delta = {delta}   # below one over the number of {unit}s of every hospital
coupling = "floor"
temperature = 1.0
clip_norm = {clip_norm}
sampling_rate = 0.5

[aggregation]
rule = "fald"

[evaluation]
release = "public"   # in a simulation; a hospital chooses "noised" or "none"
"""
CONSTANTS = """\
# A feature is (value - center) / scale. Centers and scales were taken from the records, rounded to one digit, and so
# were the values of categories. At a hospital that costs privacy that nobody counts: replace them by what is known
# without these patients (a normal range, a textbook), then say constants = "public". Until then this file runs in
# simulations only.
constants = "from_records"
"""


@dataclass(frozen=True)
class ProposedFeatures:
    """Columns by what they hold: center and scale, values of words, what fills gaps, and why one is left out."""

    numbers: dict[str, tuple[float, float]]
    categories: dict[str, list[str]]
    missing: dict[str, float]
    left_out: dict[str, str]


def init_scenario(data: Path, label: str, columns: tuple[str, str | None], out: Path | None, console: Console) -> None:
    """Write a commented scenario for a CSV or Parquet table, after a look at it on this machine.

    `label`: the column of classes. `columns`: those of sites and of privacy units (None: each row is one). `out`: the
    file; None: the table's name with `.toml`, in the working directory. Raises UserError if the table or a column
    cannot be used, or the file exists.
    """
    site, unit = columns
    out = Path(f"{data.stem}.toml") if out is None else out
    if out.exists():
        raise UserError(f"{out} exists already: give another name by --out, nothing is overwritten")
    table = read_table(data, tuple(name for name in (label, site, unit) if name is not None))
    for option, name in (("--label", label), ("--site", site), ("--unit", unit)):
        if name is not None and name not in table.columns:
            there = ", ".join(map(str, table.columns))
            raise UserError(f"{option} {name}: {data} has no such column, its columns are {there}")
        if name is not None and (empty := int(table[name].isna().sum())):
            raise UserError(
                f"{option} {name}: {empty} of {len(table)} rows have no value there: fill in or remove them"
            )
    found = proposed_features(table.drop(columns=[name for name in (label, site, unit) if name is not None]))
    # As text, in the letters that a simulation will meet.
    words = read_table(data, tuple(found.categories))
    for name in found.categories:
        found.categories[name] = sorted(
            set(map(str, column_texts(words[name]))), key=lambda value: (value == MISSING, value)
        )
    sizes = (table[site] if unit is None else table.drop_duplicates([site, unit])[site]).value_counts()
    roles = _roles(sizes, site_names(table[site].to_numpy(dtype=np.str_), f"--site {site}: the column"), data)
    features = len(found.numbers) + len(found.missing) + sum(map(len, found.categories.values()))
    unit_name = "record" if unit is None else unit
    text = TEMPLATE.format(
        file=out.name,
        path=json.dumps(os.path.relpath(data.resolve(), out.resolve().parent)),
        name=json.dumps(_safe(out.stem)),
        description=json.dumps(f"{label} at {len(roles)} hospitals", ensure_ascii=False),
        source=_source(table, label, columns, found),
        sites="".join(
            f'[sites.{json.dumps(name)}]   # {count} {unit_name}s\nrole = "{role}"\n' for name, role, count in roles
        ),
        unit=unit_name,
        delta=proposed_delta(int(sizes.max())),
        clip_norm=proposed_clip_norm(features),
    )
    write_atomically(out, text)
    load_scenario(str(out))
    trained = sum(role == "train" for _, role, _ in roles)
    console.print(
        f"wrote {out}: {trained} hospitals train, {len(roles) - trained} held out, {features} features of "
        f"{len(found.numbers) + len(found.categories)} columns; read it, then:  fl-dpbayes simulate {out}",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def proposed_features(table: pandas.DataFrame) -> ProposedFeatures:
    """Look at each column: numbers get a round center and scale, words their values; a useless one is left out."""
    found = ProposedFeatures({}, {}, {}, {})
    for name, column in table.items():
        column, values = column.convert_dtypes(), column.nunique()
        gaps = bool(column.isna().any())
        if values < 2:
            found.left_out[name] = "one value in every row"
        elif pandas.api.types.is_numeric_dtype(column) and not pandas.api.types.is_bool_dtype(column):
            if values == len(table) and pandas.api.types.is_integer_dtype(column):
                found.left_out[name] = "another whole number in every row, likely that of the record"
                continue
            numbers = column.dropna().astype(float)
            binary = set(numbers) <= {0.0, 1.0}
            found.numbers[name] = (0.0, 1.0) if binary else (_rounded(numbers.median()), _rounded(numbers.std()) or 1.0)
            if gaps:
                found.missing[name] = found.numbers[name][0]
        elif values <= MOST_CATEGORIES:
            found.categories[name] = []
        else:
            found.left_out[name] = f"{values} values of text: group them to {MOST_CATEGORIES} or fewer to use it"
    if not found.numbers and not found.categories:
        raise UserError("no column is left to be a feature: give a table with numbers or words of few values")
    return found


def proposed_delta(most_units: int) -> str:
    """Return the largest power of ten that is below half of one over the largest site's number of units."""
    return f"1e-{int(np.ceil(np.log10(2 * most_units)))}"


def proposed_clip_norm(features: int) -> float:
    """Return about the length of a record's gradient in logistic regression on centred and scaled features."""
    return float(f"{np.sqrt(1 + features / 2):.1g}")


def _rounded(value: float) -> float:
    return float(f"{value:.0e}")


def _safe(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name).strip("-")[:64] or "own"


def _roles(sizes: pandas.Series, names: dict[str, str], data: Path) -> list[tuple[str, str, int]]:
    """Give each site of enough units a role, largest first: of three and more the smallest is held out."""
    large = [(names[str(site)], int(count)) for site, count in sizes.items() if count >= LEAST_UNITS]
    if not large:
        raise UserError(f"{data}: no site has {LEAST_UNITS} rows or units, the least to train on: join small sites")
    last = len(large) - 1 if len(large) > 2 else len(large)
    return [(name, "train" if place < last else "held_out", count) for place, (name, count) in enumerate(large)]


def _source(table: pandas.DataFrame, label: str, columns: tuple[str, str | None], found: ProposedFeatures) -> str:
    """Write the keys of `data.source` after its path, each column that is left out with the reason."""
    site, unit = columns
    classes = class_texts(table[label], f"--label {label}")
    lines = [f"label = {toml_value(label)}", f"classes = {len(classes)}"]
    if classes != [str(number) for number in range(len(classes))]:
        lines.append(
            f"class_names = {toml_value(classes)}   # in the order of the classes; of two, risks are of the second"
        )
    lines.append(f"site_column = {toml_value(site)}")
    if unit is None:
        lines.append(
            "# unit_column: every row is taken for another patient. If patients have several rows, name theirs."
        )
    else:
        lines.append(f"unit_column = {toml_value(unit)}")
    lines += [f"# left out: {json.dumps(name)}, {why}" for name, why in found.left_out.items()]
    lines.append(CONSTANTS.rstrip())
    if found.numbers:
        centers, scales = zip(*found.numbers.values(), strict=True)
        names = (("features", list(found.numbers)), ("centers", centers), ("scales", scales))
        lines += [f"{key} = {toml_value(values)}" for key, values in names]
    if found.missing:
        lines.append("# What stands in where a value is missing; one more feature says that it was.")
        lines.append(f"missing = {toml_value(found.missing)}")
    if found.categories:
        lines.append("# One feature for each value; a value that is not named here is refused.")
        lines.append(f"categories = {toml_value(found.categories)}")
    return "\n".join(lines)


def class_texts(column: pandas.Series, where: str) -> list[str]:
    """Return the values of a label column as sorted text, 2 to MOST_CLASSES, or raise UserError, begun by `where`."""
    classes = sorted(set(map(str, column_texts(column))))
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise UserError(f"{where}: it has {len(classes)} values, a class needs 2 to {MOST_CLASSES}: group them")
    return classes


def toml_value(value: object) -> str:
    """Write a value as inline TOML, whose strings, numbers and lists are those of JSON."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {toml_value(one)}" for name, one in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
