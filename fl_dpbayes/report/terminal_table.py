"""The one look of every table in the terminal, and how a table fits a narrow one."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

GAP = 2


@dataclass(frozen=True)
class TerminalColumn:
    """One column of a table: a cell per row, of one or more lines; numbers are aligned right.

    `expendable`: from 1 on: order in which columns are left out of a narrow terminal; 0: never.
    """

    header: str
    cells: Sequence[str]
    number: bool = True
    expendable: int = 0

    @property
    def width(self) -> int:
        """Characters of its longest line."""
        return max(cell_len(line) for cell in (self.header, *self.cells) for line in cell.split("\n"))


def terminal_table(title: str, caption: str = "") -> Table:
    """Return an empty table in the project's style."""
    return Table(
        title=Text(title, style="bold"), caption=Text(caption, style="dim") if caption else None, title_justify="left",
        caption_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True,
    )  # fmt: skip


def fitted_table(title: str, columns: Sequence[TerminalColumn], width: int, *, caption: str = "") -> Table:
    """Lay out columns without breaking a word; what does not fit the width is left out, and the caption says so."""
    kept, left_out = list(columns), []
    for column in sorted((column for column in columns if column.expendable), key=lambda column: column.expendable):
        if sum(part.width + GAP for part in kept) <= width:
            break
        kept.remove(column)
        left_out.append(column.header.replace("\n", " "))
    if left_out:
        caption = f"{caption} Left out at {width} columns: {', '.join(left_out)}.".strip()
    table = terminal_table(title, caption)
    for column in kept:
        table.add_column(column.header, justify="right" if column.number else "left", no_wrap=True)
    for cells in zip(*(column.cells for column in kept), strict=True):
        table.add_row(*map(Text, cells))
    return table


def name_width(width: int) -> int:
    """Return how wide a column of names may be in a terminal of this width."""
    return max(12, min(24, width // 4))


def folded(text: str, width: int) -> str:
    """Break a text into lines of at most `width` characters, after blanks and hyphens where it has them."""
    return "\n".join(textwrap.wrap(text, width)) or text
