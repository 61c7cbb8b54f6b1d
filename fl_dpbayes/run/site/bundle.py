"""What an app bundle holds, read without running or unpacking it, and whether a site lets it run."""

import hashlib
import io
import logging
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_dpbayes.config.approvals import MOST_HELD_BYTES, hold, node_log, read_approvals
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.audit_log import AuditLogError, record
from fl_dpbayes.config.names import outside_text
from fl_dpbayes.config.site_file import read_own_site_file

PROJECT, LIST = "pyproject.toml", ".info/CONTENT"
CLIENT_APP = "clients.app:app"
MOST_FILES, MOST_PROJECT_BYTES = 2000, 64 * 1024
logger = logging.getLogger("fl_dpbayes.site")


@dataclass(frozen=True)
class Bundle:
    """An app bundle: name -> size of its files, the text of its project file, the app's `publisher/name` and version.

    `problem`: why no site runs it, whoever approves; empty where it is thin, a project file alone that names the
    installed app.
    """

    sha256: str
    files: dict[str, int]
    project: str
    app: str
    version: str
    problem: str


def read_bundle(content: bytes) -> Bundle:
    """Read what a bundle holds; whatever is wrong with it is its `problem`."""
    sha256 = hashlib.sha256(content).hexdigest()
    if len(content) > MOST_HELD_BYTES:
        return Bundle(sha256, {}, "", "", "", f"it is larger than {MOST_HELD_BYTES} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > MOST_FILES:
                raise ValueError("too many files")
            with archive.open(PROJECT) as file:
                text = file.read(MOST_PROJECT_BYTES + 1)
        if len(text) > MOST_PROJECT_BYTES:
            raise ValueError("its project file is too large")
        project = text.decode("utf-8")
        content_of: dict[str, Any] = tomllib.loads(project)
        flower = content_of["tool"]["flwr"]["app"]
        app, version = f"{flower['publisher']}/{content_of['project']['name']}", content_of["project"]["version"]
        components = flower["components"]
        if not isinstance(version, str) or not isinstance(components, dict):
            raise ValueError("its project file is not one of Flower's")
    # The archive and the text are anybody's: what their readers may raise is not written down anywhere.
    except Exception:
        logger.debug("a bundle that cannot be read", exc_info=True)
        return Bundle(sha256, {}, "", "", "", "it is no app bundle of Flower")
    files = {entry.filename: entry.file_size for entry in entries}
    problem = ""
    if files.keys() - {PROJECT, LIST} or len(entries) != len(files):
        problem = "it brings files of its own: here only installed code runs, and a bundle is a project file alone"
    elif components.get("clientapp") != CLIENT_APP or components.keys() - {"clientapp", "serverapp"}:
        problem = f"its ClientApp is not {CLIENT_APP}, the installed one"
    return Bundle(sha256, files, project, app, version, problem)


def decision(site_file: Path, bundle: Bundle, content: bytes, mismatch: str = "") -> str:
    """Decide on a bundle that has come: an empty text where it may run, else why not; an unknown one is held.

    The approvals and the site file are read anew; if one of them is not valid, or the decision cannot be written into
    the audit log, no bundle runs. `mismatch`: what was found against it already.
    """
    reason = mismatch or _reason(site_file, bundle, content)
    event = {"message": "bundle", "bundle": bundle.sha256, "app": outside_text(bundle.app),
             "decision": "refused" if reason else "runs", "reason": reason}  # fmt: skip
    try:
        log = node_log(site_file)
        log.parent.mkdir(parents=True, exist_ok=True)
        record(log, event)
    except (OSError, AuditLogError) as error:
        logger.error("%s", error)
        return "the audit log cannot be written"
    return reason


def _reason(site_file: Path, bundle: Bundle, content: bytes) -> str:
    try:
        connection = read_own_site_file(site_file).connection
        allowed = {*read_approvals(site_file).bundles, *(connection.bundles if connection else ())}
    except UserError as error:
        logger.error("%s", error)
        return "the site file or its approvals are not valid"
    if bundle.sha256 in allowed:
        return bundle.problem
    kept = hold(site_file, "bundles", bundle.sha256, content)
    place = "held for review" if kept else "not held: it is too large, or the folder is full"
    return f"not approved, {place}{': ' if bundle.problem else ''}{bundle.problem}"


def described(bundle: Bundle) -> str:
    """Tell a person what a bundle holds, as nothing but text."""
    files = [f"  {outside_text(name, 100)}  {size} bytes" for name, size in list(bundle.files.items())[:30]]
    more = [f"  and {len(bundle.files) - 30} more"] if len(bundle.files) > 30 else []
    lines = [f"    {outside_text(line, 160)}" for line in bundle.project.splitlines()[:60]]
    return "\n".join([
        f"bundle {bundle.sha256}", f"app {outside_text(bundle.app)}, version {outside_text(bundle.version)}", "files:",
        *files, *more, "its project file:", *lines,
        f"no site runs it: {bundle.problem}" if bundle.problem else "thin: it runs the code installed here",
    ])  # fmt: skip
