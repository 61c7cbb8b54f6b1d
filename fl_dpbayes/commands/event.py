"""Which of two classes is the event, so that a risk is its probability."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import pandas

from fl_dpbayes.data.sources.table import column_texts
from fl_dpbayes.errors import UserError


@dataclass(frozen=True)
class Event:
    """The event among the two classes of a label column.

    Attributes:
        column: The label column.
        name: The class that is the event.
        other: The other class.
        share: Of rows with the event, 0 to 1.
        rows: How many rows there are.
        reason: Why this class is the event.
    """

    column: str
    name: str
    other: str
    share: float
    rows: int
    reason: str

    @property
    def class_names(self) -> list[str]:
        """Both classes; risks are of the second."""
        return [self.other, self.name]

    @property
    def sentence(self) -> str:
        """How often the event happens, and how to choose the other class."""
        return (
            f"event: {self.name}, {self.share:.1%} of {self.rows:,} rows "
            f"({self.reason}; the other class:  --event {shlex.quote(self.other)})"
        )


def event_among(labels: pandas.Series, chosen: str | None) -> Event | None:
    """Find the event: the class that a person chose, or the rarer of two.

    Of classes that are equally frequent it is 1, where they are 0 and 1.

    Args:
        labels: A label for each row, none missing; the series' name is the column's.
        chosen: The class that is the event; None: the rarer.

    Returns:
        The event; None where there are not two classes.

    Raises:
        UserError: If the chosen class is none of two, or words are equally frequent.
    """
    counts = pandas.Series(column_texts(labels)).value_counts()
    column = str(labels.name)
    classes = [str(name) for name in counts.index]
    if len(classes) != 2:
        if chosen is not None:
            raise UserError(
                f"--event is {chosen!r}: {column!r} has {len(classes)} classes, and an event is "
                "one of two: leave --event out, or join the classes to two"
            )
        return None
    if chosen is not None:
        name = chosen
        reason = "as chosen"
        if name not in classes:
            raise UserError(
                f"--event is {name!r}: no class of {column!r} is called so: choose "
                f"{' or '.join(map(repr, sorted(classes)))}"
            )
    elif counts.iloc[0] > counts.iloc[1]:
        name = classes[1]
        reason = "the rarer of the two"
    elif set(classes) == {"0", "1"}:
        name = "1"
        reason = "both are equally frequent"
    else:
        raise UserError(_choice_of_equals(column, classes))
    (other,) = set(classes) - {name}
    return Event(
        column=column,
        name=name,
        other=other,
        share=float(counts[name] / len(labels)),
        rows=len(labels),
        reason=reason,
    )


def _choice_of_equals(column: str, classes: Sequence[str]) -> str:
    choices = "  or  ".join(f"--event {shlex.quote(name)}" for name in sorted(classes))
    return f"--event is missing: both classes of {column!r} are equally frequent: add  {choices}"
