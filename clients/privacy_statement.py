"""What a site says of its spending, from its ledger alone."""

import math

from fl_dpbayes.data.site import Site
from fl_dpbayes.privacy.events import joined, write_history
from fl_dpbayes.privacy.ledger.ledger import Ledger
from fl_dpbayes.privacy.ledger.state import Part
from fl_dpbayes.protocol.train import PrivacyStatement


def privacy_statement(ledger: Ledger, part: Part, site: Site, *, seeded: bool) -> PrivacyStatement:
    """State what a part of the site's cohort has spent.

    Args:
        ledger: the site's ledger.
        part: of the units; the parts are disjoint and each has the whole budget.
        site: gives the declared number of units.
        seeded: whether noise follows from a seed, so that nothing is private.

    Returns:
        The statement; infinite values are None.
    """
    spent, cohort = ledger.spent(part), ledger.cohort
    return PrivacyStatement(
        cohort=cohort.name,
        unit=cohort.unit,
        units=site.units,
        adjacency=cohort.adjacency,
        delta=cohort.delta,
        epsilon=_finite(spent.epsilon),
        epsilon_method=spent.method,
        mu=_finite(spent.mu.mu),
        mu_kind=spent.mu.kind,
        steps=spent.steps,
        budget=_finite(cohort.epsilon),
        history=tuple((sigma, rate, int(steps)) for sigma, rate, steps in write_history(joined(spent.history))),
        seeded=seeded,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
