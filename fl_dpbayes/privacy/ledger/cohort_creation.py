"""How a cohort comes into a ledger: once, by a command.

Its units must be others than those of every other cohort of the ledger.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict

from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.filter import filter_orders
from fl_dpbayes.privacy.ledger import file as ledger_file
from fl_dpbayes.privacy.ledger.file import Entry, LedgerError, append_entry, cohorts_of, transaction
from fl_dpbayes.privacy.ledger.state import Cohort, DataVersion, read_state
from fl_dpbayes.privacy.ledger.witness import (
    LedgerPlace,
    advance_witness,
    check_witness,
    write_witness,
)

SKETCH_SIZE = 256
# Some patients may return in a later cohort. Records that are mostly those of another cohort are
# that cohort.
MOST_SHARED = 0.1
Describe = Callable[[bytes], DataVersion]


def create_cohort(place: LedgerPlace, cohort: Cohort, describe: Describe | None) -> None:
    """Make a cohort, and its ledger where neither the file nor its second place is there.

    Nothing is overwritten.

    Args:
        place: Of the ledger.
        cohort: To be made.
        describe: Gives the version of the cohort's records under the ledger's key; None leaves
            that to the first request.

    Raises:
        UserError: If the cohort is there already, or the file may not serve as a ledger.
        LedgerError: If the ledger is not the one that its second place knows, cannot be read or
            written or is damaged, or another cohort has these records.
    """
    is_new = not place.witness.exists()
    connection = ledger_file.open_ledger_file(place.path, place.durability, create=is_new)
    with closing(connection):
        with transaction(connection):
            entries = ledger_file.read_chain(connection)
            if entries or not is_new:
                check_witness(place, connection)
            if cohort.name in cohorts_of(entries):
                raise UserError(
                    f"ledger {place.path} holds {cohort.name!r} already: nothing is made "
                    "or overwritten"
                )
            last_entry = append_entry(connection, "cohort", _cohort_content(cohort))
            if describe is not None:
                version = describe(ledger_file.ledger_key(connection))
                require_other_units(entries, cohort=cohort.name, version=version, place=place)
                content = {"cohort": cohort.name, **asdict(version)}
                last_entry = append_entry(connection, "data version", content)
        with transaction(connection):
            if is_new:
                write_witness(place, position=last_entry.position, head=last_entry.head)
            else:
                advance_witness(place, connection)


def require_other_units(
    entries: list[Entry], cohort: str, version: DataVersion, place: LedgerPlace
) -> None:
    """Refuse a data version whose units are, in more than `MOST_SHARED`, those of another cohort.

    Args:
        entries: Of the whole chain.
        cohort: Name of the cohort that the version belongs to.
        version: Of its records.
        place: Of the ledger, for the error.

    Raises:
        LedgerError: If the version shares too many units with another cohort.
    """
    for name in cohorts_of(entries):
        if name == cohort:
            continue
        versions = read_state(entries, name).data_versions
        shared = max(
            (shared_fraction(version.units, earlier.units) for earlier in versions), default=0.0
        )
        if shared > MOST_SHARED:
            raise LedgerError(
                f"about {shared:.0%} of these units are in cohort {name!r} of ledger {place.path}, "
                f"and at most {MOST_SHARED:.0%} may be: another cohort would give them another "
                f"budget. Set ledger.cohort in the site file to {name!r}"
            )


def unit_sketch(hashes: Iterable[str]) -> tuple[str, ...]:
    """Keep the smallest of a set's hashes: a uniform sample of the set.

    Of its members every other set that has them draws the same ones.

    Args:
        hashes: Keyed hashes of equal length, one or more for each unit.

    Returns:
        At most `SKETCH_SIZE` hashes, rising.

    Source:
        Broder (1997), On the resemblance and containment of documents.
    """
    return tuple(sorted(set(hashes))[:SKETCH_SIZE])


def shared_fraction(sketch_a: tuple[str, ...], sketch_b: tuple[str, ...]) -> float:
    """Estimate which part of the smaller of two sets lies in the larger one.

        |A_t and B_t| / min(|A_t|, |B_t|),   A_t = the hashes of A up to t, B_t those of B

    with the largest t up to which both sketches are complete. The standard error is at most
    1 / (2 sqrt(min(|A_t|, |B_t|))).

    Args:
        sketch_a: Of one set, see `unit_sketch`.
        sketch_b: Of the other set.

    Returns:
        A fraction in [0, 1], 0 if a sketch is empty.
    """
    if not sketch_a or not sketch_b:
        return 0.0
    # A sketch that is not full holds the whole set.
    complete_up_to = [sketch[-1] for sketch in (sketch_a, sketch_b) if len(sketch) == SKETCH_SIZE]
    largest = min(complete_up_to, default=max(sketch_a[-1], sketch_b[-1]))
    a = {unit_hash for unit_hash in sketch_a if unit_hash <= largest}
    b = {unit_hash for unit_hash in sketch_b if unit_hash <= largest}
    return len(a & b) / max(min(len(a), len(b)), 1)


def _cohort_content(cohort: Cohort) -> dict[str, object]:
    settings = asdict(cohort)
    # JSON has no infinity.
    if math.isinf(cohort.epsilon):
        settings["epsilon"] = "inf"
    return {
        "cohort": cohort.name,
        "settings": settings,
        "orders": list(filter_orders(cohort.epsilon, cohort.delta)),
    }
