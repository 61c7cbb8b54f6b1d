"""How a cohort comes into a ledger: once, by a command, and only with units that no other cohort of the ledger has."""

from collections.abc import Callable

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.privacy.filter import filter_orders
from fl_dpbayes.privacy.ledger.data_version import MOST_SHARED, DataVersion, shared_fraction
from fl_dpbayes.privacy.ledger.file import LedgerError, ledger_key, open_ledger_file, transaction
from fl_dpbayes.privacy.ledger.hash_chain import Entry, append_entry, read_chain
from fl_dpbayes.privacy.ledger.state import Cohort, cohort_content, cohorts_of, data_version_content, read_state
from fl_dpbayes.privacy.ledger.witness import LedgerPlace, advance_witness, check_witness, write_witness

Describe = Callable[[bytes], DataVersion]


def create_cohort(place: LedgerPlace, cohort: Cohort, describe: Describe | None) -> None:
    """Make a cohort, and its ledger where neither the file nor its second place is there; nothing is overwritten.

    Args:
        place: of the ledger.
        cohort: name and budget, fixed for good.
        describe: gives the version of the cohort's records under the ledger's key; None: by the first request.

    Raises:
        UserError: if the cohort is there already, or the file may not serve as a ledger.
        LedgerError: if the ledger is not the one that its second place knows, cannot be read or written or is
            damaged, or another cohort has these records.
    """
    new = not place.witness.exists()
    connection = open_ledger_file(place.path, place.durability, create=new)
    try:
        with transaction(connection):
            entries = read_chain(connection)
            if entries or not new:
                check_witness(place, connection)
            if cohort.name in cohorts_of(entries):
                raise UserError(
                    f"ledger {place.path} holds cohort {cohort.name!r} already: nothing is made or overwritten"
                )
            orders = filter_orders(cohort.epsilon, cohort.delta)
            last = append_entry(connection, "cohort", cohort_content(cohort, orders))
            if describe is not None:
                version = describe(ledger_key(connection))
                require_other_units(entries, cohort.name, version, place)
                last = append_entry(connection, "data version", data_version_content(cohort.name, version))
        with transaction(connection):
            if new:
                write_witness(place, last.position, last.head)
            else:
                advance_witness(place, connection)
    finally:
        connection.close()


def require_other_units(entries: list[Entry], cohort: str, version: DataVersion, place: LedgerPlace) -> None:
    """Check that a cohort's units are not those of another cohort of the ledger.

    Args:
        entries: the whole chain.
        cohort: name.
        version: of its records.
        place: of the ledger, for the error's text.

    Raises:
        LedgerError: if more than `MOST_SHARED` of the units are shared.
    """
    for name in cohorts_of(entries):
        versions = read_state(entries, name).data_versions if name != cohort else []
        shared = max((shared_fraction(version.units, other.units) for other in versions), default=0.0)
        if shared > MOST_SHARED:
            raise LedgerError(
                f"about {shared:.0%} of these units are in cohort {name!r} of ledger {place.path}, and at most "
                f"{MOST_SHARED:.0%} may be: another cohort would give them another budget. Set ledger.cohort in the "
                f"site file to {name!r}"
            )
