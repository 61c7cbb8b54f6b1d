"""`fl-dpbayes site approve`: shows the steward what waits, and lets it run from the next message on."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fl_dpbayes.config.approvals import MOST_HELD_BYTES, Kind, approvals_file, approve, held, read_approvals
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import outside_text
from fl_dpbayes.config.site_file import read_own_site_file
from fl_dpbayes.run.site.bundle import described, read_bundle

LEAST_DIGITS = 8
MOST_LINES = 400


def show_waiting(site_file: Path, console: Console) -> None:
    """List what waits for approval, what is approved, and the bundle of the version installed here."""
    from fl_dpbayes.run.site.node import own_bundle

    read_own_site_file(site_file)
    approvals = read_approvals(site_file)
    waiting = [f"waits: {kind[:-1]} {outside_text(digest, 64)}" for kind, digest, _ in held(site_file)]
    lines = [f"approved: bundle {digest}" for digest in approvals.bundles]
    lines += [f"approved: plan {digest}" for digest in approvals.plans]
    own = hashlib.sha256(own_bundle()).hexdigest()
    lines += [] if own in approvals.bundles else [f"bundle of the version installed here: {own}"]
    console.print("\n".join([*waiting, *lines]), markup=False, highlight=False, soft_wrap=True)


def approve_digest(site_file: Path, digest: str, console: Console, confirm: Callable[[str], bool]) -> None:
    """Show a bundle or plan that waits, ask, and approve it; its first 8 digits or more name it.

    Raises UserError if nothing waits under the digest, it is not what its name says, or no site would run it.
    """
    read_own_site_file(site_file)
    kind, whole, text, problem = _waiting(site_file, digest.lower())
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if problem:
        raise UserError(f"not approved: {problem}")
    if not confirm(f"approve this {kind[:-1]}?"):
        raise UserError("not approved")
    approve(site_file, kind, whole)
    console.print(f"approved, from the next message on: {approvals_file(site_file)}", markup=False, soft_wrap=True)


def _waiting(site_file: Path, digest: str) -> tuple[Kind, str, str, str]:
    from fl_dpbayes.run.site.node import own_bundle

    found = [item for item in held(site_file) if len(digest) >= LEAST_DIGITS and item[1].startswith(digest)]
    if len(found) > 1:
        raise UserError(f"{len(found)} wait under {digest}: give more of its digits")
    if not found:
        own = own_bundle()
        if len(digest) < LEAST_DIGITS or not hashlib.sha256(own).hexdigest().startswith(digest):
            raise UserError(f"nothing waits under {digest[:64]}: `fl-dpbayes site approve {site_file}` lists what does")
        return "bundles", hashlib.sha256(own).hexdigest(), described(read_bundle(own)), ""
    kind, whole, path = found[0]
    with path.open("rb") as file:
        content = file.read(MOST_HELD_BYTES + 1)
    if kind == "bundles":
        bundle = read_bundle(content)
        return kind, whole, described(bundle), bundle.problem or ("" if bundle.sha256 == whole else "it was changed")
    try:
        lines = json.dumps(json.loads(content), indent=2, ensure_ascii=False).splitlines()
    except (ValueError, RecursionError):
        return kind, whole, f"plan {whole}", "it cannot be read as JSON"
    canonical = json.dumps(json.loads(content), sort_keys=True, separators=(",", ":"))
    changed = hashlib.sha256(canonical.encode()).hexdigest() != whole
    shown = "\n".join(outside_text(line, 160) for line in lines[:MOST_LINES])
    return (
        kind,
        whole,
        f"plan {whole}\n{shown}",
        "it was changed, or is too long to show" if changed or len(lines) > MOST_LINES else "",
    )
