"""Sums over records, whatever the outcome, that add up over sites."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import Floats

Shapes = Mapping[str, tuple[int, ...]]


class Total(NamedTuple):
    """Of a site's test records their number, and the sums of a value of each and of its square."""

    records: float
    total: float
    squares: float


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the test records of a site, or of several; of each outcome a class of its own.

    Every field is one number, or a table of numbers, that adds up.

    Attributes:
        count: Records.
    """

    count: float

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, npt.NDArray]) -> Self:
        """Read the arrays of `arrays()`, their form checked."""
        numbers = dict(zip(cls.numbers(), map(float, arrays["scalars"]), strict=True))
        tables: dict[str, Any] = {name: arrays[name] for name in cls.tables()}
        return cls(**tables, **numbers)

    @classmethod
    def numbers(cls) -> tuple[str, ...]:
        """Name the fields that are one number, in the order of `scalars`."""
        return tuple(field.name for field in fields(cls) if field.type is float)

    @classmethod
    def tables(cls) -> tuple[str, ...]:
        """Name the fields that are tables."""
        return tuple(field.name for field in fields(cls) if field.type is not float)

    def arrays(self) -> dict[str, Floats]:
        """Write the sums as float64 arrays: the tables, and all single numbers as `scalars`."""
        arrays: dict[str, Floats] = {name: getattr(self, name) for name in self.tables()}
        numbers = [getattr(self, name) for name in self.numbers()]
        return {**arrays, "scalars": np.array(numbers, np.float64)}

    def plus(self, other: Self) -> Self:
        """Add the sums over two disjoint sets of records."""
        names = (*self.tables(), *self.numbers())
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def of_records(self) -> tuple[float, ...]:
        """Return what is the same for every predictor of the same records."""
        return (self.count,)

    def totals(self) -> dict[str, Total]:
        """Return the totals of means, by their names in words, that one site may decide."""
        return {}


SumsT = TypeVar("SumsT", bound=Sums)


@dataclass(frozen=True)
class SumsForm(Generic[SumsT]):
    """What sums of an outcome look like in a message.

    Attributes:
        kind: Their class.
        tables: Name -> shape of its tables.
        check: Raises a ValueError where sums contradict each other, so that no set of records
            could have produced them.
        noised: Shape of the one table that may leave with noise in their place; None: there is
            none.
        classes: Of an outcome that has such a table, how many classes it has.
    """

    kind: type[SumsT]
    tables: Shapes
    check: Callable[[SumsT], None]
    noised: tuple[int, ...] | None = None
    classes: int | None = None

    @property
    def shapes(self) -> Shapes:
        """Name -> shape of the arrays of one predictor."""
        return {**self.tables, "scalars": (len(self.kind.numbers()),)}

    @property
    def nbytes(self) -> int:
        """The size of these arrays in bytes."""
        return 8 * sum(map(math.prod, self.shapes.values()))

    @property
    def noised_nbytes(self) -> int:
        """The size of the table that may leave with noise in bytes."""
        return 8 * math.prod(self.noised or ())

    def read(self, arrays: Mapping[str, npt.NDArray]) -> SumsT:
        """Read sums from the arrays of a message.

        Args:
            arrays: As of `Sums.arrays`, of these shapes.

        Raises:
            ValueError: If the sums contradict each other.
        """
        sums = self.kind.of_arrays(arrays)
        self.check(sums)
        return sums


class SparseSums(NamedTuple):
    """Sums without the zeros of their tables, nearly all of a small test set's cells.

    Attributes:
        kind: Class of the sums.
        shapes: Name -> shape of the arrays.
        places: Where the other numbers stand in the arrays, joined, shape (S,).
        values: These numbers, shape (S,).
    """

    kind: type[Sums]
    shapes: Shapes
    places: npt.NDArray[np.int32]
    values: Floats

    def dense(self) -> Sums:
        """Return the sums with their zeros."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        joined = np.zeros(ends[-1])
        joined[self.places] = self.values
        parts = np.split(joined, ends[:-1])
        named_parts = zip(self.shapes.items(), parts, strict=True)
        return self.kind.of_arrays(
            {name: part.reshape(shape) for (name, shape), part in named_parts}
        )


def sparse(sums: Sums) -> SparseSums:
    """Leave out the zeros of sums.

    Of 40 records a hundredth of the memory stays, of a million half as much again.
    """
    arrays = sums.arrays()
    joined = np.concatenate([array.ravel() for array in arrays.values()])
    places = np.flatnonzero(joined).astype(np.int32)
    return SparseSums(
        kind=type(sums),
        shapes={name: array.shape for name, array in arrays.items()},
        places=places,
        values=joined[places],
    )
