"""What an app bundle holds, read without running or unpacking it, and whether a site lets it run."""

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

PROJECT, LIST = "pyproject.toml", ".info/CONTENT"
CLIENT_APP = "clients.app:app"
MOST_FILES, MOST_PROJECT_BYTES = 100, 16 * 1024
logger = logging.getLogger("fl_dpbayes.site")


@dataclass(frozen=True)
class Bundle:
    """An app bundle: names of its files, the text of its project file, the app's `publisher/name` and version.

    `problem`: why no site runs it, whoever approves; empty for a project file alone that names the
    installed app.
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
        shown = "\n".join(f"  {outside_text(line, MOST_PROJECT_BYTES)}" for line in lines)
        return (
            f"bundle {self.sha256}, app {outside_text(self.app)}; its files, and its project "
            f"file:\n{shown}"
        )


def read_bundle(content: bytes) -> Bundle:
    """Read what a bundle holds; whatever is wrong with it is its `problem`."""
    sha256 = hashlib.sha256(content).hexdigest()
    if len(content) > MOST_HELD_BYTES:
        return Bundle(sha256, f"it is larger than {MOST_HELD_BYTES} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = sorted(archive.namelist()[:MOST_FILES])
            with archive.open(PROJECT) as file:
                written = file.read(MOST_PROJECT_BYTES + 1)
            with archive.open(LIST) as file:
                # Flower compares the files that it names, wherever they lie, with what it says of
                # them.
                listed = file.read(MOST_PROJECT_BYTES) == own_list(written)
        if len(written) > MOST_PROJECT_BYTES:
            raise ValueError("more than a person reads")
        text = written.decode("utf-8")
        project = tomllib.loads(text)
        flower = project["tool"]["flwr"]["app"]
        app, version = (
            f"{flower['publisher']}/{project['project']['name']}",
            str(project["project"]["version"]),
        )
        # Flower makes a folder's name of them.
        if not re.fullmatch(r"[\w-]+/[\w-]+ [\w.+-]+", f"{app} {version}"):
            raise ValueError("no name and version")
        components = dict(flower["components"])
    # The archive and the text are anybody's: what their readers may raise is not written down
    # anywhere.
    except Exception:
        return Bundle(sha256, "it is no app bundle of Flower")
    problem = ""
    if files != [LIST, PROJECT] or not listed:
        problem = (
            "it brings files of its own: here only installed code runs, and a bundle is a "
            "project file alone"
        )
    elif components.get("clientapp") != CLIENT_APP or components.keys() - {
        "clientapp",
        "serverapp",
    }:
        problem = f"its ClientApp is not {CLIENT_APP}, the installed one"
    return Bundle(sha256, problem, app, version, files, text)


def own_list(project: bytes) -> bytes:
    """Return what Flower lists of a bundle that is a project file alone: its name, SHA-256 and bits."""
    return f"{PROJECT},{hashlib.sha256(project).hexdigest()},{8 * len(project)}".encode()


def decision(site_file: Path, bundle: Bundle, content: bytes, mismatch: str = "") -> str:
    """Decide on a bundle that has come: an empty text where it may run, else why not.

    An unknown one is held.

    The approvals and the site file are read anew; if one of them is not valid, or the decision
    cannot be written into the audit log, no bundle runs. `mismatch`: what was found against it
    already.
    """
    reason, log = mismatch or _reason(site_file, bundle, content), node_log(site_file)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        event = {"message": "bundle", "bundle": bundle.sha256, "app": outside_text(bundle.app)}
        record(log, event | {"decision": "refused" if reason else "runs", "reason": reason})
    except (OSError, AuditLogError) as error:
        logger.error("%s", error)
        return "the audit log cannot be written"
    return reason


def _reason(site_file: Path, bundle: Bundle, content: bytes) -> str:
    try:
        own = read_own_site_file(site_file)
        allowed = {
            *read_approvals(site_file).bundles,
            *(own.connection.bundles if own.connection else ()),
        }
        changed = unapproved_code(own, site_file)
    except UserError as error:
        logger.error("%s", error)
        return "the site file or its approvals are not valid"
    if bundle.sha256 in allowed:
        return bundle.problem or (
            f"installed code is not as it was approved: {'; '.join(changed)}" if changed else ""
        )
    kept = hold(site_file, "bundles", bundle.sha256, content)
    place = "held" if kept else "not held: it is too large, or the folder is full"
    return f"not approved, {place}{': ' if bundle.problem else ''}{bundle.problem}"
