"""`fl-dpbayes site approve`: shows the steward what waits, and lets it run from the next message on."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from fl_dpbayes.config import (
    MOST_HELD_BYTES,
    Kind,
    SiteFile,
    approvals_file,
    approve,
    approve_bundle,
    held,
    outside_text,
    read_approvals,
    read_own_site_file,
    site_code,
    unapproved_code,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.hospital.bundle import read_bundle
from fl_dpbayes.hospital.init_site import own_scenario
from fl_dpbayes.hospital.node import own_bundle
from fl_dpbayes.hospital.planned_requests import Requests, planned_requests
from fl_dpbayes.protocol import plan_digest, plan_text

MOST_LINES, MOST_CHARACTERS = 2000, 2000


def show_waiting(site_file: Path, console: Console) -> None:
    """List what waits for approval, what is approved, the installed code, and the bundle of its version."""
    own, approved = read_own_site_file(site_file), read_approvals(site_file)
    lines = [f"waits: {kind[:-1]} {outside_text(digest)}" for kind, digest, _ in held(site_file)]
    lines += [
        f"approved: bundle {digest} {approved.described(digest)}" for digest in approved.bundles
    ]
    lines += [f"approved: plan {digest} {approved.described(digest)}" for digest in approved.plans]
    lines += _code_lines(own)
    lines += [f"NOT APPROVED: {line}" for line in unapproved_code(own, site_file)]
    lines.append(
        f"bundle of the version installed here: {hashlib.sha256(own_bundle()).hexdigest()}"
    )
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def approve_digest(
    site_file: Path, digest: str, console: Console, confirm: Callable[[str], bool]
) -> None:
    """Show what waits under a digest, or this version's bundle, ask, approve it.

    UserError if no site may run it.
    """
    site, own = read_own_site_file(site_file), own_bundle()
    waiting: list[tuple[Kind, str, bytes]] = [("bundles", hashlib.sha256(own).hexdigest(), own)]
    for kind, name, path in held(site_file):
        with suppress(OSError), path.open("rb") as file:
            waiting.append((kind, name, file.read(MOST_HELD_BYTES + 1)))
    found = [item for item in waiting if item[1] == digest.lower()]
    if not found:
        raise UserError(
            f"nothing readable waits under {digest}: `fl-dpbayes site approve {site_file}` "
            "lists what does"
        )
    kind, whole, content = found[0]
    text, problem = (_plan if kind == "plans" else _bundle)(whole, content)
    if kind == "bundles":
        text = "\n".join([text, "it runs this code, as it is installed now:", *_code_lines(site)])
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if problem or not confirm(f"approve this {kind[:-1]}?"):
        raise UserError(f"not approved{': ' if problem else ''}{problem}")
    if kind == "bundles":
        approve_bundle(site, site_file, whole)
    else:
        approve(site_file, kind, whole)
    console.print(
        f"approved, from the next message on: {approvals_file(site_file)}",
        markup=False,
        soft_wrap=True,
    )


def approve_scenario(
    site_file: Path, given: str, console: Console, confirm: Callable[[str], bool]
) -> None:
    """Show the plans that a coordinator's scenario sends this site, ask for each that is not approved, approve it.

    Raises UserError if site file or scenario cannot be used, or a plan is not confirmed.
    """
    own = read_own_site_file(site_file)
    requests = planned_requests(own_scenario(given, own, site_file), own)
    for kind in waiting_plans(own, site_file, requests):
        request = requests[kind][0]
        assert request is not None
        digest, content = plan_digest(request), plan_text(request).encode()
        text, problem = _plan(digest, content)
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        if problem or not confirm("approve this plan?"):
            raise UserError(f"not approved{': ' if problem else ''}{problem}")
        approve(site_file, "plans", digest)
        console.print(f"approved: {kind}, plan {digest}", markup=False, soft_wrap=True)


def waiting_plans(own: SiteFile, site_file: Path, requests: Requests) -> list[str]:
    """Name the kinds of requests whose plans the steward has not approved, where the policy asks for it."""
    if own.policy.approved_plans is None:
        return []
    approved = {*own.policy.approved_plans, *read_approvals(site_file).plans}
    kinds = []
    for kind, (request, _) in requests.items():
        nothing_leaves = kind == "evaluate" and own.policy.evaluation_release == "none"
        if request is not None and not nothing_leaves and plan_digest(request) not in approved:
            kinds.append(kind)
    return kinds


def _code_lines(site_file: SiteFile) -> list[str]:
    return [
        f"installed: {code.name}, {code.distribution} {code.version}, {code.digest}"
        for code in site_code(site_file)
    ]


def _bundle(digest: str, content: bytes) -> tuple[str, str]:
    bundle = read_bundle(content)
    return bundle.described(), bundle.problem or (
        "" if bundle.sha256 == digest else "it was changed"
    )


def _plan(digest: str, content: bytes) -> tuple[str, str]:
    try:
        plan = json.loads(content)
        canonical = json.dumps(plan, sort_keys=True, separators=(",", ":"))
        lines = json.dumps(plan, indent=2, ensure_ascii=False).splitlines()
    except (ValueError, RecursionError):
        return f"plan {digest}", "it cannot be read as JSON"
    unfit = len(lines) > MOST_LINES or max(map(len, lines)) > MOST_CHARACTERS
    unfit = unfit or hashlib.sha256(canonical.encode()).hexdigest() != digest
    shown = "\n".join(outside_text(line, MOST_CHARACTERS) for line in lines[:MOST_LINES])
    return f"plan {digest}\n{shown}", "it was changed, or is too long to be shown" if unfit else ""
