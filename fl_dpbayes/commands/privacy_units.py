"""Whose privacy is counted: the column of patients, and patients at several hospitals."""

import re
from dataclasses import dataclass

import pandas

from fl_dpbayes.data.sources.table import column_texts

PATIENT_COLUMN = re.compile(
    r"(id[ _.-]?)?(patient|pat|subject|person|proband|mrn)(en)?s?"
    r"[ _.-]?(id|no|nr|num|number|nummer|key|code)?",
    re.IGNORECASE,
)
# So many hospitals of an example are listed.
MOST_LISTED = 4
# What a scenario says of patients who stand at several hospitals; their number is not for sharing.
SHARED_UNITS_LINE = (
    "# Some of them stand at several hospitals: each hospital spends an epsilon of its own on such "
    "a patient."
)


@dataclass(frozen=True)
class SharedUnits:
    """Privacy units that stand at several sites.

    Attributes:
        where: What names them.
        count: How many of them there are.
        units: How many units there are in all.
        example: One of them.
        sites: The sites where it stands.
        most_sites: At how many sites one of them stands at most.
    """

    where: str
    count: int
    units: int
    example: str
    sites: tuple[str, ...]
    most_sites: int

    @property
    def fact(self) -> str:
        """How many there are, with an example."""
        return (
            f"{self.count:,} of {self.units:,} patients stand at several hospitals, for example "
            f"{self.example!r} at {', '.join(self.sites[:MOST_LISTED])}"
        )

    @property
    def loss(self) -> str:
        """What that means for such a patient's privacy."""
        return (
            "privacy is counted at each hospital apart, so such a patient may lose epsilon at "
            f"each, up to {self.most_sites} times"
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


def shared_units(units: pandas.Series, sites: pandas.Series) -> SharedUnits | None:
    """Find the units that stand at several sites.

    Args:
        units: Each record's unit, (N,); the series' name is said.
        sites: Each record's site, (N,).

    Returns:
        How many there are and an example, the first; None where there is none.
    """
    pairs = pandas.DataFrame(
        {"unit": column_texts(units), "site": column_texts(sites)}
    ).drop_duplicates()
    site_counts = pairs["unit"].value_counts(sort=False)
    shared = site_counts[site_counts > 1]
    if not len(shared):
        return None
    example = str(shared.index[0])
    return SharedUnits(
        where=str(units.name),
        count=len(shared),
        units=len(site_counts),
        example=example,
        sites=tuple(pairs["site"][pairs["unit"] == example]),
        most_sites=int(shared.max()),
    )
