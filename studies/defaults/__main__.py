"""The search for defaults: run its cells, and write its tables.

python -m studies.defaults run CELLS      every cell that is not there; needs the data folder
python -m studies.defaults table CELLS    tables of what is there, and the page
"""

import argparse
import logging
from collections.abc import Iterable
from pathlib import Path

from studies import pages
from studies.defaults.cells import (
    COUPLINGS,
    Cell,
    name_of,
    published_cells,
    read_outcomes,
    run_cell,
    search_cells,
)
from studies.defaults.choice import best_try, chosen_tries, excess_table
from studies.defaults.page import write_tables


def run(folder: Path) -> None:
    """Run a search for each coupling, and what is published of its choice.

    Args:
        folder: Of all cells.
    """
    for coupling in COUPLINGS:
        run_cells(search_cells(coupling), folder)
        excess = excess_table(read_outcomes(folder), coupling)
        everywhere = best_try(excess)
        chosen = {
            table: [name_of(number, coupling) for number in {by_others, everywhere}]
            for table, by_others in chosen_tries(excess).items()
        }
        run_cells(published_cells(chosen), folder)


def run_cells(cells: Iterable[Cell], folder: Path) -> None:
    """Run cells one by one, and say where it is."""
    place = ("", 0)
    for cell in cells:
        if (cell.table, cell.seed) != place:
            place = (cell.table, cell.seed)
            print(*place, flush=True)
        run_cell(cell, folder)


def main() -> None:
    """Run cells or write tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("run", "run the cells that are not there"), ("table", "write tables")):
        commands.add_parser(name, help=words).add_argument("cells", type=Path)
    options = parser.parse_args()
    # Sites warn of features of another size than 1; they are as `init` proposed them.
    logging.disable(logging.WARNING)
    if options.command == "run":
        run(options.cells)
    else:
        write_tables(options.cells, pages.DEFAULTS)
        pages.main()


if __name__ == "__main__":
    main()
