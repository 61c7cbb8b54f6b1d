"""An institution's own CSV or Parquet table."""

import codecs
import csv
import io
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config import MAX_GROUP_TEXT, OfficialPart, Table, is_group_text, site_name
from fl_dpbayes.data.records import Records
from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol import MAX_GROUPS

MAX_VALUES = 10
MISSING = "missing"
FILE = "file"
FILL = (
    "give the column a constant in source.missing, remove such rows, or fill them in "
    "without a look at other rows"
)


class BadRows(UserError):  # noqa: N818
    """Rows with a value in `column` that is not allowed: their numbers, from 0, (R,), and what is `said` of them."""

    def __init__(self, said: str, remedy: str, rows: npt.NDArray, column: str) -> None:
        super().__init__(f"{said}: {remedy}")
        self.said, self.rows, self.column = said, rows, column


def load(source: Table, part: OfficialPart) -> Records:
    """Load a table: the listed features, centred and scaled by the public constants that the source states.

        feature = (value - center) / scale

    Without `unit_column` a row is its own privacy unit, known by its position: append new rows at
    the end, or name a column of patient numbers. Raises UserError if the file cannot be read, or a
    column is absent or has a bad value.
    """
    return framed_records(_read(source), source)


def framed_records(table: pandas.DataFrame, source: Table) -> Records:
    """Make one record of each row, at least one.

    The source gives columns, constants and the path that errors name.

    Raises UserError if a column has a value that is not allowed; the text names the column.
    """
    return Records(
        features=features_of(table, source),
        labels=labels_of(table, source),
        units=np.arange(len(table))
        if source.unit_column is None
        else _names(table, source, source.unit_column),
        natural_site=None
        if source.site_column is None
        else _sites(table, source, source.site_column),
        task=source.task,
        unit=source.unit,
        feature_names=source.feature_names,
        groups=_groups(table, source),
    )


def read_table(path: Path | tuple[Path, ...], texts: tuple[str, ...] = ()) -> pandas.DataFrame:
    r"""Read a CSV or Parquet file, or several of the same columns, with the columns `texts` as text.

    Of a CSV the separator is the one of `,;\t|` that is most frequent in its first line; after `;`
    decimals may have a comma. It is in UTF-8 or UTF-16, or else in Windows-1252. Several files get
    a column `file`, their names without ending, unless they have one. The index is the `line` or
    `row`. Raises UserError if it is no table.
    """
    if isinstance(path, Path):
        return _read_file(path, texts)
    tables = {one: _read_file(one, texts) for one in path}
    columns = set(tables[path[0]].columns)
    for one, table in tables.items():
        if odd := columns ^ set(table.columns):
            name = min(map(str, odd))
            raise UserError(
                f"tables {path[0]} and {one}: only one has a column {name!r}: add or remove it"
            )
    named = FILE in columns
    return pandas.concat(
        {one: table if named else table.assign(**{FILE: one.stem}) for one, table in tables.items()}
    )


def row_place(table: pandas.DataFrame, row: int) -> str:
    """Say where a row of `read_table` stands: "line 4", "row 3", "line 4 of north.csv"."""
    *files, number = label if isinstance(label := table.index[row], tuple) else (label,)
    name = table.index.names[-1]
    return (
        f"{name or 'row'} "
        f"{number if name or files else number + 1}{''.join(f' of {file.name}' for file in files)}"
    )


def _read_file(path: Path, texts: tuple[str, ...]) -> pandas.DataFrame:
    try:
        if path.suffix == ".parquet":
            table = pandas.read_parquet(path)
            if not len(table):
                raise UserError(f"table {path} has no rows")
            return table.set_axis(pandas.RangeIndex(1, len(table) + 1, name="row"))
        if path.suffix != ".csv":
            raise UserError(f"table {path}: the name must end in .csv or .parquet: save it as CSV")
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"table {path} does not exist") from None
    except PermissionError:
        raise UserError(f"table {path} may not be read by this user") from None
    except (ValueError, OSError) as error:
        raise UserError(f"table {path} cannot be read: {error}") from None
    try:
        text = content.decode(
            "utf-16" if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        )
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    header = text.split("\n", 1)[0]
    if not header.strip():
        raise UserError(f"table {path} is empty: give a first line with the names of the columns")
    if "\0" in text:
        raise UserError(f"table {path} is no text: save it as CSV in UTF-8")
    separator = max(",;\t|", key=header.count)
    decimal = "," if separator == ";" and re.search(r"\d,\d", text) else "."
    try:
        table = pandas.read_csv(
            io.StringIO(text), sep=separator, decimal=decimal, dtype=dict.fromkeys(texts, str)
        )
        if not isinstance(table.index, pandas.RangeIndex):
            raise ValueError(
                "its lines have more cells than the first has names: remove separators "
                "at their ends"
            )
        if not len(table):
            raise UserError(
                f"table {path} has no rows: its first line is taken for the names of the columns"
            )
        return _numbered(table, text, separator)
    except (ValueError, csv.Error) as error:
        found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        problem = (
            "line {1} has {2} cells, and those before {0}".format(*found.groups())
            if found
            else str(error)
        )
        raise UserError(f"table {path} cannot be read: {problem}") from None


def _numbered(table: pandas.DataFrame, text: str, separator: str) -> pandas.DataFrame:
    """Number each row by its line: cells may hold line ends, and blank lines are no rows."""
    lines: list[int] | range = range(2, len(table) + 2)
    if '"' in text or re.search(r"\n\s*\n", text):
        reader, lines, first = csv.reader(io.StringIO(text), delimiter=separator), [], 1
        for cells in reader:
            lines += [first] if len(cells) > 1 or any(map(str.strip, cells)) else []
            first = reader.line_num + 1
        lines = lines[1:]
    # Where the two readers do not agree, rows are counted.
    return table.set_axis(pandas.Index(lines, name="line")) if len(lines) == len(table) else table


@np.errstate(
    over="ignore"
)  # What is more than float32 holds is refused with all that is not finite.
def features_of(table: pandas.DataFrame, source: Table) -> npt.NDArray[np.float32]:
    """Return the features of each row, (N, features) in the order of `source.feature_names`.

    Raises UserError if a value is missing without a constant for it, no finite number, or none of
    its categories.
    """
    filled = table.fillna(source.missing)
    values = [_numbers(filled, source, name) for name in source.features]
    features = np.stack(values, axis=1) if values else np.empty((len(table), 0))
    features = (features - np.asarray(source.centers or 0.0)) / np.asarray(source.scales or 1.0)
    columns = [features, *(table[name].isna().to_numpy()[:, None] for name in source.missing)]
    for name, categories in source.categories.items():
        places = _places(table, source, name, categories, f"source.categories, {name!r}")
        columns.append(places[:, None] == np.arange(len(categories)))
    return np.concatenate(columns, axis=1).astype(np.float32)


def labels_of(table: pandas.DataFrame, source: Table) -> npt.NDArray[np.int64]:
    """Return each row's class, (N,): its place in `class_names`, or the number itself.

    UserError where it is none.
    """
    if source.class_names:
        return _places(table, source, source.label, source.class_names, "source.class_names")
    column = table[source.label]
    if (words := pandas.to_numeric(column, errors="coerce").isna() & column.notna()).any():
        names = ", ".join(
            repr(value[:60]) for value in sorted(set(column[words].astype(str)))[: source.classes]
        )
        remedy = (
            "name the classes in source.class_names, in the order that you want, for "
            f"example [{names}]"
        )
        raise _bad(table, source, source.label, np.flatnonzero(words), "text, no number", remedy)
    values = _numbers(table, source, source.label)
    bad = np.flatnonzero((values != np.round(values)) | (values < 0) | (values >= source.classes))
    if len(bad):
        what = f"no whole number from 0 to {source.classes - 1}"
        raise _bad(table, source, source.label, bad, what, "recode them, or correct source.classes")
    return values.astype(np.int64)


def _read(source: Table) -> pandas.DataFrame:
    table = read_table(source.path, source.text_columns)
    wanted = (*source.feature_columns, source.label, *source.text_columns)
    absent = [name for name in wanted if name not in table.columns]
    if absent:
        there = ", ".join(map(str, table.columns))
        raise UserError(
            f"table {source.place} has no column {absent[0]!r}: its columns are {there}"
        )
    return table


def _numbers(table: pandas.DataFrame, source: Table, name: str) -> npt.NDArray[np.float64]:
    values = pandas.to_numeric(table[name], errors="coerce").to_numpy(
        dtype=np.float64, na_value=np.nan
    )
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise _bad(table, source, name, bad, "missing, or no finite number", FILL)
    return values


def _places(
    table: pandas.DataFrame, source: Table, name: str, values: tuple[str, ...], key: str
) -> npt.NDArray:
    texts = column_texts(table[name])
    found = pandas.Index(values).get_indexer(texts)
    if len(bad := np.flatnonzero(found < 0)):
        raise _bad(
            table,
            source,
            name,
            bad,
            f"{texts[bad[0]][:60]!r}, which is not declared",
            f"add them to {key}",
        )
    return found.astype(np.int64)


def _bad(
    table: pandas.DataFrame, source: Table, name: str, rows: npt.NDArray, what: str, remedy: str
) -> BadRows:
    more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    place = f"table {source.place}, {row_place(table, rows[0])}, column {name!r}"
    return BadRows(f"{place}: {what}{more}", remedy, rows, name)


def _names(table: pandas.DataFrame, source: Table, name: str) -> npt.NDArray:
    missing = np.flatnonzero(table[name].isna())
    if len(missing):
        raise _bad(table, source, name, missing, "missing", "every row needs one")
    return column_texts(table[name])


def site_names(values: npt.NDArray, where: str) -> dict[str, str]:
    """Name each site as a scenario can, by `site_name`.

    Returns value -> name. Raises UserError, which `where` begins, if two values get one name, or
    one gets none.
    """
    names = {value: site_name(value) for value in map(str, np.unique(values))}
    if len(set(names.values())) < len(names) or not all(names.values()):
        kept = (
            "where only A-Z, a-z, 0-9, '.', '_' and '-' may stand: "
            f"{', '.join(sorted(names))[:200]}"
        )
        raise UserError(f"{where} has values that become one name or none {kept}: rename them")
    return names


def _sites(table: pandas.DataFrame, source: Table, name: str) -> npt.NDArray:
    given = _names(table, source, name)
    names = site_names(given, f"table {source.place}: column {name!r}")
    return np.array([names[str(value)] for value in given])


def _groups(table: pandas.DataFrame, source: Table) -> dict[str, npt.NDArray]:
    """Read each row's subgroup from the columns of text or small whole numbers that the source names, (N,) text."""
    groups = {name: column_texts(table[name]) for name in source.group_columns}
    counts = {name: len(np.unique(values)) for name, values in groups.items()}
    for name, count in counts.items():
        column = f"table {source.place}: column {name!r} of group_columns has"
        if count > MAX_VALUES:
            raise UserError(
                f"{column} {count} values: at most {MAX_VALUES}; join values, for example "
                "ages to groups"
            )
        for value in map(str, np.unique(groups[name])):
            if not is_group_text(value):
                raise UserError(
                    f"{column} the value {value[:80]!r}: give 1 to {MAX_GROUP_TEXT} "
                    "printable characters"
                )
    if (total := sum(counts.values())) > MAX_GROUPS:
        raise UserError(
            f"table {source.place}: group_columns: {total} values in all, at most "
            f"{MAX_GROUPS}: name fewer"
        )
    return groups


def column_texts(column: pandas.Series) -> npt.NDArray:
    """Return a column as text, (N,): whole numbers without a point, `missing` where there is none."""
    if pandas.api.types.is_float_dtype(column) and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")  # whole numbers of a column with gaps
    return column.astype(object).where(column.notna(), MISSING).astype(str).to_numpy(dtype=np.str_)
