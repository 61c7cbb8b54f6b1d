"""What makes a site ready: one list of checks, from which `site check`, `init` and `start` take.

The check of the data writes their snapshot.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from clients.messages import RefusedError
from clients.policy import check_standing
from fl_dpbayes.config import (
    SiteFile,
    asks_for_approval,
    read_own_site_file,
    site_code,
    unapproved_code,
)
from fl_dpbayes.data import (
    Records,
    Site,
    delta_problem,
    prepared,
    site_of,
    source_files,
    write_snapshot,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.hospital.check_connection import connection_findings, secret_findings
from fl_dpbayes.hospital.check_passes import pass_findings
from fl_dpbayes.hospital.check_records import check_records
from fl_dpbayes.hospital.findings import Finding, failed, passed, show, skipped, warned
from fl_dpbayes.hospital.ledger import ledger_of, ledger_problems

MEBIBYTE = 2**20
# What the libraries of a process that trains take.
LIBRARIES_MEBIBYTES = 700
# How often a process that trains holds the records, at most.
COPIES = 4


def check_site(path: Path, console: Console, only: str | None = None) -> int:
    """Look at a site's data and at the way to its server, and print what is found.

    Args:
        path: The site file.
        console: Where it is printed.
        only: "data" or "connection", to look at nothing else; None for both.

    Returns:
        The exit status: 1 if something must be corrected.

    Raises:
        UserError: If the site file cannot be used.
    """
    checks = tuple(CHECKS) if only is None else ("code", *HALVES[only])
    status = show(findings_of(path, read_own_site_file(path), checks), console)
    verdict = (
        "correct what says FAIL, then check again" if status else "ready, but for what says WARN"
    )
    console.print(verdict, markup=False, style="bold")
    return status


def findings_of(path: Path, site_file: SiteFile, checks: Iterable[str]) -> Iterator[Finding]:
    """Look at some of what makes a site ready.

    Args:
        path: The site file.
        site_file: What it says.
        checks: Of `CHECKS`, in this order.

    Yields:
        What is found.
    """
    for name in checks:
        yield from CHECKS[name](path, site_file)


def _data_findings(path: Path, site_file: SiteFile) -> Iterator[Finding]:
    """Read a site's data once, and write their snapshot where nothing is wrong."""
    try:
        problem = delta_problem(site_file)
        if problem:
            raise UserError(problem)
        files = source_files(site_file)
        findings, unscaled_records = check_records(site_file)
        yield from findings
        if unscaled_records is None:
            yield skipped("snapshot", "not written: the data must be put right first")
            return
        records = prepared(site_file, unscaled_records)
        yield from _part_findings(records, site_of(site_file, records))
        digest = write_snapshot(site_file, records, files)
        yield passed(
            "snapshot",
            f"{site_file.records_file}, of data with SHA-256 {digest[:16]}; "
            "runs read it until the data change",
        )
    except UserError as error:
        yield failed("data", str(error), "no snapshot was written")


def _part_findings(records: Records, site: Site) -> Iterator[Finding]:
    """Say what the site's parts hold, whether they share a patient, and if memory is enough."""
    parts = {"training": site.train, "testing": site.test, "recalibration": site.recalibration}
    sizes = []
    names: list[object] = []
    for purpose, part in parts.items():
        if part is None:
            continue
        sizes.append(f"{part.unit_count} for {purpose}")
        if part.unit_names is not None:
            names += part.unit_names.tolist()
    yield passed(
        "data",
        f"{len(records)} records of {site.task.input_shape} and {site.task.outcome.description}",
    )
    if len(set(names)) == len(names):
        yield passed("patients", f"no {site.unit} is in two parts: {', '.join(sizes)}")
    else:
        yield failed("patients", "one is in two parts", "please report this")
    yield _memory_finding(records)


def _memory_finding(records: Records) -> Finding:
    required = LIBRARIES_MEBIBYTES + COPIES * records.features.nbytes // MEBIBYTE
    free = _free_mebibytes()
    message = f"a request takes about {required:,} MiB, and {free:,} MiB are free"
    if required <= free:
        return passed("memory", message)
    return failed("memory", message, "get more memory, or stop what else runs here")


def _ledger_findings(path: Path, site_file: SiteFile) -> Iterator[Finding]:
    if site_file.ledger is None:
        return
    problems = ledger_problems(path)
    if problems:
        yield failed("ledger", problems[0])
        return
    with ledger_of(path) as ledger:
        yield passed("ledger", f"cohort {ledger.cohort.name!r}, sound, and its second place agrees")
        if ledger.state().closed:
            yield warned("cohort", "it is closed for good: no request is answered")
    try:
        check_standing(site_file)
    except RefusedError as error:
        yield warned(
            "policy",
            f"every request is refused: {error}",
            "if that is not meant, change policy.expires in the site file, or remove the stop file",
        )


def _code_findings(path: Path, site_file: SiteFile) -> Iterator[Finding]:
    if not asks_for_approval(site_file, path):
        return
    unapproved = list(unapproved_code(site_file, path))
    if unapproved:
        yield failed(
            "code",
            f"{unapproved[0]}; every request is refused",
            f"find out who changed it; if it is meant, approve it:  fl-dpbayes site approve {path}",
        )
        return
    yield passed(
        "code", f"as approved: {', '.join(code.described() for code in site_code(site_file))}"
    )


def _free_mebibytes() -> float:
    """Return what memory a new process may have; infinity where the system does not say so."""
    with suppress(OSError):
        memory = Path("/proc/meminfo").read_text(encoding="ascii")
        available = re.search(r"MemAvailable:\s+(\d+)", memory)
        if available:
            return int(available[1]) // 1024
    return math.inf


# What makes a site ready, in the order in which it is looked at.
CHECKS: dict[str, Callable[[Path, SiteFile], Iterator[Finding]]] = {
    "code": _code_findings,
    "data": _data_findings,
    "arithmetic": pass_findings,
    "ledger": _ledger_findings,
    "secrets": secret_findings,
    "connection": connection_findings,
}
HALVES = {"data": ("data", "arithmetic", "ledger"), "connection": ("secrets", "connection")}
