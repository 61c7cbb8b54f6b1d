"""`fl-dpbayes site statement`: what left a site in a month, for a person.

From its audit log and its ledger.
"""

import re
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pandas
from rich.console import Console

from fl_dpbayes.config import (
    SiteFile,
    counted,
    installed_package,
    node_log,
    outside_text,
    read_site_file,
    unapproved_code,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import ASKED, audit_log_path, read_audit_log
from fl_dpbayes.hospital.audit import log_findings
from fl_dpbayes.hospital.findings import say
from fl_dpbayes.hospital.ledger import ledger_of
from fl_dpbayes.privacy import PARTS, Entry, read_state, spent
from fl_dpbayes.report import count, page_table, printed_table, rounded_up

RUN_CHARACTERS = 16
REQUEST_CHARACTERS = 20
ANSWER_CHARACTERS = 60


def print_statement(site_file: Path, month: str, console: Console) -> int:
    """Print what was asked and answered in a month, and what it cost.

    Args:
        site_file: Of the site whose log and ledger are read.
        month: Year and month, UTC, as `2026-11`; empty for this one.
        console: Where it is printed.

    Returns:
        The exit status: 1 if log and ledger do not agree, or code changed since it was approved.

    Raises:
        UserError: If the month, the site file, the log or the ledger cannot be read.
    """
    month = month or datetime.now(UTC).strftime("%Y-%m")
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
        raise UserError(f"the month is {month[:20]!r}: write year and month, as 2026-11")
    site = read_site_file(site_file)
    lines = _read_log_lines(site_file)
    say(console, f"What left {site.name} in {month} (UTC), by {audit_log_path(site_file)}")
    status = _print_problems(site_file, site, console)
    first_time = min((str(line.get("time", "")) for line in lines), default="")
    if first_time[:7] >= month:
        say(console, f"The log begins on {first_time[:19]}.")
    events = [
        line
        for line in lines
        if str(line.get("time", "")).startswith(month) and line.get("decision") != ASKED
    ]
    _print_requests(events, console)
    _print_code(events, console)
    if site.ledger is not None:
        _print_spend(site_file, month, console)
    return status


def _read_log_lines(site_file: Path) -> list[dict[str, Any]]:
    """Read a site's audit log and the node's.

    The node's own process, best of another user, logs its decisions on bundles by itself.
    """
    try:
        return [*read_audit_log(site_file), *read_audit_log(node_log(site_file))]
    except OSError as error:
        log = audit_log_path(site_file)
        raise UserError(f"the audit log {log} cannot be read: {error.strerror}") from None


def _print_requests(events: list[dict[str, Any]], console: Console) -> None:
    """Print how often each request was answered how, and how much was sent."""
    if not events:
        say(console, "No request came.")
        return
    answers = pandas.DataFrame([_answer(event) for event in events])
    sums = answers.groupby(["run", "request", "answer"]).sum()
    rows = [(*names, *map(count, numbers)) for names, *numbers in sums.itertuples()]
    columns = ("run", "request", "answer", "times", "arrays sent", "bytes sent")
    table = printed_table(
        "Requests",
        page_table(columns, rows, range(3)),
        console.width,
        expendable=("bytes sent",),
    )
    console.print(table)


def _answer(event: dict[str, Any]) -> dict[str, str | int]:
    """Say to which request of which run a line tells what answer, and how much was sent."""
    refusal = event.get("refusal") or {}
    released = event.get("released") or {}
    refusal_text = f"{refusal.get('code', '')} {refusal.get('field', '')}".strip()
    answer = refusal_text or event.get("reason") or event.get("decision")
    return {
        "run": outside_text(str(event.get("run", "–"))[:RUN_CHARACTERS], RUN_CHARACTERS),
        "request": outside_text(str(event.get("message")), REQUEST_CHARACTERS),
        "answer": outside_text(str(answer), ANSWER_CHARACTERS),
        "times": 1,
        "arrays": released.get("arrays", 0),
        "bytes": released.get("bytes", 0),
    }


def _print_spend(site_file: Path, month: str, console: Console) -> None:
    """Print what the month's steps and evaluations cost, by the ledger."""
    with ledger_of(site_file) as ledger:
        entries = ledger.entries()
        cohort = ledger.cohort.name
    _print_clock(entries, console)
    before = read_state(_entries_before(entries, month), cohort)
    # The tilde sorts behind every digit: the month itself counts.
    after = read_state(_entries_before(entries, f"{month}~"), cohort)
    if after.cohort is None:
        return
    budget = after.most().epsilon
    for part in PARTS:
        steps_before = 0
        epsilon_before = 0.0
        if before.cohort:
            spent_before = spent(before, part)
            steps_before = spent_before.steps
            epsilon_before = spent_before.epsilon
        spent_after = spent(after, part)
        if spent_after.steps > steps_before:
            say(
                console,
                f"{part}: {counted(spent_after.steps - steps_before, 'step')}; "
                f"epsilon {rounded_up(epsilon_before)} before, {rounded_up(spent_after.epsilon)} "
                f"after, of {rounded_up(budget)}",
                wrapped=True,
            )
    evaluations = len(after.evaluations)
    closed = "; the cohort is closed" if after.closed else ""
    say(
        console,
        f"evaluations: {evaluations - len(before.evaluations)}, {evaluations} in all{closed}",
        wrapped=True,
    )


def _entries_before(entries: list[Entry], month: str) -> list[Entry]:
    """Return the entries up to the first of this month or later, wherever the clock went after."""
    return list(takewhile(lambda entry: entry.content["time"][:7] < month, entries))


def _print_clock(entries: list[Entry], console: Console) -> None:
    """Print where the ledger's clock was set back a month: steps then count to the later one."""
    for earlier, later in pairwise(entries):
        month = earlier.content["time"][:7]
        if later.content["time"][:7] < month:
            say(
                console,
                f"the clock was set back before entry {later.position} of the ledger: "
                f"this entry and those behind it count to no month before {month}",
            )


def _print_problems(site_file: Path, site: SiteFile, console: Console) -> int:
    """Print what log and ledger lack, and which code is not as approved; return the status."""
    changed_code = unapproved_code(site, site_file)
    for line in changed_code:
        say(console, f"CODE NOT AS APPROVED: {line}; every request is refused")
    problems = log_findings(site_file).problems
    for problem in problems:
        say(console, f"GAP: {problem}")
    if problems:
        say(console, "What follows may lack lines: see  fl-dpbayes site audit verify")
    return 1 if changed_code or problems else 0


def _print_code(events: list[dict[str, Any]], console: Console) -> None:
    """Print which code answered, and whether it is what is installed now."""
    installed = installed_package().digest
    answering_code = dict.fromkeys(str(event["code"]) for event in events if event.get("code"))
    for digest in answering_code:
        verb = "is" if digest == installed else "is NOT what is"
        say(
            console,
            f"answered by code with SHA-256 {outside_text(digest)}, which {verb} installed now",
        )
