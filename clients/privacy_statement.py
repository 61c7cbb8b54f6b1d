"""What a site says of its spending, from its ledger alone."""

import math

from fl_dpbayes.data.site import Site
from fl_dpbayes.data.site_file import LedgerSettings
from fl_dpbayes.privacy.events import write_history
from fl_dpbayes.privacy.ledger import Ledger
from fl_dpbayes.privacy.ledger_state import Cohort, Part
from fl_dpbayes.protocol.train import PrivacyStatement


def open_ledger(settings: LedgerSettings, site: Site) -> Ledger:
    """Open the ledger that a site file names, for the site's cohort."""
    cohort = Cohort(
        name=settings.cohort,
        unit=site.unit,
        epsilon=settings.epsilon,
        delta=settings.delta,
        adjacency=settings.adjacency,
    )
    return Ledger.open(settings.path, cohort, settings.durability)


def privacy_statement(ledger: Ledger, part: Part, site: Site, *, seeded: bool) -> PrivacyStatement:
    """State what a part of the site's cohort has spent.

    Args:
        ledger: the site's ledger.
        part: `train` or `test`; the two are disjoint and each has the whole budget.
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
        budget=cohort.epsilon,
        history=tuple((sigma, rate, int(steps)) for sigma, rate, steps in write_history(spent.history)),
        seeded=seeded,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
