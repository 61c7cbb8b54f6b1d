"""What was decided of each column of a table, and why, a line each."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

import pandas

from fl_dpbayes.commands.column_features import ProposedFeatures, is_number
from fl_dpbayes.data.sources.table import column_texts, row_place

LEFT_OUT = "left out"
# So many values of a column are listed.
MOST_LISTED = 5


@dataclass(frozen=True)
class ColumnDecision:
    """What a column is used as.

    Attributes:
        column: The column.
        use: What it is: label, site, unit, number, days, words or left out.
        reason: Why, or how; it may quote the records, so it is for the terminal alone.
        is_routine: Whether who does not ask need not be told.
    """

    column: str
    use: str
    reason: str
    is_routine: bool = False


def aligned_lines(decisions: Iterable[ColumnDecision]) -> list[str]:
    """Write a line for each decision, with its three parts below one another."""
    rows = list(decisions)
    widest_column = max((len(row.column) for row in rows), default=0)
    widest_use = max((len(row.use) for row in rows), default=0)
    return [f"{row.column:<{widest_column}}  {row.use:<{widest_use}}  {row.reason}" for row in rows]


def feature_decisions(
    table: pandas.DataFrame, features: ProposedFeatures, days_since: Mapping[str, date]
) -> list[ColumnDecision]:
    """Say what each column of a table is used as.

    Args:
        table: The table as it was read, without labels, sites and units.
        features: What was proposed of it.
        days_since: Column of dates -> its day 0.
    """
    decisions = []
    for name in map(str, table.columns):
        column = table[name]
        if name in features.numbers:
            use = "days" if name in days_since else "number"
            reason = _of_number(column, name, features)
            if name in days_since:
                reason = f"since {days_since[name]}; {reason}"
        elif name in features.categories:
            use = "words"
            reason = _of_words(column, features.categories[name], features.others.get(name))
        else:
            use = LEFT_OUT
            reason = features.unusable[name].reason + _example(table, name, features)
        is_routine = use != LEFT_OUT and name not in features.others
        decisions.append(ColumnDecision(column=name, use=use, reason=reason, is_routine=is_routine))
    return decisions


def _of_number(column: pandas.Series, name: str, features: ProposedFeatures) -> str:
    scaling = features.numbers[name]
    reason = (
        f"center {scaling.center:g}, scale {scaling.scale:g}: the records' median and standard "
        "deviation, rounded"
    )
    if set(column.dropna()) <= {0, 1}:
        reason = "0 or 1, taken as it is"
    if name in features.missing:
        reason += (
            f"; {column.isna().sum():,} of {len(column):,} are missing: {features.missing[name]:g} "
            "stands in, and one more feature says so"
        )
    return reason


def _of_words(column: pandas.Series, values: list[str], other: str | None) -> str:
    listed = ", ".join(values[:MOST_LISTED])
    more = f" and {len(values) - MOST_LISTED} more" if len(values) > MOST_LISTED else ""
    reason = f"one feature for each of {listed}{more}"
    if other is None:
        return reason
    texts = pandas.Series(column_texts(column))
    is_other = ~texts.isin(values)
    return (
        f"{reason}; the other {texts[is_other].nunique()} values, {is_other.mean():.0%} of rows, "
        f"become {other!r}: edit both in the file"
    )


def _example(table: pandas.DataFrame, name: str, features: ProposedFeatures) -> str:
    """Show a value that stands in the way of a column of numbers; "" for other columns."""
    if features.unusable[name].kind != "text among numbers":
        return ""
    column = table[name]
    is_text = (column.notna() & ~is_number(column)).to_numpy()
    first = int(is_text.argmax())
    text = str(column.iloc[first])[:60]
    return (
        f"; {is_text.sum():,} of {len(column):,} are no number, as {text!r} in "
        f"{row_place(table, first)}"
    )
