"""An institution's own CSV or Parquet table."""

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import MAX_GROUP_TEXT, is_group_text
from fl_dpbayes.config.sources import OfficialPart, Table
from fl_dpbayes.data.records import Records
from fl_dpbayes.protocol.evaluate import MAX_GROUPS

MAX_VALUES = 10
MISSING = "missing"
BLIND = "remove such rows, or fill them in by a rule that does not look at other rows"


def load(source: Table, part: OfficialPart) -> Records:
    """Load a table: the listed features, centred and scaled by the public constants that the source states.

        feature = (value - center) / scale

    Without `unit_column` a row is its own privacy unit, known by its position: append new rows at the end, or name a
    column of patient numbers. Records keep the file's order. Raises UserError if the file is missing or unreadable, or
    a column is absent or has a value that is not allowed; the text names the column.
    """
    return framed_records(_read(source), source)


def framed_records(table: pandas.DataFrame, source: Table) -> Records:
    """Make one record of each row, at least one; the source gives columns, constants and the path that errors name.

    Raises UserError if a column has a value that is not allowed; the text names the column.
    """
    features = np.stack([_numbers(table, source, name) for name in source.features], axis=1)
    if source.centers:
        features -= np.asarray(source.centers)
    if source.scales:
        features /= np.asarray(source.scales)
    return Records(
        features=features.astype(np.float32),
        labels=_labels(table, source),
        units=np.arange(len(table)) if source.unit_column is None else _units(table, source, source.unit_column),
        natural_site=None,
        task=source.task,
        unit=source.unit,
        feature_names=source.features,
        groups=_groups(table, source),
    )


def _read(source: Table) -> pandas.DataFrame:
    as_text = dict.fromkeys([*source.group_columns, *([source.unit_column] if source.unit_column else [])], str)
    try:
        if source.path.suffix == ".csv":
            table = pandas.read_csv(source.path, dtype=as_text)
        elif source.path.suffix == ".parquet":
            table = pandas.read_parquet(source.path)
        else:
            raise UserError(f"table {source.path}: the name must end in .csv or .parquet")
    except FileNotFoundError:
        raise UserError(f"table {source.path} does not exist") from None
    except (ValueError, OSError) as error:
        raise UserError(f"table {source.path} cannot be read: {error}") from None
    wanted = [*source.features, source.label, *as_text]
    absent = [name for name in wanted if name not in table.columns]
    if absent:
        there = ", ".join(map(str, table.columns))
        raise UserError(f"table {source.path} has no column {absent[0]!r}: its columns are {there}")
    if not len(table):
        raise UserError(f"table {source.path} has no rows")
    return table


def _numbers(table: pandas.DataFrame, source: Table, name: str) -> npt.NDArray[np.float64]:
    values = pandas.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise _bad(source, name, bad, "missing or not finite numbers", BLIND)
    return values


def _bad(source: Table, name: str, rows: npt.NDArray, what: str, remedy: str) -> UserError:
    values = f"{len(rows)} values that are {what} (first in data row {rows[0] + 1})"
    return UserError(f"table {source.path}: column {name!r} has {values}: {remedy}")


def _labels(table: pandas.DataFrame, source: Table) -> npt.NDArray[np.int64]:
    values = _numbers(table, source, source.label)
    bad = np.flatnonzero((values != np.round(values)) | (values < 0) | (values >= source.classes))
    if len(bad):
        what = f"not a whole number from 0 to {source.classes - 1}"
        raise _bad(source, source.label, bad, what, "recode them, or correct source.classes")
    return values.astype(np.int64)


def _units(table: pandas.DataFrame, source: Table, name: str) -> npt.NDArray:
    missing = np.flatnonzero(table[name].isna())
    if len(missing):
        raise _bad(source, name, missing, "missing", "every row needs its privacy unit")
    return table[name].astype(str).to_numpy(dtype=np.str_)


def _groups(table: pandas.DataFrame, source: Table) -> dict[str, npt.NDArray]:
    """Read each row's subgroup from the columns of text or small whole numbers that the source names, (N,) text."""
    groups = {name: _texts(table[name]) for name in source.group_columns}
    counts = {name: len(np.unique(values)) for name, values in groups.items()}
    for name, count in counts.items():
        column = f"table {source.path}: column {name!r} of group_columns has"
        if count > MAX_VALUES:
            raise UserError(f"{column} {count} values: at most {MAX_VALUES}; join values, for example ages to groups")
        for value in map(str, np.unique(groups[name])):
            if not is_group_text(value):
                raise UserError(f"{column} the value {value[:80]!r}: give 1 to {MAX_GROUP_TEXT} printable characters")
    if (total := sum(counts.values())) > MAX_GROUPS:
        raise UserError(
            f"table {source.path}: group_columns have {total} values together: at most {MAX_GROUPS}; name fewer columns"
        )
    return groups


def _texts(column: pandas.Series) -> npt.NDArray:
    if pandas.api.types.is_float_dtype(column) and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")  # whole numbers of a column with gaps
    return column.astype(object).where(column.notna(), MISSING).astype(str).to_numpy(dtype=np.str_)
