"""An institution's own CSV or Parquet table."""

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config.data import Table
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.sources.table_groups import table_groups


def table_records(source: Table) -> Records:
    """Load a table: the listed features, centred and scaled by the public constants that the source states.

        feature = (value - center) / scale

    Args:
        source: path, columns, constants. Without `unit_column` a row is its own privacy unit, known by its position:
            append new rows at the end, or name a column of patient numbers.

    Returns:
        One record per row, in the file's order.

    Raises:
        UserError: if the file is missing or unreadable, or a column is absent or has a value that is not allowed; the
            text names the column.
    """
    return framed_records(_read(source), source)


def framed_records(table: pandas.DataFrame, source: Table) -> Records:
    """Make records of rows that hold the columns which a source names.

    Args:
        table: (N, columns), N at least 1.
        source: columns and constants; its path is named in errors.

    Returns:
        One record per row, in their order.

    Raises:
        UserError: if a column has a value that is not allowed; the text names the column.
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
        task=Task(input_shape=(len(source.features),), classes=source.classes),
        unit=source.unit_column or "record",
        feature_names=source.features,
        groups=table_groups(table, source),
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
        raise UserError(
            f"table {source.path} has no column {absent[0]!r}: its columns are {', '.join(map(str, table.columns))}"
        )
    if not len(table):
        raise UserError(f"table {source.path} has no rows")
    return table


def _numbers(table: pandas.DataFrame, source: Table, name: str) -> npt.NDArray[np.float64]:
    values = pandas.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise UserError(
            f"table {source.path}: column {name!r} has {len(bad)} values that are missing or not finite numbers (first "
            f"in data row {bad[0] + 1}): remove such rows, or fill them in by a rule that does not look at other rows"
        )
    return values


def _labels(table: pandas.DataFrame, source: Table) -> npt.NDArray[np.int64]:
    values = _numbers(table, source, source.label)
    bad = np.flatnonzero((values != np.round(values)) | (values < 0) | (values >= source.classes))
    if len(bad):
        raise UserError(
            f"table {source.path}: column {source.label!r} has {len(bad)} values that are not a whole number from 0 to "
            f"{source.classes - 1} (first in data row {bad[0] + 1}): recode them, or correct source.classes"
        )
    return values.astype(np.int64)


def _units(table: pandas.DataFrame, source: Table, name: str) -> npt.NDArray:
    missing = np.flatnonzero(table[name].isna())
    if len(missing):
        raise UserError(
            f"table {source.path}: column {name!r} has {len(missing)} missing values (first in data row "
            f"{missing[0] + 1}): every row needs its privacy unit"
        )
    return table[name].astype(str).to_numpy(dtype=np.str_)
