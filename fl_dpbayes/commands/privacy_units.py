"""Whose privacy is counted: the column of patients, guessed by its name."""

import re

import pandas

PATIENT_COLUMN = re.compile(
    r"(id[ _.-]?)?(patient|pat|subject|person|proband|mrn)(en)?s?"
    r"[ _.-]?(id|no|nr|num|number|nummer|key|code)?",
    re.IGNORECASE,
)


def is_patient_column(name: str) -> bool:
    """Say whether a column's name is one of patients, as `patient`, `pat_id` and `PatientNr`."""
    return PATIENT_COLUMN.fullmatch(name) is not None


def guessed_unit(table: pandas.DataFrame, used: set[str], least: int) -> str | None:
    """Guess the column of patients by its name.

    Args:
        table: One row per record.
        used: Columns that are something else.
        least: Of so many values a column of patients has to have.

    Returns:
        The first column of such a name without a gap; None where there is none.
    """
    for name in map(str, table.columns):
        if name in used or not is_patient_column(name):
            continue
        column = table[name]
        if column.notna().all() and column.nunique() >= least:
            return name
    return None
