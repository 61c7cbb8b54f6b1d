"""The installed code that a site's steward approved with a bundle: is it still as it was then?

This shows a change that nobody noticed. It does not stop whoever controls the machine, and may
change the check too.
"""

import sys
from pathlib import Path

from fl_dpbayes.config.approvals import approve, read_approvals
from fl_dpbayes.config.installed_code import (
    PACKAGE,
    PACKAGE_FOLDERS,
    InstalledCode,
    installed_code,
    installed_package,
)
from fl_dpbayes.config.kinds import check_origin
from fl_dpbayes.config.registry import registered_modules
from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.errors import UserError


def site_code(site_file: SiteFile) -> list[InstalledCode]:
    """Find the code that a site runs for others.

    It is this package with its apps, what the site's policy allows beside it, and packages that
    register records.
    """
    names = sorted({*site_file.policy.allowed_code, *registered_modules()})
    allowed = [installed_code(name) for name in names]
    return [installed_package(), *(code for code in allowed if code is not None)]


def approve_bundle(site_file: SiteFile, path: Path, digest: str) -> None:
    """Approve a bundle, and with it the code that is installed now.

    Args:
        site_file: The site's settings.
        path: Place of the site file.
        digest: SHA-256 of the bundle.

    Raises:
        UserError: The approvals are not valid, full, or cannot be written.
    """
    code = {code.name: code.digest for code in site_code(site_file)}
    approve(path, kind="bundles", digest=digest, code=code)


def asks_for_approval(site_file: SiteFile, path: Path) -> bool:
    """Return whether a site runs approved code only.

    It does where it has a connection, or where code was ever approved.
    """
    return site_file.connection is not None or bool(read_approvals(path).code)


def unapproved_code(site_file: SiteFile, path: Path) -> list[str]:
    """Say which installed code is not as it was approved, a line for each.

    Args:
        site_file: The site's settings.
        path: Place of the site file.

    Returns:
        The lines; none where no approval is needed.

    Raises:
        UserError: The approvals cannot be read.
    """
    if not asks_for_approval(site_file, path):
        return []
    approved = read_approvals(path).code
    lines = _taken_from_elsewhere()
    for code in site_code(site_file):
        before = approved.get(code.name)
        if before is None:
            lines.append(f"{code.name}: {code.described()} was never approved")
        elif before != code.digest:
            lines.append(
                f"{code.name}: {code.described()} is installed, SHA-256 {before[:12]} was approved"
            )
    return lines


def _taken_from_elsewhere() -> list[str]:
    """Say which of this package's modules Python took from elsewhere, as from PYTHONPATH."""
    lines = []
    for name in PACKAGE_FOLDERS:
        if name in sys.modules:
            try:
                check_origin(sys.modules[name])
            except UserError as error:
                lines.append(f"{PACKAGE}: {error}")
    return lines
