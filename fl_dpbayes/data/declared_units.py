"""What a declared number of units says of the real ones: public constants, so that no check of a request reads data."""

import math

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.privacy.ledger.state import Part

MAX_DECLARATION_ERROR = 0.2
# Of the keyed split: an honest site of any size passes but for 1 in 10^8 keys.
SPLIT_DEVIATIONS = 6.0


def most_declared(units: int) -> float:
    """Return the largest real number of units for which a site may declare `units`: units / .8."""
    return units / (1 - MAX_DECLARATION_ERROR)


def most_in_part(units: int, ratio: float) -> float:
    """Bound the number of units in a further part of a training site.

        m r + 6 sqrt(m r (1 + r)) + 6,   m = units / .8

    n = `units`, declared, of the training part; r >= 0 is the part's share of all units over that of the training part.
    Given the number in one part, that in another is negative binomial.
    """
    most = most_declared(units) * ratio
    return most + SPLIT_DEVIATIONS * math.sqrt(most * (1 + ratio)) + SPLIT_DEVIATIONS


def most_units(site_file: SiteFile, part: Part) -> float:
    """Bound the real number of units in a part from what the site declares; a site that holds more does not load.

    A delta below one over the bound is below 1/n for the real n.
    """
    if site_file.role != "train" or part == "train":
        return most_declared(site_file.units)
    split = site_file.split
    share = split.test_fraction if part == "test" else split.recalibration_fraction
    rest = max(1 - split.test_fraction - split.recalibration_fraction, 1e-9)
    return most_in_part(site_file.units, share / rest)


def is_delta_allowed(site_file: SiteFile, part: Part, delta: float) -> bool:
    """Say whether a delta is below 1/n for every number of units that a part may really hold."""
    return delta * most_units(site_file, part) < 1


def recalibration_units(site_file: SiteFile) -> int:
    """Return the expected number of units in the recalibration part, from what the site declares; 0 without one."""
    split = site_file.split
    share = split.recalibration_fraction
    if site_file.role != "train" or not share or split.test_fraction + share >= 1:
        return 0
    return max(1, round(site_file.units * share / (1 - split.test_fraction - share)))


def check_declaration(declared: int, actual: int, unit: str) -> None:
    """Check that a site holds about as many units as it declares.

    Raises UserError if it holds none, or the declared number is off by more than `MAX_DECLARATION_ERROR` of the
    real one.
    """
    if not actual:
        raise UserError("every record is kept for testing, so nothing is left to train on: lower split.test_fraction")
    if abs(actual - declared) > MAX_DECLARATION_ERROR * actual:
        raise UserError(
            f"units is declared as {declared}, but the site holds {actual} privacy units ({unit}s): declare a round "
            f"number within {MAX_DECLARATION_ERROR:.0%} of that, for example units = {_rounded(actual)}"
        )


def check_most_units(site_file: SiteFile, part: Part, actual: int) -> None:
    """Check that a part holds no more units than `most_units` lets expect, or raise UserError."""
    most = most_units(site_file, part)
    if actual > most * (1 + 1e-9):
        raise UserError(
            f"the part for {part} holds {actual} units, and units = {site_file.units} lets expect at most {most:.0f}: "
            "correct units in the site file"
        )


def _rounded(count: int) -> int:
    step = 10 ** max(len(str(count)) - 2, 0)
    return max(count // step * step, 1)
