"""Privacy units, such as patients, that stand at several sites, each of which spends on them."""

from dataclasses import dataclass

import pandas

from fl_dpbayes.data.sources.table import column_texts
from fl_dpbayes.errors import UserError

# So many hospitals of an example are listed.
MOST_LISTED = 4


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


def check_shared_units(shared: SharedUnits | None, *, are_allowed: bool, allow: str) -> None:
    """Check that each unit stands at one site, unless others were allowed.

    Args:
        shared: Those that stand at several, as of `shared_units`.
        are_allowed: Whether a person allowed them.
        allow: What to type to allow them.

    Raises:
        UserError: If one stands at several, and that was not allowed.
    """
    if shared is None or are_allowed:
        return
    raise UserError(
        f"{shared.where}: {shared.fact}: {shared.loss}. Keep each patient's rows at one hospital; "
        f"or, if other people have the same name there, or you accept that loss, {allow}"
    )
