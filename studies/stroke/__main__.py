"""The stroke trial and the second trial: run their federations by NumPy, and write the tables.

python -m studies.stroke search            tries of every rival, splits 101 to 103
python -m studies.stroke run CELLS         every federation; goes on where it stopped
python -m studies.stroke tables CELLS      tables of what is there, and the pages
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from fl_dpbayes.config import load_scenario
from fl_dpbayes.errors import UserError
from studies import pages
from studies.second_trial.analysis import RIVALS_HERE, second_trial_tables
from studies.stroke.cells import (
    COVARIANCE_DRAWS,
    PROGRAM,
    SECOND_CELLS,
    SECOND_DRAWS,
    SECOND_PROGRAM,
    STROKE_CELLS,
    STROKE_DRAWS,
    STUDY,
    check_second_table,
    covariance_scenario,
    run_cells,
    second_scenario,
    splits_of,
)
from studies.stroke.comparison import PRIVATE, compare, covariance_tables, large_countries, validate
from studies.stroke.federation import Federation, read_federations
from studies.stroke.places import (
    COUNTRIES,
    at_home_table,
    held_out_table,
    places_held_out,
    update_table,
)
from studies.stroke.program import noise_table, program_summary, program_table
from studies.stroke.rivals import RIVALS, SEARCHED, Split, search
from studies.stroke.sets import sets_table, without_labels_table

TRIES = "rivals-tries"
Tables = Mapping[str, pd.DataFrame]


def search_tries() -> None:
    """Try every setting of every rival, on both trials' splits of the search."""
    stroke = splits_of(load_scenario(STUDY, []), SEARCHED)
    write_tables({TRIES: search(RIVALS, stroke)}, pages.STROKE)
    second = splits_of(second_scenario(), SEARCHED)
    write_tables({TRIES: search(RIVALS_HERE, second)}, pages.SECOND)


def stroke_tables(cells: Path) -> Iterator[Tables]:
    """Yield the stroke trial's tables as they are made.

    Args:
        cells: Folder of all cells.
    """
    splits = splits_of(load_scenario(STUDY, []))
    tries = pd.read_csv(pages.STROKE / f"{TRIES}.csv")
    first_draws = read_federations(cells / STROKE_CELLS)
    yield validate(splits[0], first_draws, large_countries(splits[0]), tries)
    private = [federation for federation in first_draws if federation.privacy == PRIVATE]
    countries = list(places_held_out(private, splits, COUNTRIES))
    yield {"sets": sets_table(countries), "sets-without-labels": without_labels_table(countries)}
    draws = [*first_draws, *read_federations(cells / STROKE_DRAWS)]
    yield compare(splits, draws, RIVALS, tries)
    yield program_tables(cells / PROGRAM, draws, splits)
    whitened = splits_of(covariance_scenario(seed=splits[0].seed, epsilon=1.0))
    with_covariance = read_federations(cells / COVARIANCE_DRAWS)
    yield covariance_tables(splits, draws, whitened, with_covariance)
    held_out = [each for each in first_draws if each.held_out]
    yield {"held-out": held_out_table(lambda kind: places_held_out(held_out, splits, kind))}
    yield {"update": update_table(lambda kind: places_held_out(private, splits, kind))}
    yield {"at-home": at_home_table(private, splits)}


def second_tables(cells: Path) -> Iterator[Tables]:
    """Yield the second trial's tables as they are made.

    Args:
        cells: Folder of all cells.
    """
    splits = splits_of(second_scenario())
    tries = pd.read_csv(pages.SECOND / f"{TRIES}.csv")
    first_draws = read_federations(cells / SECOND_CELLS)
    draws = [*first_draws, *read_federations(cells / SECOND_DRAWS)]
    yield compare(splits, draws, RIVALS_HERE, tries)
    yield second_trial_tables(splits, first_draws)
    yield program_tables(cells / SECOND_PROGRAM, draws, splits)


def program_tables(folder: Path, draws: Sequence[Federation], splits: Sequence[Split]) -> Tables:
    """Return the tables of kept runs beside draws of the noise; none where no run is there."""
    if not folder.exists():
        return {}
    runs = program_table(read_federations(folder), draws, splits)
    return {
        "program": runs,
        "program-summary": program_summary(runs),
        "program-noise": noise_table(folder, splits),
    }


def write_tables(tables: Tables, folder: Path) -> None:
    """Write each table as a CSV file."""
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.5g")
        print(f"{folder.name}/{name}: {len(frame)} rows", flush=True)


def main() -> None:
    """Search, run or write tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("search", help="write the rivals' tries")
    run = commands.add_parser("run", help="run the cells that are not there")
    run.add_argument("cells", type=Path)
    tables = commands.add_parser("tables", help="write tables and pages")
    tables.add_argument("cells", type=Path)
    options = parser.parse_args()
    try:
        check_second_table()
    except UserError as error:
        parser.error(str(error))
    if options.command == "search":
        search_tries()
        return
    if options.command == "run":
        run_cells(options.cells)
        return
    for tables_of_second in second_tables(options.cells):
        write_tables(tables_of_second, pages.SECOND)
    for tables_of_stroke in stroke_tables(options.cells):
        write_tables(tables_of_stroke, pages.STROKE)
    pages.main()


if __name__ == "__main__":
    main()
