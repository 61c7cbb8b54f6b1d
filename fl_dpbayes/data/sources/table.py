"""An institution's own CSV or Parquet table."""

import codecs
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config import (
    MAX_GROUP_TEXT,
    OfficialPart,
    Table,
    column_hint,
    first_names,
    is_group_text,
    site_name,
)
from fl_dpbayes.data.records import Records
from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol import MAX_GROUPS

MAX_VALUES = 10
MISSING = "missing"
FILE = "file"
DATE_FORMS = "2020-12-31 or 31.12.2020"
DATE_PATTERNS = {
    "%Y-%m-%d": r"^\s*(\d{4}-\d{1,2}-\d{1,2})(?:[ T].*)?$",
    "%d.%m.%Y": r"^\s*(\d{1,2}\.\d{1,2}\.\d{4})(?:[ T].*)?$",
}
DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
FILL = (
    "give the column a constant in source.missing, remove such rows, or fill them in "
    "without a look at other rows"
)


class BadRowsError(UserError):
    """Some rows of a table have a value that is not allowed.

    Attributes:
        problem: What is wrong and where, without a remedy.
        rows: (R,), the rows' numbers, from 0.
        column: The column that holds the values.
    """

    def __init__(self, *, problem: str, remedy: str, rows: npt.NDArray, column: str) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.problem = problem
        self.rows = rows
        self.column = column


def load(source: Table, part: OfficialPart) -> Records:
    """Load a table: its features, centred and scaled by the public constants of the source.

        feature = (value - center) / scale

    Without `unit_column` a row is its own privacy unit, known by its position: append new rows at
    the end, or name a column of patient numbers.

    Args:
        source: Names the file, its columns and the constants.
        part: The official part; a table has one only.

    Raises:
        UserError: If the file cannot be read, or a column is absent or has a bad value.
    """
    return framed_records(_read(source), source)


def framed_records(table: pandas.DataFrame, source: Table) -> Records:
    """Make one record of each row.

    Args:
        table: At least one row.
        source: Names columns, constants and the path that errors name.

    Raises:
        UserError: If a column has a value that is not allowed; the text names the column.
    """
    features = features_of(table, source)
    labels = labels_of(table, source)
    units = np.arange(len(table))
    if source.unit_column is not None:
        units = _Column(table, source, source.unit_column).names()
    natural_site = None
    if source.site_column is not None:
        natural_site = _sites(table, source, source.site_column)
    return Records(
        features=features,
        labels=labels,
        units=units,
        natural_site=natural_site,
        task=source.task,
        unit=source.unit,
        feature_names=source.feature_names,
        groups=_groups(table, source),
    )


def read_table(path: Path | tuple[Path, ...], texts: tuple[str, ...] = ()) -> pandas.DataFrame:
    r"""Read a CSV or Parquet file, or several of the same columns.

    The separator of a CSV is the one of `,;\t|` that is most frequent in its first line; after `;`
    decimals may have a comma. It is in UTF-8 or UTF-16, or else in Windows-1252.

    Args:
        path: One file or several. Several get a column `file`, their names without ending, unless
            they have one.
        texts: Columns that are read as text.

    Returns:
        The table; its index is the `line` or `row`, after the file where there are several.

    Raises:
        UserError: If a file is no table, or the files' columns differ.
    """
    if isinstance(path, Path):
        return _read_file(path, texts)
    tables = {file: _read_file(file, texts) for file in path}
    columns = set(tables[path[0]].columns)
    for file, table in tables.items():
        differing = columns ^ set(table.columns)
        if differing:
            name = min(map(str, differing))
            raise UserError(
                f"tables {path[0]} and {file}: only one has a column {name!r}: add or remove it"
            )
    if FILE not in columns:
        tables = {file: table.assign(**{FILE: file.stem}) for file, table in tables.items()}
    return pandas.concat(tables)


def row_place(table: pandas.DataFrame, row: int) -> str:
    """Say where a row stands: "line 4", "row 3", "line 4 of north.csv".

    Args:
        table: A table of `read_table`, or any other.
        row: The row's number, from 0.
    """
    label = table.index[row]
    kind = table.index.names[-1]
    if isinstance(label, tuple):
        file, number = label
        return f"{kind or 'row'} {number} of {file.name}"
    if kind:
        return f"{kind} {label}"
    return f"row {label + 1}"


def _read_file(path: Path, texts: tuple[str, ...]) -> pandas.DataFrame:
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path)
        if path.suffix != ".csv":
            raise UserError(f"table {path}: the name must end in .csv or .parquet: save it as CSV")
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"table {path} does not exist") from None
    except PermissionError:
        raise UserError(f"table {path} may not be read by this user") from None
    except (ValueError, OSError) as error:
        raise UserError(f"table {path} cannot be read: {error}") from None
    return _parse_csv(_decode(content), path, texts)


def _read_parquet(path: Path) -> pandas.DataFrame:
    table = pandas.read_parquet(path)
    if not len(table):
        raise UserError(f"table {path} has no rows")
    _check_header(list(map(str, table.columns)), path)
    return table.set_axis(pandas.RangeIndex(1, len(table) + 1, name="row"))


def _decode(content: bytes) -> str:
    is_utf16 = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    try:
        return content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _parse_csv(text: str, path: Path, texts: tuple[str, ...]) -> pandas.DataFrame:
    header = text.split("\n", 1)[0]
    if not header.strip():
        raise UserError(f"table {path} is empty: give a first line with the names of the columns")
    if "\0" in text:
        raise UserError(f"table {path} is no text: save it as CSV in UTF-8")
    separator = max(",;\t|", key=header.count)
    _check_header(next(csv.reader(io.StringIO(text), delimiter=separator)), path)
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
        return _number_by_line(table, text, separator)
    except (ValueError, csv.Error) as error:
        problem = str(error)
        cells = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", problem)
        if cells:
            expected, line, actual = cells.groups()
            problem = f"line {line} has {actual} cells, and those before {expected}"
        raise UserError(f"table {path} cannot be read: {problem}") from None


def _check_header(names: Sequence[str], path: Path) -> None:
    """Refuse two columns of one name: which of them is meant, nobody knows."""
    first_places: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        first = first_places.setdefault(name, place)
        if name.strip() and first < place:
            raise UserError(
                f"table {path}: columns {first} and {place} of the first line have the same name, "
                f"{name!r}: rename or remove one of them"
            )


def _number_by_line(table: pandas.DataFrame, text: str, separator: str) -> pandas.DataFrame:
    """Number each row by its line: cells may hold line ends, and blank lines are no rows."""
    lines: list[int] | range = range(2, len(table) + 2)
    if '"' in text or re.search(r"\n\s*\n", text):
        lines = _first_lines(text, separator)[1:]
    if len(lines) != len(table):
        # Where the two readers do not agree, rows are counted.
        return table
    return table.set_axis(pandas.Index(lines, name="line"))


def _first_lines(text: str, separator: str) -> list[int]:
    """Return the line, from 1, at which each row begins that is not blank, the header's too."""
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    lines = []
    first_line = 1
    for cells in reader:
        if len(cells) > 1 or any(cell.strip() for cell in cells):
            lines.append(first_line)
        first_line = reader.line_num + 1
    return lines


# What is more than float32 holds is refused with all that is not finite.
@np.errstate(over="ignore")
def features_of(table: pandas.DataFrame, source: Table) -> npt.NDArray[np.float32]:
    """Return the features of each row, (N, features) in the order of `source.feature_names`.

    Args:
        table: N rows.
        source: Names columns and constants.

    Raises:
        BadRowsError: If a value is missing without a constant for it, no finite number, or none of
            its categories.
    """
    table = _with_days(table, source)
    filled = table.fillna(source.missing)
    values = [_Column(filled, source, name).numbers() for name in source.features]
    features = np.stack(values, axis=1) if values else np.empty((len(table), 0))
    features = (features - np.asarray(source.centers or 0.0)) / np.asarray(source.scales or 1.0)
    blocks = [features]
    for name in source.missing:
        blocks.append(table[name].isna().to_numpy()[:, None])
    for name in source.categories:
        places = _category_places(table, source, name)
        blocks.append(places[:, None] == np.arange(len(source.values_of(name))))
    return np.concatenate(blocks, axis=1).astype(np.float32)


def labels_of(table: pandas.DataFrame, source: Table) -> npt.NDArray[np.int64]:
    """Return each row's class, (N,): its place in `class_names`, or the number itself.

    Args:
        table: N rows.
        source: Names the column and the classes.

    Raises:
        BadRowsError: If a label is no class.
    """
    column = _Column(table, source, source.label)
    if source.class_names:
        return column.places(source.class_names, key="source.class_names")
    is_number = pandas.to_numeric(column.cells, errors="coerce").notna() | column.cells.isna()
    texts = sorted(set(column.cells[~is_number].astype(str)))
    examples = ", ".join(repr(text[:60]) for text in texts[: source.classes])
    column.require(
        is_number,
        problem="text, no number",
        remedy=(
            "name the classes in source.class_names, in the order that you want, for "
            f"example [{examples}]"
        ),
    )
    values = column.numbers()
    column.require(
        source.task.outcome.holds(values),
        problem=f"no whole number from 0 to {source.classes - 1}",
        remedy="recode them, or correct source.classes",
    )
    return values.astype(np.int64)


@dataclass(frozen=True)
class _Column:
    """A column of a table, whose bad cells are refused by their place.

    Attributes:
        table: The table.
        source: Names the file.
        name: The column.
    """

    table: pandas.DataFrame
    source: Table
    name: str

    @property
    def cells(self) -> pandas.Series:
        """The column's cells, (N,)."""
        return self.table[self.name]

    def require(self, is_good: npt.ArrayLike, problem: str, remedy: str) -> None:
        """Refuse the table where a row is not good.

        Args:
            is_good: Of each row, shape (N,).
            problem: What is wrong with the others.
            remedy: What to do about it.

        Raises:
            BadRowsError: With the first row that is not good.
        """
        rows = np.flatnonzero(~np.asarray(is_good))
        if not len(rows):
            return
        count = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        place = f"table {self.source.place}, {row_place(self.table, rows[0])}"
        raise BadRowsError(
            problem=f"{place}, column {self.name!r}: {problem}{count}",
            remedy=remedy,
            rows=rows,
            column=self.name,
        )

    def numbers(self) -> npt.NDArray[np.float64]:
        """Return finite numbers, (N,)."""
        numbers = pandas.to_numeric(self.cells, errors="coerce")
        values = numbers.to_numpy(dtype=np.float64, na_value=np.nan)
        is_good = np.isfinite(values)
        text = self._first_text(is_good)
        if text is None:
            self.require(is_good, problem="missing, or no finite number", remedy=FILL)
        elif DECIMAL_COMMA.fullmatch(text):
            self.require(
                is_good,
                problem=f"{text!r} has a comma for a decimal point",
                remedy=f"write all decimals alike, as {text.strip().replace(',', '.')}",
            )
        else:
            self.require(
                is_good,
                problem=f"{text!r} is no finite number",
                remedy="correct it, or empty the cell and name the column in source.missing",
            )
        return values

    def days(self, zero: date) -> pandas.Series:
        """Return the days since a day, (N,), NaN where a date is missing."""
        days = days_since(self.cells, zero)
        is_good = days.notna() | self.cells.isna()
        self.require(
            is_good,
            problem=f"{self._first_text(is_good)!r} is no date as {DATE_FORMS}",
            remedy="write dates so",
        )
        return days

    def _first_text(self, is_good: npt.ArrayLike) -> str | None:
        """Return the first cell that is not good, up to 60 characters; None where it is empty."""
        bad = self.cells[~np.asarray(is_good)]
        return str(bad.iloc[0])[:60] if len(bad) and not pandas.isna(bad.iloc[0]) else None

    def names(self) -> npt.NDArray:
        """Return texts of which none is missing, (N,)."""
        self.require(self.cells.notna(), problem="missing", remedy="every row needs one")
        return column_texts(self.cells)

    def with_others(self, values: tuple[str, ...], other: str) -> "_Column":
        """Call every text another that is none of the values; a missing one stays missing."""
        is_kept = self.cells.isna() | np.isin(column_texts(self.cells), values)
        cells = self.cells.astype(object).where(is_kept, other)
        return replace(self, table=self.table.assign(**{self.name: cells}))

    def places(self, values: tuple[str, ...], key: str) -> npt.NDArray[np.int64]:
        """Return each row's place among declared values, (N,); `key` declares them."""
        texts = column_texts(self.cells)
        places = pandas.Index(values).get_indexer(texts)
        undeclared = [text[:60] for text in texts[places < 0]]
        self.require(
            places >= 0,
            problem=f"{next(iter(undeclared), '')!r}, which is none of {first_names(values)}",
            remedy=f"add them to {key}",
        )
        return places.astype(np.int64)


def column_dates(column: pandas.Series) -> pandas.Series:
    """Read a column of dates, (N,); NaT where there is none of the allowed forms.

    Args:
        column: Dates, or texts as 2020-12-31 or 31.12.2020; a time of day behind them is ignored.
    """
    texts = column.astype(object).where(column.notna(), "").astype(str)
    dates = pandas.Series(pandas.NaT, index=column.index)
    for form, pattern in DATE_PATTERNS.items():
        days = texts.str.extract(pattern, expand=False)
        dates = dates.fillna(pandas.to_datetime(days, format=form, errors="coerce"))
    return dates


def days_since(column: pandas.Series, zero: date) -> pandas.Series:
    """Count the days from a day to each date, (N,), negative before it; NaN without a date.

    Args:
        column: As of `column_dates`.
        zero: Day 0.
    """
    return (column_dates(column) - pandas.Timestamp(zero)).dt.days.astype(float)


def _with_days(table: pandas.DataFrame, source: Table) -> pandas.DataFrame:
    """Replace each column of dates by days."""
    days = {
        name: _Column(table, source, name).days(zero) for name, zero in source.days_since.items()
    }
    return table.assign(**days)


def _category_places(table: pandas.DataFrame, source: Table, name: str) -> npt.NDArray[np.int64]:
    """Return each row's place among a category's values, (N,)."""
    column = _Column(table, source, name)
    if name in source.others:
        column = column.with_others(source.categories[name], source.others[name])
    return column.places(source.values_of(name), key=f"source.categories, {name!r}")


def _read(source: Table) -> pandas.DataFrame:
    table = read_table(source.path, source.text_columns)
    for name in (*source.feature_columns, source.label, *source.text_columns):
        if name not in table.columns:
            raise UserError(
                f"table {source.place} has no column {name!r}: {column_hint(name, table.columns)}"
            )
    return table


def site_names(values: npt.NDArray, where: str) -> dict[str, str]:
    """Name each site as a scenario can, by `site_name`.

    Args:
        values: (N,), each record's site in the table's words.
        where: The column; error messages begin with it.

    Returns:
        Value -> name.

    Raises:
        UserError: If two values get one name, or one gets none.
    """
    names = {value: site_name(value) for value in map(str, np.unique(values))}
    if len(set(names.values())) < len(names) or not all(names.values()):
        listed = ", ".join(sorted(names))[:200]
        raise UserError(
            f"{where} has values that become one name or none where only A-Z, a-z, 0-9, '.', '_' "
            f"and '-' may stand: {listed}: rename them"
        )
    return names


def _sites(table: pandas.DataFrame, source: Table, column: str) -> npt.NDArray:
    values = _Column(table, source, column).names()
    names = site_names(values, f"table {source.place}: column {column!r}")
    return np.array([names[str(value)] for value in values])


def _groups(table: pandas.DataFrame, source: Table) -> dict[str, npt.NDArray]:
    """Read each row's subgroups from the columns that the source names, (N,) text each."""
    groups = {name: column_texts(table[name]) for name in source.group_columns}
    value_count = 0
    for name, texts in groups.items():
        values = np.unique(texts)
        column = f"table {source.place}: column {name!r} of group_columns has"
        if len(values) > MAX_VALUES:
            raise UserError(
                f"{column} {len(values)} values: at most {MAX_VALUES}; join values, for example "
                "ages to groups"
            )
        for value in map(str, values):
            if not is_group_text(value):
                raise UserError(
                    f"{column} the value {value[:80]!r}: give 1 to {MAX_GROUP_TEXT} "
                    "printable characters"
                )
        value_count += len(values)
    if value_count > MAX_GROUPS:
        raise UserError(
            f"table {source.place}: group_columns: {value_count} values in all, at most "
            f"{MAX_GROUPS}: name fewer"
        )
    return groups


def column_texts(column: pandas.Series) -> npt.NDArray:
    """Return a column as text, (N,): whole numbers without a point, `missing` for an empty cell.

    Args:
        column: N cells.
    """
    if pandas.api.types.is_float_dtype(column) and (column.dropna() % 1 == 0).all():
        # Whole numbers of a column with gaps.
        column = column.astype("Int64")
    return column.astype(object).where(column.notna(), MISSING).astype(str).to_numpy(dtype=np.str_)
