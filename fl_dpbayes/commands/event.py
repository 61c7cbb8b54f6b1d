"""Which of two classes is the event, so that a risk is its probability."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas

from fl_dpbayes.data.sources.table import column_texts
from fl_dpbayes.errors import UserError


def as_option(name: str) -> str:
    """Write the choice of a class as the command line takes it."""
    return f"--event {shlex.quote(name)}"


def as_keyword(name: str) -> str:
    """Write the choice of a class as Python takes it."""
    return f"event={name!r}"


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
        choice_of_other: What to type so that the other class is the event.
    """

    column: str
    name: str
    other: str
    share: float
    rows: int
    reason: str
    choice_of_other: str

    @property
    def class_names(self) -> list[str]:
        """Both classes; risks are of the second."""
        return [self.other, self.name]

    @property
    def sentence(self) -> str:
        """How often the event happens, and how to choose the other class."""
        return (
            f"event: {self.name}, {self.share:.1%} of {self.rows:,} rows "
            f"({self.reason}; the other class:  {self.choice_of_other})"
        )


def event_among(
    labels: pandas.Series,
    *,
    chosen: str | None = None,
    order: Sequence[str] = (),
    written: Callable[[str], str] = as_option,
) -> Event | None:
    """Find the event: the class that a person chose, the last of an order, or the rarer of two.

    Of classes that are equally frequent it is 1, where they are 0 and 1.

    Args:
        labels: A label for each row, none missing; the series' name is the column's.
        chosen: The class that is the event; None: as `order` says, or the rarer.
        order: The classes in an order that a person gave them; empty: they have none.
        written: Class -> how its choice is typed.

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
                f"{written(chosen)}: {column!r} has {len(classes)} classes, and an event is one "
                "of two: leave it out, or join the classes to two"
            )
        return None
    if chosen is not None:
        name = chosen
        reason = "as chosen"
        if name not in classes:
            raise UserError(
                f"{written(name)}: no class of {column!r} is called so: write  "
                f"{_choices(classes, written)}"
            )
    elif order:
        name = order[-1]
        reason = "the last in order"
    elif counts.iloc[0] > counts.iloc[1]:
        name = classes[1]
        reason = "the rarer of the two"
    elif set(classes) == {"0", "1"}:
        name = "1"
        reason = "both are equally frequent"
    else:
        raise UserError(
            f"both classes of {column!r} are equally frequent: say which is the event by  "
            f"{_choices(classes, written)}"
        )
    (other,) = set(classes) - {name}
    return Event(
        column=column,
        name=name,
        other=other,
        share=float(counts[name] / len(labels)),
        rows=len(labels),
        reason=reason,
        choice_of_other=written(other),
    )


def _choices(classes: Sequence[str], written: Callable[[str], str]) -> str:
    return "  or  ".join(map(written, sorted(classes)))
