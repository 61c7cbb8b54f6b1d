"""The subgroups of a table's rows: values of columns such as sex or age group."""

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config.data import Table
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import MAX_GROUP_TEXT, group_text
from fl_dpbayes.protocol.evaluate import MAX_GROUPS

MAX_VALUES = 10
MISSING = "missing"


def table_groups(table: pandas.DataFrame, source: Table) -> dict[str, npt.NDArray]:
    """Read the columns of text or small whole numbers that divide a table's rows into subgroups.

    Args:
        table: the rows.
        source: its `group_columns`.

    Returns:
        Column -> each row's value as text, (N,); a missing one is the subgroup `missing`.

    Raises:
        UserError: if a column has more than MAX_VALUES values, all together more than MAX_GROUPS, or a value is no
            short printable text.
    """
    groups = {name: _texts(table[name]) for name in source.group_columns}
    counts = {name: len(np.unique(values)) for name, values in groups.items()}
    for name, count in counts.items():
        if count > MAX_VALUES:
            raise UserError(
                f"table {source.path}: column {name!r} of group_columns has {count} values: at most {MAX_VALUES}; join "
                "values, for example ages to age groups, in a column of their own"
            )
        for value in np.unique(groups[name]):
            try:
                group_text(str(value))
            except ValueError:
                raise UserError(
                    f"table {source.path}: column {name!r} of group_columns has the value {str(value)[:80]!r}: values "
                    f"must be 1 to {MAX_GROUP_TEXT} printable characters"
                ) from None
    if sum(counts.values()) > MAX_GROUPS:
        raise UserError(
            f"table {source.path}: group_columns have {sum(counts.values())} values together: at most {MAX_GROUPS}; "
            "name fewer columns, or join values"
        )
    return groups


def _texts(column: pandas.Series) -> npt.NDArray:
    if pandas.api.types.is_float_dtype(column) and (column.dropna() % 1 == 0).all():
        column = column.astype("Int64")  # whole numbers of a column with gaps
    return column.astype(object).where(column.notna(), MISSING).astype(str).to_numpy(dtype=np.str_)
