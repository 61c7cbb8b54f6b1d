"""`fl-dpbayes site audit verify`: a site's audit log and its ledger, line by line against each other.

Each entry of the ledger names the line of the log that was written before it; each line that ends a
request names the line that began it, and what was paid.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_dpbayes.config import counted, node_log, outside_text, read_site_file
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import ASKED, AuditChain, held_still, read_chain_of_log
from fl_dpbayes.hospital.ledger import ledger_of, ledger_problems
from fl_dpbayes.privacy import Entry, Reservation, cohorts_of, read_state
from fl_dpbayes.report import count

# Entries of the ledger that a request makes.
REQUESTED = frozenset({"reserved", "taken over", "evaluation"})


@dataclass
class LogFindings:
    """What is missing of log and ledger or was changed, and what is no fault.

    A line of text each.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lines: int = 0
    known: int = 0


def verify_audit_log(site_file: Path, console: Console) -> int:
    """Print what is wrong with a site's audit log, or that it is whole.

    Return the exit status, 1 if it is not.
    """
    found = log_findings(site_file)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    for problem in found.problems:
        console.print(f"GAP: {problem}", markup=False, soft_wrap=True)
    if found.problems:
        return 1
    sound = f"The log is whole: {count(found.lines)} lines, each bound to the one before"
    known = (
        f"{count(found.known)} entries of the ledger know their line, and both tell of "
        "the same steps"
    )
    console.print(f"{sound}; {known}.", markup=False, soft_wrap=True)
    return 0


def log_findings(site_file: Path) -> LogFindings:
    """Check a site's audit log, that of its node, the ledger, and the ledger against the log.

    Raises UserError if a file cannot be read, or the ledger is damaged.
    """
    found = LogFindings()
    try:
        # A line that the ledger knows is written before its entry, and one that tells of steps
        # after theirs: while no line is written, what was read of both fits.
        with held_still(site_file):
            chain, entries = read_chain_of_log(site_file), _ledger_entries(site_file)
        with held_still(node_log(site_file)):
            of_node = read_chain_of_log(node_log(site_file))
    except OSError as error:
        raise UserError(f"the audit log of {site_file} cannot be read: {error.strerror}") from None
    found.lines = len(chain.lines)
    found.problems += chain.problems + [
        f"log of the node: {problem}" for problem in of_node.problems
    ]
    found.notes += chain.notes + [f"log of the node: {note}" for note in of_node.notes]
    settings = read_site_file(site_file).ledger
    if settings is not None:
        found.problems += [f"the ledger: {problem}" for problem in ledger_problems(site_file)[0]]
        _reconcile(found, chain, _entries_of_log(entries, chain, settings.cohort))
    return found


def _ledger_entries(site_file: Path) -> list[Entry]:
    """Read the entries of the ledger that a site file names; none where it names none."""
    if read_site_file(site_file).ledger is None:
        return []
    with ledger_of(site_file) as ledger:
        return ledger.entries()


def _entries_of_log(entries: list[Entry], chain: AuditChain, cohort: str) -> list[Entry]:
    """Return the entries of a site's cohort, and those of cohorts that it had before, whose lines stand in its log."""
    cohorts = {cohort}
    for entry in entries:
        line = entry.content.get("log")
        if line is not None and chain.heads.get(line["number"]) == line["head"]:
            cohorts.add(entry.content["cohort"])
    return [entry for entry in entries if entry.content["cohort"] in cohorts]


def _reconcile(found: LogFindings, chain: AuditChain, entries: list[Entry]) -> None:
    """Compare each entry that a request made with its lines, and each line that tells of a charge with its entry."""
    states = {cohort: read_state(entries, cohort) for cohort in cohorts_of(entries)}
    endings: dict[int, list[int]] = defaultdict(list)
    for number, event in chain.lines.items():
        if event.get("decision") != ASKED and isinstance(event.get("asked"), int):
            endings[event["asked"]].append(number)
    paid: dict[int, Reservation] = {}
    unnamed = 0
    for entry in entries:
        line = entry.content.get("log")
        if line is None:
            if entry.content["kind"] not in REQUESTED:
                continue
            unnamed += 1
            if found.known:
                found.problems.append(
                    f"entry {entry.position} of the ledger was made without a line of the log"
                )
            continue
        found.known += 1
        number = line["number"]
        if number < chain.first and chain.lines:
            # It was in a file that went, as the log says.
            continue
        if chain.heads.get(number) != line["head"]:
            what = "is missing" if number not in chain.heads else "is not as it was written"
            found.problems.append(
                f"line {number}, which entry {entry.position} of the ledger knows, {what}"
            )
        if entry.content["kind"] in ("reserved", "taken over"):
            identity = entry.content.get("reservation", entry.position)
            paid[number] = states[entry.content["cohort"]].reservations[identity]
            _compare_ending(found, chain, number, endings[number], paid[number])
    if unnamed:
        found.notes.append(
            f"{unnamed} entries of the ledger are of an earlier version, and name no "
            "line of the log"
        )
    for number, event in chain.lines.items():
        steps = _steps_of(event)
        asked = event.get("asked")
        if steps and not (isinstance(asked, int) and asked in paid):
            found.problems.append(
                f"line {number} tells of {counted(steps, 'step')} that the ledger does not hold"
            )


def _compare_ending(
    found: LogFindings, chain: AuditChain, number: int, endings: list[int], reservation: Reservation
) -> None:
    whose = (
        f"{counted(reservation.steps, 'step')} of round {reservation.round}, run "
        f"{outside_text(reservation.run)}"
    )
    if not endings:
        found.notes.append(
            f"line {number} began {whose}, and its process ended before it told of an answer"
        )
        return
    event = chain.lines[endings[-1]]
    # Where the ledger failed after it had taken the steps, nothing was told of a charge, and
    # nothing left.
    told = event.get("decision") == "answered" or _steps_of(event) > 0
    if told and _steps_of(event) != reservation.steps:
        said = f"line {endings[-1]} tells of {counted(_steps_of(event), 'step')}"
        found.problems.append(f"{said}, and the ledger holds {whose}")


def _steps_of(event: dict[str, Any]) -> int:
    charge = event.get("charge")
    steps = charge.get("steps", 0) if isinstance(charge, dict) else 0
    return steps if isinstance(steps, int) else 0
