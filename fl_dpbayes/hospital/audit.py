"""`fl-dpbayes site audit verify`: a site's audit log and its ledger, line by line.

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
from fl_dpbayes.hospital.findings import say
from fl_dpbayes.hospital.ledger import ledger_of, ledger_problems
from fl_dpbayes.privacy import Entry, Reservation, cohorts_of, read_state
from fl_dpbayes.report import count

# Entries of the ledger that reserve steps.
RESERVING_ENTRIES = frozenset({"reserved", "taken over"})
# Entries of the ledger that a request makes.
REQUEST_ENTRIES = RESERVING_ENTRIES | {"evaluation"}


@dataclass
class LogFindings:
    """What is missing of log and ledger or was changed, and what is no fault.

    Attributes:
        problems: What is wrong, a line of text each.
        notes: What is no fault, a line of text each.
        line_count: How many lines the log has.
        linked_entries: How many entries of the ledger name their line of the log.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    line_count: int = 0
    linked_entries: int = 0


def verify_audit_log(site_file: Path, console: Console) -> int:
    """Print what is wrong with a site's audit log, or that it is whole.

    Args:
        site_file: Of the site whose log is checked.
        console: Where it is printed.

    Returns:
        The exit status: 1 if something is wrong.

    Raises:
        UserError: If a file cannot be read, or the ledger is damaged.
    """
    findings = log_findings(site_file)
    for note in findings.notes:
        say(console, f"note: {note}")
    for problem in findings.problems:
        say(console, f"GAP: {problem}")
    if findings.problems:
        return 1
    say(
        console,
        f"The log is whole: {count(findings.line_count)} lines, each bound to the one before; "
        f"{count(findings.linked_entries)} entries of the ledger know their line, and both tell "
        "of the same steps.",
    )
    return 0


def log_findings(site_file: Path) -> LogFindings:
    """Check a site's audit log, that of its node, the ledger, and the ledger against the log.

    Args:
        site_file: Of the site; the ledger is checked if the file names one.

    Returns:
        What is wrong, and what is no fault.

    Raises:
        UserError: If a file cannot be read, or the ledger is damaged.
    """
    try:
        # The line that an entry of the ledger names is written before the entry, and the line that
        # tells of its steps after it: while no line is written, what is read of both fits.
        with held_still(site_file):
            chain = read_chain_of_log(site_file)
            entries = _ledger_entries(site_file)
        with held_still(node_log(site_file)):
            node_chain = read_chain_of_log(node_log(site_file))
    except OSError as error:
        raise UserError(f"the audit log of {site_file} cannot be read: {error.strerror}") from None
    findings = LogFindings(line_count=len(chain.lines))
    for prefix, log in (("", chain), ("log of the node: ", node_chain)):
        findings.problems += [f"{prefix}{problem}" for problem in log.problems]
        findings.notes += [f"{prefix}{note}" for note in log.notes]
    settings = read_site_file(site_file).ledger
    if settings is not None:
        ledger_faults = ledger_problems(site_file)
        findings.problems += [f"the ledger: {problem}" for problem in ledger_faults]
        _compare_entries(findings, chain, _entries_of_log(entries, chain, settings.cohort))
    return findings


def _ledger_entries(site_file: Path) -> list[Entry]:
    """Read the entries of the ledger that a site file names; none where it names none."""
    if read_site_file(site_file).ledger is None:
        return []
    with ledger_of(site_file) as ledger:
        return ledger.entries()


def _entries_of_log(entries: list[Entry], chain: AuditChain, cohort: str) -> list[Entry]:
    """Return the entries of a site's cohort, and of earlier cohorts with lines in its log."""
    cohorts = {cohort}
    for entry in entries:
        line = entry.content.get("log")
        if line is not None and chain.heads.get(line["number"]) == line["head"]:
            cohorts.add(entry.content["cohort"])
    return [entry for entry in entries if entry.content["cohort"] in cohorts]


def _compare_entries(findings: LogFindings, chain: AuditChain, entries: list[Entry]) -> None:
    """Compare each entry of a request with its lines, and each charge in a line with its entry."""
    states = {cohort: read_state(entries, cohort) for cohort in cohorts_of(entries)}
    endings = _ending_lines(chain)
    charged_lines: set[int] = set()
    entries_without_line = 0
    for entry in entries:
        line = entry.content.get("log")
        if line is None:
            if entry.content["kind"] not in REQUEST_ENTRIES:
                continue
            entries_without_line += 1
            if findings.linked_entries:
                findings.problems.append(
                    f"entry {entry.position} of the ledger was made without a line of the log"
                )
            continue
        findings.linked_entries += 1
        number = line["number"]
        if number < chain.first and chain.lines:
            # It was in a file that went, as the log says.
            continue
        if chain.heads.get(number) != line["head"]:
            fault = "is missing" if number not in chain.heads else "is not as it was written"
            findings.problems.append(
                f"line {number}, which entry {entry.position} of the ledger knows, {fault}"
            )
        if entry.content["kind"] in RESERVING_ENTRIES:
            identity = entry.content.get("reservation", entry.position)
            reservation = states[entry.content["cohort"]].reservations[identity]
            charged_lines.add(number)
            _compare_ending(
                findings=findings,
                chain=chain,
                number=number,
                endings=endings[number],
                reservation=reservation,
            )
    if entries_without_line:
        findings.notes.append(
            f"{entries_without_line} entries of the ledger are of an earlier version, and name no "
            "line of the log"
        )
    _find_unpaid_lines(findings, chain, charged_lines)


def _ending_lines(chain: AuditChain) -> dict[int, list[int]]:
    """Number the lines that ended a request, by the number of the line that began it."""
    endings: dict[int, list[int]] = defaultdict(list)
    for number, event in chain.lines.items():
        if event.get("decision") != ASKED and isinstance(event.get("asked"), int):
            endings[event["asked"]].append(number)
    return endings


def _compare_ending(
    findings: LogFindings,
    chain: AuditChain,
    number: int,
    endings: list[int],
    reservation: Reservation,
) -> None:
    """Compare what the ledger reserved for a request with the line that ended it, if any did."""
    reserved_steps = (
        f"{counted(reservation.steps, 'step')} of round {reservation.round}, run "
        f"{outside_text(reservation.run)}"
    )
    if not endings:
        findings.notes.append(
            f"line {number} began {reserved_steps}, and its process ended before it told of an "
            "answer"
        )
        return
    event = chain.lines[endings[-1]]
    steps = _charged_steps(event)
    # Where the ledger failed after it had taken the steps, nothing was told of a charge, and
    # nothing left.
    tells_charge = event.get("decision") == "answered" or steps > 0
    if tells_charge and steps != reservation.steps:
        findings.problems.append(
            f"line {endings[-1]} tells of {counted(steps, 'step')}, and the ledger holds "
            f"{reserved_steps}"
        )


def _find_unpaid_lines(findings: LogFindings, chain: AuditChain, charged_lines: set[int]) -> None:
    """Find lines that tell of steps for which the ledger has no entry."""
    for number, event in chain.lines.items():
        steps = _charged_steps(event)
        beginning = event.get("asked")
        is_paid = isinstance(beginning, int) and beginning in charged_lines
        if steps and not is_paid:
            findings.problems.append(
                f"line {number} tells of {counted(steps, 'step')} that the ledger does not hold"
            )


def _charged_steps(event: dict[str, Any]) -> int:
    """Read how many steps a line says were charged: 0 where it says nothing that can be read."""
    charge = event.get("charge")
    if not isinstance(charge, dict):
        return 0
    steps = charge.get("steps", 0)
    return steps if isinstance(steps, int) else 0
