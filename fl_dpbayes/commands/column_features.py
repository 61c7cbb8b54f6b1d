"""What feature each column of a table may be, proposed after a look at its values."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pandas

from fl_dpbayes.data.sources.table import MISSING, column_texts
from fl_dpbayes.errors import UserError

MOST_CATEGORIES = 10
# Of columns with more values than that, a value keeps its name if it stands in this share of rows,
LEAST_SHARE = 0.02
# and in so many rows.
LEAST_ROWS = 5
OTHER = "other"
# Of so many columns it is said why none of them is a feature.
MOST_REASONS = 5
# Up to this share of values that are no date, a column of text holds dates.
MOST_NO_DATES = 0.1
FULL_DATE = r"^\s*\d{1,4}[-./]\d{1,2}[-./]\d{1,4}\b"
# From this share of values that are numbers, a column of text is one of numbers with faults.
LEAST_NUMBERS = 0.5

Unusable = Literal[
    "constant", "row number", "text among numbers", "dates", "many words", "patients"
]


class Scaling(NamedTuple):
    """A feature is (value - center) / scale."""

    center: float
    scale: float


@dataclass(frozen=True)
class LeftOut:
    """Why a column is no feature.

    Attributes:
        kind: The kind of column.
        reason: In words, without a value of the records.
    """

    kind: Unusable
    reason: str


@dataclass(frozen=True)
class ProposedFeatures:
    """A table's columns by what they hold.

    Attributes:
        numbers: Column of numbers -> its scaling.
        categories: Column of words -> its values.
        missing: Column of numbers with gaps -> what fills them.
        others: Column of words -> what values are called that `categories` does not name.
        unusable: Column that is no feature -> why.
    """

    numbers: dict[str, Scaling] = field(default_factory=dict)
    categories: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, float] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    unusable: dict[str, LeftOut] = field(default_factory=dict)

    @property
    def left_out(self) -> dict[str, str]:
        """Column that is no feature -> why, in words."""
        return {name: left_out.reason for name, left_out in self.unusable.items()}

    @property
    def many_words(self) -> list[str]:
        """The columns of too many words, of which `group_rare_values` may make features."""
        return [name for name, why in self.unusable.items() if why.kind == "many words"]

    @property
    def inputs(self) -> int:
        """How many features a record has."""
        values = sum(map(len, self.categories.values()))
        return len(self.numbers) + len(self.missing) + values + len(self.others)


def proposed_features(
    table: pandas.DataFrame, measurements: Collection[str] = ()
) -> ProposedFeatures:
    """Look at each column of a table, and say what feature it may be.

    Args:
        table: One row per record, without labels, sites and units.
        measurements: Columns that are known to be numbers worth a feature.

    Returns:
        Numbers with a round center and scale, words of few values, and useless columns.

    """
    features = ProposedFeatures()
    for name, given_column in table.items():
        column = given_column.convert_dtypes()
        unusable = None if name in measurements else _why_unusable(column)
        if unusable is not None:
            features.unusable[name] = unusable
        elif _is_numeric(column):
            features.numbers[name] = _scaling(column.dropna().astype(float))
            if column.isna().any():
                features.missing[name] = features.numbers[name].center
        else:
            features.categories[name] = []
    return features


def group_rare_values(features: ProposedFeatures, words: pandas.DataFrame) -> None:
    """Make features of columns with many words: frequent ones keep their names, others share one.

    Args:
        features: Changed where a column has at least two frequent values.
        words: The columns with many words, as text.
    """
    least_rows = max(LEAST_ROWS, LEAST_SHARE * len(words))
    for name, column in words.items():
        counts = pandas.Series(column_texts(column.dropna())).value_counts()
        frequent = [str(value) for value in counts[counts >= least_rows].index if value != OTHER]
        if len(frequent) < 2:
            continue
        has_gaps = bool(column.isna().any())
        named = sorted(frequent[: MOST_CATEGORIES - 1 - has_gaps])
        features.categories[name] = [*named, MISSING] if has_gaps else named
        features.others[name] = OTHER
        del features.unusable[name]


def check_any_feature(features: ProposedFeatures) -> None:
    """Check that a table has something to predict from.

    Raises:
        UserError: If no column is a feature; the text says why each of the first is none.
    """
    if features.numbers or features.categories:
        return
    reasons = [f"{name!r}: {why}" for name, why in features.left_out.items()]
    listed = "; ".join(reasons[:MOST_REASONS]) or "there is no other column"
    raise UserError(f"no column is left to be a feature: {listed}")


def as_numbers(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return a table whose columns of text are numbers where each of their cells is one."""
    numbers = {}
    for name, column in table.items():
        if not _is_text(column.convert_dtypes()):
            continue
        values = pandas.to_numeric(column, errors="coerce")
        if values.notna().any() and values.notna().equals(column.notna()):
            numbers[name] = values
    return table.assign(**numbers)


def is_number(column: pandas.Series) -> pandas.Series:
    """Say of each cell of a column whether it is a number."""
    return pandas.to_numeric(column, errors="coerce").notna()


def _why_unusable(column: pandas.Series) -> LeftOut | None:
    """Say why a column is no feature; None where it is one."""
    values = column.nunique()
    if values < 2:
        return LeftOut(kind="constant", reason="one value in every row")
    if _is_numeric(column):
        if values == len(column) and pandas.api.types.is_integer_dtype(column):
            return LeftOut(
                kind="row number",
                reason="another whole number in every row: add it if it is a measurement",
            )
        return None
    if _has_text_among_numbers(column):
        return LeftOut(
            kind="text among numbers",
            reason=(
                "text among numbers: write decimals with a point, and leave the cell of a missing "
                "value empty"
            ),
        )
    if values <= MOST_CATEGORIES and not _holds_full_dates(column):
        return None
    if _holds_dates(column):
        return LeftOut(
            kind="dates",
            reason="dates: write a number of days, for example of the stay, to use it",
        )
    return LeftOut(
        kind="many words",
        reason=f"{values} values of text: group them to {MOST_CATEGORIES} or fewer to use it",
    )


def _has_text_among_numbers(column: pandas.Series) -> bool:
    """Whether a column of text was meant as numbers: most are, or all with a point for a comma."""
    if not _is_text(column):
        return False
    texts = column.dropna().astype(str)
    share = is_number(texts).mean()
    if column.nunique() > MOST_CATEGORIES:
        return LEAST_NUMBERS <= share < 1
    return 0 < share < 1 and bool(is_number(texts.str.replace(",", ".")).all())


def _holds_full_dates(column: pandas.Series) -> bool:
    """Whether each text has a day, a month and a year: words may look like other dates."""
    return _is_text(column) and bool(column.dropna().str.contains(FULL_DATE).all())


def _holds_dates(column: pandas.Series) -> bool:
    texts = column.dropna().astype(str)
    dates = pandas.to_datetime(texts, errors="coerce", format="mixed", dayfirst=True)
    return bool(dates.isna().mean() <= MOST_NO_DATES)


def _is_numeric(column: pandas.Series) -> bool:
    types = pandas.api.types
    return types.is_numeric_dtype(column) and not types.is_bool_dtype(column)


def _is_text(column: pandas.Series) -> bool:
    return pandas.api.types.is_string_dtype(column)


def _scaling(numbers: pandas.Series) -> Scaling:
    """Propose a scale of one digit, and a center rounded to the place of that digit.

    The center stays within a scale of the records' median.
    """
    if set(numbers) <= {0.0, 1.0}:
        return Scaling(center=0.0, scale=1.0)
    scale = float(f"{numbers.std():.0e}") or 1.0
    places = -int(np.floor(np.log10(scale)))
    return Scaling(center=round(float(numbers.median()), places), scale=scale)
