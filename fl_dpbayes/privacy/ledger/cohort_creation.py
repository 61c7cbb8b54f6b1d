"""How a cohort comes into a ledger: once, by a command, and only with units that no other cohort of the ledger has."""

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
# Patients may return in a later cohort; records that are mostly those of another cohort are that
# cohort.
MOST_SHARED = 0.1
Describe = Callable[[bytes], DataVersion]


def create_cohort(place: LedgerPlace, cohort: Cohort, describe: Describe | None) -> None:
    """Make a cohort, and its ledger where neither the file nor its second place is there.

    Nothing is overwritten.

    `describe`: gives the version of the cohort's records under the ledger's key; None: by the first
    request. Raises UserError if the cohort is there already, or the file may not serve as a ledger.
    Raises LedgerError if the ledger is not the one that its second place knows, cannot be read or
    written or is damaged, or another cohort has these records.
    """
    new, name = not place.witness.exists(), {"cohort": cohort.name}
    with closing(
        ledger_file.open_ledger_file(place.path, place.durability, create=new)
    ) as connection:
        with transaction(connection):
            entries = ledger_file.read_chain(connection)
            if entries or not new:
                check_witness(place, connection)
            if cohort.name in cohorts_of(entries):
                raise UserError(
                    f"ledger {place.path} holds {cohort.name!r} already: nothing is made "
                    "or overwritten"
                )
            settings = asdict(cohort) | ({"epsilon": "inf"} if math.isinf(cohort.epsilon) else {})
            orders = list(filter_orders(cohort.epsilon, cohort.delta))
            last = append_entry(
                connection, "cohort", {**name, "settings": settings, "orders": orders}
            )
            if describe is not None:
                version = describe(ledger_file.ledger_key(connection))
                require_other_units(entries, cohort.name, version, place)
                last = append_entry(connection, "data version", {**name, **asdict(version)})
        with transaction(connection):
            if new:
                write_witness(place, last.position, last.head)
            else:
                advance_witness(place, connection)


def require_other_units(
    entries: list[Entry], cohort: str, version: DataVersion, place: LedgerPlace
) -> None:
    """Raise LedgerError if a cohort of the chain shares over `MOST_SHARED` of another's units, in this data version."""
    for name in cohorts_of(entries):
        versions = read_state(entries, name).data_versions if name != cohort else []
        shared = max(
            (shared_fraction(version.units, other.units) for other in versions), default=0.0
        )
        if shared > MOST_SHARED:
            raise LedgerError(
                f"about {shared:.0%} of these units are in cohort {name!r} of ledger {place.path}, "
                "and at most "
                f"{MOST_SHARED:.0%} may be: another cohort would give them another budget. Set ledger.cohort in the "
                f"site file to {name!r}"
            )


def unit_sketch(hashes: Iterable[str]) -> tuple[str, ...]:
    """Keep the smallest of a set's hashes: a uniform sample of it that every set with these members draws alike.

    Source: Broder 1997, On the resemblance and containment of documents.

    `hashes`: keyed hashes of equal length, one or more for each unit.
    """
    return tuple(sorted(set(hashes))[:SKETCH_SIZE])


def shared_fraction(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    """Estimate which part of the smaller of two sets lies in the other.

        |A_t and B_t| / min(|A_t|, |B_t|),   A_t = the hashes of A up to t, which both sketches know completely

    It lies in [0, 1], 0 if a sketch is empty; its standard error is at most 1 / (2 sqrt(min(|A_t|,
    |B_t|))).
    """
    if not one or not other:
        return 0.0
    complete = [sketch[-1] for sketch in (one, other) if len(sketch) == SKETCH_SIZE]
    last = min(complete, default=max(one[-1], other[-1]))
    first, second = ({found for found in sketch if found <= last} for sketch in (one, other))
    return len(first & second) / max(min(len(first), len(second)), 1)
