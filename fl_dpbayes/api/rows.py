"""Rows of a finished run: typed records, and the table that they make."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

import pandas

from fl_dpbayes.errors import UserError

Row = TypeVar("Row")


@dataclass(frozen=True, repr=False)
class Rows(Sequence[Row], Generic[Row]):
    """Records of one kind, such as `run.calibration`; a notebook shows them as a table.

    Attributes:
        records: The records, whose fields a type checker knows.
        columns: Of the table.
        cells: Record -> its cells, by column.
    """

    records: tuple[Row, ...]
    columns: tuple[str, ...]
    cells: Callable[[Row], Mapping[str, object]]

    @overload
    def __getitem__(self, number: int) -> Row: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, number: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(number, str):
            raise UserError(f"rows are numbered: a column is .to_frame()[{number!r}]")
        return self.records[number]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.records)

    def to_frame(self) -> pandas.DataFrame:
        """Return the records as a DataFrame, a row for each."""
        return pandas.DataFrame(map(self.cells, self.records), columns=list(self.columns))

    def __repr__(self) -> str:
        return repr(self.to_frame())

    def _repr_html_(self) -> str:
        return self.to_frame().to_html()
