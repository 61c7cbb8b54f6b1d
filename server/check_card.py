"""Does the card of a site fit the scenario? Each check raises ValueError with what is wrong."""

import math

from fl_dpbayes.config import Scenario
from fl_dpbayes.config.installed_code import installed_code
from fl_dpbayes.config.record_schema import record_schema
from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol import SiteCard


def check_card(card: SiteCard, registered_name: str, scenario: Scenario) -> None:
    """Check what a site says of itself.

    Args:
        card: The site's card.
        registered_name: The name under which its node's key is registered; empty if it has none.
        scenario: The scenario.

    Raises:
        ValueError: Names the first thing that does not fit.
    """
    if registered_name not in ("", card.name):
        raise ValueError(
            f"its site file calls it {card.name}: give it the name under which its key is known"
        )
    _check_role(card, scenario)
    for name in scenario.named_code:
        _check_code(card, name)
    _check_schema(card, scenario)
    _check_units(card, scenario)


def _check_role(card: SiteCard, scenario: Scenario) -> None:
    planned = scenario.sites.get(card.name)
    if planned is not None and planned.role != card.role:
        raise ValueError(
            f"{card.name} takes the role {card.role!r}, the scenario says {planned.role!r}: make "
            "them the same"
        )


def _check_code(card: SiteCard, name: str) -> None:
    code = installed_code(name)
    if code is None:
        # A module object of this process, which only its own simulated sites can have.
        return
    codes_at_site = {code_at_site.name: code_at_site for code_at_site in card.code}
    code_at_site = codes_at_site.get(name)
    if code_at_site is None:
        raise ValueError(
            f"{card.name} does not allow {name!r} (policy.allowed_code of its site file), "
            "or has not installed it"
        )
    if code_at_site.digest != code.digest:
        raise ValueError(
            f"{card.name} has other code for {name!r}: {code_at_site.described()}, the server "
            f"{code.described()}: install the same version at both"
        )


def _check_schema(card: SiteCard, scenario: Scenario) -> None:
    try:
        schema = record_schema(scenario.data.source)
    except UserError:
        # An image folder that only the sites have: they must agree with each other.
        return
    differences = schema.differences(card.data_schema)
    if differences:
        raise ValueError(
            f"{card.name} has other {' and '.join(differences)} than the scenario (names and their "
            "order, centers, scales, missing, class names): take over the source of the "
            "coordinator's scenario in its site file"
        )


def _check_units(card: SiteCard, scenario: Scenario) -> None:
    # A site whose expected batch q n is below one unit would take steps far longer than its share
    # of the evidence: they are scaled by 1/(q n), so a claim to one unit would be a licence to go
    # anywhere. 1/q of a decimal q may lie a rounding above a whole number.
    least_units = math.ceil(1 / scenario.privacy.sampling_rate - 1e-9)
    if card.role == "train" and card.units < least_units:
        raise ValueError(
            f"{card.name} declares {card.units} units, and at the plan's sampling rate a site that "
            f"trains needs {least_units}, so that a batch holds one on average"
        )
