"""What an app bundle holds, read without running it, and whether a site lets it run."""

import hashlib
import io
import logging
import re
import tomllib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from fl_dpbayes.config import (
    MOST_HELD_BYTES,
    hold,
    node_log,
    outside_text,
    read_approvals,
    read_own_site_file,
    unapproved_code,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import AuditLogError
from fl_dpbayes.files.audit_log import record

PROJECT = "pyproject.toml"
LIST = ".info/CONTENT"
CLIENT_APP = "clients.app:app"
MOST_FILES = 100
MOST_PROJECT_BYTES = 16 * 1024
logger = logging.getLogger("fl_dpbayes.site")


@dataclass(frozen=True)
class Bundle:
    """An app bundle.

    Attributes:
        sha256: Of its bytes.
        problem: Why no site runs it, whoever approves; empty for a project file alone that names
            the installed app.
        app: The app's `publisher/name`.
        version: The app's.
        files: Their names, sorted.
        project: The text of its project file.
    """

    sha256: str
    problem: str
    app: str = ""
    version: str = ""
    files: list[str] = field(default_factory=list)
    project: str = ""

    def described(self) -> str:
        """Tell a person what the bundle holds, as nothing but text."""
        lines = [*self.files, "", *self.project.splitlines()]
        safe_lines = [f"  {outside_text(line, MOST_PROJECT_BYTES)}" for line in lines]
        heading = (
            f"bundle {self.sha256}, app {outside_text(self.app)}; its files, and its project file:"
        )
        return "\n".join([heading, *safe_lines])


def read_bundle(content: bytes) -> Bundle:
    """Read what a bundle holds.

    Args:
        content: Its bytes, of anybody.

    Returns:
        The bundle; whatever is wrong with it is its `problem`.
    """
    sha256 = hashlib.sha256(content).hexdigest()
    if len(content) > MOST_HELD_BYTES:
        return Bundle(sha256, f"it is larger than {MOST_HELD_BYTES} bytes")
    # The archive and the text are anybody's: what their readers may raise is not written down
    # anywhere.
    try:
        return _read_archive(sha256, content)
    except Exception:
        return Bundle(sha256, "it is no app bundle of Flower")


def _read_archive(sha256: str, content: bytes) -> Bundle:
    """Read a bundle; whatever is raised says that it is none of Flower's."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = sorted(archive.namelist()[:MOST_FILES])
        with archive.open(PROJECT) as file:
            project_bytes = file.read(MOST_PROJECT_BYTES + 1)
        # Flower compares the files that the list names, wherever they lie, with what it says of
        # them.
        with archive.open(LIST) as file:
            has_own_list = file.read(MOST_PROJECT_BYTES) == own_list(project_bytes)
    if len(project_bytes) > MOST_PROJECT_BYTES:
        raise ValueError("more than a person reads")
    text = project_bytes.decode("utf-8")
    project = tomllib.loads(text)
    flower = project["tool"]["flwr"]["app"]
    app = f"{flower['publisher']}/{project['project']['name']}"
    version = str(project["project"]["version"])
    # Flower makes a folder's name of them.
    if not re.fullmatch(r"[\w-]+/[\w-]+ [\w.+-]+", f"{app} {version}"):
        raise ValueError("no name and version")
    components = dict(flower["components"])
    problem = ""
    if files != [LIST, PROJECT] or not has_own_list:
        problem = (
            "it brings files of its own: here only installed code runs, and a bundle is a "
            "project file alone"
        )
    elif components.get("clientapp") != CLIENT_APP or components.keys() - {
        "clientapp",
        "serverapp",
    }:
        problem = f"its ClientApp is not {CLIENT_APP}, the installed one"
    return Bundle(
        sha256=sha256, problem=problem, app=app, version=version, files=files, project=text
    )


def own_list(project: bytes) -> bytes:
    """Return what Flower lists of a bundle that is a project file alone.

    Args:
        project: The file's bytes.

    Returns:
        The file's name, SHA-256 and number of bits.
    """
    return f"{PROJECT},{hashlib.sha256(project).hexdigest()},{8 * len(project)}".encode()


def decision(site_file: Path, bundle: Bundle, content: bytes, mismatch: str = "") -> str:
    """Decide on a bundle that has come, and log the decision; hold an unknown one.

    The approvals and the site file are read anew; if one of them is not valid, or the decision
    cannot be written into the audit log, no bundle runs.

    Args:
        site_file: Of the site.
        bundle: What the bundle holds.
        content: Its bytes.
        mismatch: What speaks against it already.

    Returns:
        Why it may not run; empty where it may.
    """
    reason = mismatch or _refusal_reason(site_file, bundle, content)
    log = node_log(site_file)
    event = {
        "message": "bundle",
        "bundle": bundle.sha256,
        "app": outside_text(bundle.app),
        "decision": "refused" if reason else "runs",
        "reason": reason,
    }
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        record(log, event)
    except (OSError, AuditLogError) as error:
        logger.error("%s", error)
        return "the audit log cannot be written"
    return reason


def _refusal_reason(site_file: Path, bundle: Bundle, content: bytes) -> str:
    try:
        site = read_own_site_file(site_file)
        allowed = set(read_approvals(site_file).bundles)
        if site.connection:
            allowed.update(site.connection.bundles)
        changed_code = unapproved_code(site, site_file)
    except UserError as error:
        logger.error("%s", error)
        return "the site file or its approvals are not valid"
    if bundle.sha256 not in allowed:
        is_held = hold(site_file, "bundles", bundle.sha256, content)
        place = "held" if is_held else "not held: it is too large, or the folder is full"
        return f"not approved, {place}{': ' if bundle.problem else ''}{bundle.problem}"
    if bundle.problem:
        return bundle.problem
    if changed_code:
        return f"installed code is not as it was approved: {'; '.join(changed_code)}"
    return ""
