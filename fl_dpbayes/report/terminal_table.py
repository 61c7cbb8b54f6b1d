"""The one look of every table in the terminal, and how a table fits a narrow one."""

import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from fl_dpbayes.report.page_tables import PageTable

GAP, HEADER_WIDTH = 2, 10


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


def printed_table(
    title: str,
    content: PageTable,
    width: int,
    *,
    quiet: Sequence[str] = (),
    expendable: Sequence[str] = (),
    caption: str = "",
) -> Table:
    """Print a table of the page without breaking a word, of the columns `quiet` also what stands behind a value.

    Columns `expendable` are left out of a narrow terminal, the first one first, and the caption
    says so.
    """
    kept: dict[str, list[str]] = {}
    for at, name in enumerate(content.columns):
        cells = [" ".join(row[at] if name in quiet else row[at][:1]) for row in content.rows]
        if at in content.text_columns:
            # A column of names is narrower than one of words.
            most = width * 7 // 20 if at else max(12, min(24, width // 4))
            cells = ["\n".join(textwrap.wrap(cell, most)) or cell for cell in cells]
        kept[name] = ["\n".join(textwrap.wrap(name, HEADER_WIDTH, break_long_words=False)), *cells]
    sizes = {
        name: max(cell_len(line) for cell in cells for line in cell.split("\n"))
        for name, cells in kept.items()
    }
    left_out = []
    for name in expendable:
        if name in kept and sum(sizes[one] + GAP for one in kept) > width:
            del kept[name]
            left_out.append(name)
    if left_out:
        caption = f"{caption} Left out at {width} columns: {', '.join(left_out)}.".strip()
    table, words = (
        terminal_table(title, caption),
        [content.columns[at] for at in content.text_columns],
    )
    for name, (header, *_) in kept.items():
        table.add_column(header, justify="left" if name in words else "right", no_wrap=True)
    for row in zip(*(cells[1:] for cells in kept.values()), strict=True):
        table.add_row(*map(Text, row))
    return table
