"""The one look of every table in the terminal, and how a table fits a narrow one."""

import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fl_dpbayes.report.page_tables import PageTable

GAP = 2
HEADER_WIDTH = 10


def terminal_table(title: str, caption: str = "") -> Table:
    """Return an empty table in the project's style."""
    return Table(
        title=Text(title, style="bold"),
        caption=Text(caption, style="dim") if caption else None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
    )


def without_columns(content: PageTable, titles: Sequence[str]) -> PageTable:
    """Return a table without some of its columns; a title that it does not have is passed over."""
    kept = [number for number, title in enumerate(content.columns) if title not in titles]
    return PageTable(
        columns=tuple(content.columns[number] for number in kept),
        rows=[tuple(row[number] for number in kept) for row in content.rows],
        text_columns=frozenset(
            position for position, number in enumerate(kept) if number in content.text_columns
        ),
    )


def printed_table(
    title: str,
    content: PageTable,
    width: int,
    *,
    with_quiet: Sequence[str] = (),
    expendable: Sequence[str] = (),
    caption: str = "",
) -> Table:
    """Print a table of the page without breaking a word.

    Args:
        title: Stands above it.
        content: The table.
        width: Of the terminal, in characters.
        with_quiet: Columns of which also what stands behind a value is printed.
        expendable: Columns that are left out of a narrow terminal, the first one first; the
            caption says so.
        caption: Stands below it.
    """
    columns = {
        name: _wrapped_column(content, position, width, with_quiet=name in with_quiet)
        for position, name in enumerate(content.columns)
    }
    widths = {name: _width(cells) for name, cells in columns.items()}
    left_out = []
    for name in expendable:
        if name in columns and sum(widths[column] + GAP for column in columns) > width:
            del columns[name]
            left_out.append(name)
    if left_out:
        caption = f"{caption} Left out at {width} columns: {', '.join(left_out)}.".strip()
    table = terminal_table(title, caption)
    text_columns = {content.columns[position] for position in content.text_columns}
    for name, (header, *_) in columns.items():
        table.add_column(header, justify="left" if name in text_columns else "right", no_wrap=True)
    for row in zip(*(cells[1:] for cells in columns.values()), strict=True):
        table.add_row(*map(Text, row))
    return table


def _wrapped_column(
    content: PageTable, position: int, width: int, *, with_quiet: bool
) -> list[str]:
    """Return a column's header and cells, each broken into lines between words."""
    header = textwrap.wrap(content.columns[position], HEADER_WIDTH, break_long_words=False)
    cells = []
    for row in content.rows:
        value, quiet = row[position]
        text = f"{value} {quiet}" if with_quiet else value
        if position in content.text_columns:
            # A column of names is narrower than one of words.
            most = width * 7 // 20 if position else max(12, min(24, width // 4))
            text = "\n".join(textwrap.wrap(text, most)) or text
        cells.append(text)
    return ["\n".join(header), *cells]


def _width(cells: Sequence[str]) -> int:
    return max(cell_len(line) for cell in cells for line in cell.split("\n"))
