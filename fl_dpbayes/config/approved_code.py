"""The installed code that a site's steward approved with a bundle: whether it is still as it was then.

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
    registered_modules,
)
from fl_dpbayes.config.kinds import check_origin
from fl_dpbayes.config.site_file import SiteFile
from fl_dpbayes.errors import UserError


def site_code(site_file: SiteFile) -> list[InstalledCode]:
    """Find the code that a site runs for others.

    It is this package with its apps, what the site's policy allows beside it, and packages that
    register records.
    """
    names = sorted({*site_file.policy.allowed_code, *registered_modules()})
    beside = [code for name in names if (code := installed_code(name)) is not None]
    return [installed_package(), *beside]


def approve_bundle(site_file: SiteFile, path: Path, digest: str) -> None:
    """Approve a bundle, and with it the code that is installed now; UserError as `approve`.

    `path`: of the site file.
    """
    approve(path, "bundles", digest, {code.name: code.digest for code in site_code(site_file)})


def asks_for_approval(site_file: SiteFile, path: Path) -> bool:
    """Say whether a site runs approved code only: where it has a connection, or code was ever approved."""
    return site_file.connection is not None or bool(read_approvals(path).code)


def unapproved_code(site_file: SiteFile, path: Path) -> list[str]:
    """Say which installed code is not as it was approved, a line for each.

    None where no approval is asked for.

    `path`: of the site file. Raises UserError if the approvals cannot be read.
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
    """Say which of this package's modules Python took from another folder, as one that PYTHONPATH names."""
    lines = []
    for name in PACKAGE_FOLDERS:
        if name in sys.modules:
            try:
                check_origin(sys.modules[name])
            except UserError as error:
                lines.append(f"{PACKAGE}: {error}")
    return lines
