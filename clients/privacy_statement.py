"""What a site says of its spending, from its ledger alone."""

import math

from fl_dpbayes.data.fingerprint import fingerprint
from fl_dpbayes.data.site import Site
from fl_dpbayes.data.site_file import LedgerSettings, SiteFile
from fl_dpbayes.privacy.events import joined, write_history
from fl_dpbayes.privacy.ledger import Ledger
from fl_dpbayes.privacy.ledger_state import Cohort, Part
from fl_dpbayes.privacy.splits import split_name
from fl_dpbayes.protocol.train import PrivacyStatement


def open_ledger(settings: LedgerSettings, site_file: SiteFile, site: Site) -> Ledger:
    """Open the ledger that a site file names, for the site's cohort, and note there which version its records are."""
    # A site that does not train keeps every unit for testing.
    split = site_file.split
    fractions = (split.test_fraction, split.recalibration_fraction) if site_file.role == "train" else (1.0, 0.0)
    cohort = Cohort(
        name=settings.cohort,
        unit=site.unit,
        epsilon=settings.epsilon,
        delta=settings.delta,
        adjacency=settings.adjacency,
        split=split_name(split.key, *fractions),
    )
    ledger = Ledger.open(settings.path, cohort, settings.durability)
    try:
        ledger.record_data_version(fingerprint(site, site_file.split.key))
    except BaseException:
        ledger.close()
        raise
    return ledger


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
