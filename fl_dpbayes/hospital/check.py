"""What `fl-dpbayes site check` does.

It looks at a site's data, writes their snapshot, and tries the way to the server.
"""

import math
import re
from collections.abc import Iterator
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
from fl_dpbayes.hospital.check_connection import connection_findings
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
    site_file = read_own_site_file(path)
    status = show(_code_findings(path, site_file), console)
    if only != "connection":
        status |= show(data_findings(site_file), console)
        status |= show(pass_findings(site_file), console)
        if site_file.ledger:
            status |= show(_ledger_findings(path, site_file), console)
    if only != "data":
        status |= show(connection_findings(site_file), console)
    verdict = (
        "correct what says FAIL, then check again" if status else "ready, but for what says WARN"
    )
    console.print(verdict, markup=False, style="bold")
    return status


def data_findings(site_file: SiteFile) -> Iterator[Finding]:
    """Read a site's data once, and write their snapshot where nothing is wrong.

    Args:
        site_file: Of the site.

    Yields:
        What is wrong with the data, and what they hold.
    """
    try:
        yield from _checked_data(site_file)
    except UserError as error:
        yield failed("data", str(error), "no snapshot was written")


def _checked_data(site_file: SiteFile) -> Iterator[Finding]:
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
    yield from _part_findings(site_file, records, site_of(site_file, records))
    digest = write_snapshot(site_file, records, files)
    yield passed(
        "snapshot",
        f"{site_file.records_file}, of data with SHA-256 {digest[:16]}; "
        "runs read it until the data change",
    )


def _part_findings(site_file: SiteFile, records: Records, site: Site) -> Iterator[Finding]:
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
    problems = ledger_problems(path)[0]
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
            "is it meant? look at expires and stop_file",
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
