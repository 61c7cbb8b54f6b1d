"""What `fl-dpbayes site check` does: looks at a site's data, writes their snapshot, and tries the way to the server."""

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
# Of a process that trains: its libraries; and how often it holds the records, at most.
LIBRARIES_MEBIBYTES, COPIES = 700, 4


def check_site(path: Path, console: Console, only: str | None = None) -> int:
    """Look at a site's data and at the way to its server, or `only` at "data" or "connection".

    Print what was found.

    Returns the exit status: 1 if something must be corrected. Raises UserError if the site file
    cannot be used.
    """
    site_file = read_own_site_file(path)
    status = show(_code_findings(path, site_file), console)
    if only != "connection":
        status |= show(data_findings(site_file), console)
        status |= show(pass_findings(site_file), console)
        status |= show(_ledger_findings(path, site_file), console) if site_file.ledger else 0
    if only != "data":
        status |= show(connection_findings(site_file), console)
    done = "correct what says FAIL, then check again" if status else "ready, but for what says WARN"
    console.print(done, markup=False, style="bold")
    return status


def data_findings(site_file: SiteFile) -> Iterator[Finding]:
    """Read a site's data once, say what is wrong with them, and write their snapshot where nothing is."""
    try:
        if problem := delta_problem(site_file):
            raise UserError(problem)
        files = source_files(site_file)
        found, loaded = check_records(site_file)
        yield from found
        if loaded is None:
            yield skipped("snapshot", "not written: the data must be put right first")
            return
        records = prepared(site_file, loaded)
        yield from _part_findings(site_file, records, site_of(site_file, records))
        content = f"of data with SHA-256 {write_snapshot(site_file, records, files)[:16]}"
        yield passed(
            "snapshot", f"{site_file.records_file}, {content}; runs read it until the data change"
        )
    except UserError as error:
        yield failed("data", str(error), "no snapshot was written")


def _part_findings(site_file: SiteFile, records: Records, site: Site) -> Iterator[Finding]:
    parts = {"training": site.train, "testing": site.test, "recalibration": site.recalibration}
    held = {name: part for name, part in parts.items() if part is not None}
    sizes = ", ".join(f"{part.unit_count} for {name}" for name, part in held.items())
    yield passed(
        "data", f"{len(records)} records of {site.task.input_shape} and {site.task.classes} classes"
    )
    names = [
        name
        for part in held.values()
        if part.unit_names is not None
        for name in part.unit_names.tolist()
    ]
    apart = passed("patients", f"no {site.unit} is in two parts: {sizes}")
    yield (
        apart
        if len(set(names)) == len(names)
        else failed("patients", "one is in two parts", "please report this")
    )
    need, free = (
        LIBRARIES_MEBIBYTES + COPIES * records.features.nbytes // MEBIBYTE,
        _free_mebibytes(),
    )
    said = f"a request takes about {need:,} MiB, and {free:,} MiB are free"
    enough = passed("memory", said)
    yield (
        enough
        if need <= free
        else failed("memory", said, "get more memory, or stop what else runs here")
    )


def _ledger_findings(path: Path, site_file: SiteFile) -> Iterator[Finding]:
    if problems := ledger_problems(path)[0]:
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
    remedy = f"find out who changed it; if it is meant, approve it:  fl-dpbayes site approve {path}"
    for line in unapproved_code(site_file, path):
        yield failed("code", f"{line}; every request is refused", remedy)
        return
    yield passed(
        "code", f"as approved: {', '.join(code.described() for code in site_code(site_file))}"
    )


def _free_mebibytes() -> float:
    """Return what memory a new process may have, or infinity where the system does not say so."""
    with suppress(OSError):
        found = re.search(
            r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="ascii")
        )
        return int(found[1]) // 1024 if found else math.inf
    return math.inf
