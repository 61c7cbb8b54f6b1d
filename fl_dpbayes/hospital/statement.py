"""`fl-dpbayes site statement`: what left a site in a month, for a person.

From its audit log and its ledger.
"""

import re
from collections import defaultdict
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

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
from fl_dpbayes.hospital.ledger import ledger_of
from fl_dpbayes.privacy import PARTS, Entry, read_state, spent
from fl_dpbayes.report import count, page_table, printed_table, rounded_up


def print_statement(site_file: Path, month: str, console: Console) -> int:
    """Print what was asked and answered in a month (`2026-11`, UTC; empty: this one), and what it cost.

    Returns the exit status: 1 if log and ledger do not agree, or code changed since it was
    approved. Raises UserError if the month, the site file or the ledger cannot be read.
    """
    month = month or datetime.now(UTC).strftime("%Y-%m")
    if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
        raise UserError(f"the month is {month[:20]!r}: write year and month, as 2026-11")
    record, log = read_site_file(site_file), audit_log_path(site_file)
    try:
        # The node's own process, best of another user, keeps its decisions on bundles in a log of
        # its own.
        lines = [*read_audit_log(site_file), *read_audit_log(node_log(site_file))]
    except OSError as error:
        raise UserError(f"the audit log {log} cannot be read: {error.strerror}") from None
    events = [
        line
        for line in lines
        if str(line.get("time", "")).startswith(month) and line.get("decision") != ASKED
    ]
    console.print(
        f"What left {record.name} in {month} (UTC), by {log}", markup=False, soft_wrap=True
    )
    status = _print_findings(site_file, record, console)
    if (first := min((str(line.get("time", "")) for line in lines), default=""))[:7] >= month:
        console.print(f"The log begins on {first[:19]}.", markup=False)
    sums = defaultdict[tuple[str, ...], list[int]](lambda: [0, 0, 0])
    for event in events:
        refusal, released = event.get("refusal") or {}, event.get("released") or {}
        said = f"{refusal.get('code', '')} {refusal.get('field', '')}".strip()
        answer = said or event.get("reason") or event.get("decision")
        texts = str(event.get("run", "–"))[:16], event.get("message"), answer
        key = tuple(
            outside_text(str(text), most) for text, most in zip(texts, (16, 20, 60), strict=True)
        )
        more = (1, released.get("arrays", 0), released.get("bytes", 0))
        sums[key] = [one + other for one, other in zip(sums[key], more, strict=True)]
    rows = [(*key, *map(count, sums[key])) for key in sorted(sums)]
    content = page_table(
        ("run", "request", "answer", "times", "arrays sent", "bytes sent"), rows, range(3)
    )
    shown = printed_table("Requests", content, console.width, expendable=("bytes sent",))
    console.print(shown if rows else "No request came.")
    _print_code(events, console)
    if record.ledger is None:
        return status
    with ledger_of(site_file) as ledger:
        entries, name = ledger.entries(), ledger.cohort.name
    _print_clock(entries, console)
    before = read_state(_entries_before(entries, month), name)
    after = read_state(_entries_before(entries, f"{month}~"), name)
    if after.cohort is None:
        return status
    for part in PARTS:
        old, new = spent(before, part) if before.cohort else None, spent(after, part)
        steps, epsilon = (old.steps, old.epsilon) if old else (0, 0.0)
        if new.steps > steps:
            least, now, most = map(rounded_up, (epsilon, new.epsilon, after.most().epsilon))
            said = (
                f"{counted(new.steps - steps, 'step')}; epsilon {least} before, {now} "
                f"after, of {most}"
            )
            console.print(f"{part}: {said}", markup=False)
    measured, closed = len(after.evaluations), "; the cohort is closed" if after.closed else ""
    console.print(
        f"evaluations: {measured - len(before.evaluations)}, {measured} in all{closed}",
        markup=False,
    )
    return status


def _entries_before(entries: list[Entry], month: str) -> list[Entry]:
    """Return the entries up to the first of this month or a later one, wherever the clock was set back after it."""
    return list(takewhile(lambda entry: entry.content["time"][:7] < month, entries))


def _print_clock(entries: list[Entry], console: Console) -> None:
    """Print where the ledger's clock was set back to an earlier month, since steps then count to the later one."""
    for earlier, later in pairwise(entries):
        if later.content["time"][:7] < earlier.content["time"][:7]:
            said = f"the clock was set back before entry {later.position} of the ledger"
            remedy = (
                "this entry and those behind it count to no month before "
                f"{earlier.content['time'][:7]}"
            )
            console.print(f"{said}: {remedy}", markup=False, soft_wrap=True)


def _print_findings(site_file: Path, record: SiteFile, console: Console) -> int:
    """Print what is missing of log and ledger, and which code is not as it was approved.

    Return the exit status.
    """
    changed = unapproved_code(record, site_file)
    for line in changed:
        console.print(
            f"CODE NOT AS APPROVED: {line}; every request is refused", markup=False, soft_wrap=True
        )
    found = log_findings(site_file)
    for problem in found.problems:
        console.print(f"GAP: {problem}", markup=False, soft_wrap=True)
    if found.problems:
        said = "What follows may lack lines: see  fl-dpbayes site audit verify"
        console.print(said, markup=False, soft_wrap=True)
    return 1 if changed or found.problems else 0


def _print_code(events: list[dict[str, Any]], console: Console) -> None:
    """Print which code answered, and whether it is what is installed now."""
    installed = installed_package().digest
    answered = dict.fromkeys(str(event["code"]) for event in events if event.get("code"))
    for digest in answered:
        now = (
            "which is installed now"
            if digest == installed
            else "which is NOT what is installed now"
        )
        console.print(
            f"answered by code with SHA-256 {outside_text(digest)}, {now}",
            markup=False,
            soft_wrap=True,
        )
