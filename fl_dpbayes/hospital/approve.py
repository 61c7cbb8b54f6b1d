"""`fl-dpbayes site approve`: shows the steward what waits, and lets it run from then on."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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
from fl_dpbayes.hospital.findings import say
from fl_dpbayes.hospital.init_site import own_scenario
from fl_dpbayes.hospital.node import own_bundle
from fl_dpbayes.hospital.planned_requests import Requests, planned_requests
from fl_dpbayes.protocol import plan_digest, plan_text

# Of a plan that a person is shown.
MOST_LINES = 2000
MOST_CHARACTERS = 2000

Confirm = Callable[[str], bool]


@dataclass(frozen=True)
class WaitingItem:
    """A bundle or a plan that may be approved, and what a steward is told of it.

    Attributes:
        kind: Of `bundles` or `plans`.
        digest: The SHA-256 under which it waits.
        text: What it holds.
        problem: Why it cannot be approved; empty if it can.
    """

    kind: Kind
    digest: str
    text: str
    problem: str


def show_waiting(site_file: Path, console: Console) -> None:
    """List what waits, what is approved, the installed code, and the bundle of its version.

    Args:
        site_file: Of the site.
        console: Where it is printed.

    Raises:
        UserError: If the site file or its approvals cannot be used.
    """
    site = read_own_site_file(site_file)
    approvals = read_approvals(site_file)
    lines = [f"waits: {kind[:-1]} {outside_text(digest)}" for kind, digest, _ in held(site_file)]
    for digest in approvals.bundles:
        lines.append(f"approved: bundle {digest} {approvals.described(digest)}")
    for digest in approvals.plans:
        lines.append(f"approved: plan {digest} {approvals.described(digest)}")
    lines += _code_lines(site)
    lines += [f"NOT APPROVED: {line}" for line in unapproved_code(site, site_file)]
    own_digest = hashlib.sha256(own_bundle()).hexdigest()
    lines.append(f"bundle of the version installed here: {own_digest}")
    say(console, "\n".join(lines))


def approve_digest(site_file: Path, digest: str, console: Console, confirm: Confirm) -> None:
    """Show what waits under a digest, or this version's bundle, ask, and approve it.

    Args:
        site_file: Of the site.
        digest: SHA-256, whole.
        console: Where it is shown.
        confirm: Asks a person a question.

    Raises:
        UserError: If nothing waits there, no site may run it, or it is not confirmed.
    """
    site = read_own_site_file(site_file)
    item = _find_item(site_file, digest)
    text = item.text
    if item.kind == "bundles":
        code_heading = "it runs this code, as it is installed now:"
        text = "\n".join([text, code_heading, *_code_lines(site)])
    say(console, text)
    _confirm_approval(item, confirm)
    if item.kind == "bundles":
        approve_bundle(site, site_file, item.digest)
    else:
        approve(site_file, item.kind, item.digest)
    say(console, f"approved, from the next message on: {approvals_file(site_file)}")


def _find_item(site_file: Path, digest: str) -> WaitingItem:
    """Find what waits under a digest; the installed version's bundle need not wait."""
    bundle = own_bundle()
    bundle_digest = hashlib.sha256(bundle).hexdigest()
    if bundle_digest == digest.lower():
        return _waiting_bundle(bundle_digest, bundle)
    for kind, held_digest, path in held(site_file):
        if held_digest == digest.lower():
            with suppress(OSError), path.open("rb") as file:
                content = file.read(MOST_HELD_BYTES + 1)
                waiting = _waiting_bundle if kind == "bundles" else _waiting_plan
                return waiting(held_digest, content)
    raise UserError(
        f"nothing readable waits under {digest}: `fl-dpbayes site approve {site_file}` "
        "lists what does"
    )


def approve_scenario(
    site_file: Path, scenario_name: str, console: Console, confirm: Confirm
) -> None:
    """Show the plans that a scenario sends this site, and ask for each that is not approved.

    Args:
        site_file: Of the site.
        scenario_name: The coordinator's scenario file.
        console: Where it is shown.
        confirm: Asks a person a question.

    Raises:
        UserError: If site file or scenario cannot be used, or a plan is not confirmed.
    """
    site = read_own_site_file(site_file)
    requests = planned_requests(own_scenario(scenario_name, site, site_file), site)
    for kind in waiting_plans(site, site_file, requests):
        request = requests[kind][0]
        assert request is not None
        item = _waiting_plan(plan_digest(request), plan_text(request).encode())
        say(console, item.text)
        _confirm_approval(item, confirm)
        approve(site_file, "plans", item.digest)
        say(console, f"approved: {kind}, plan {item.digest}")


def waiting_plans(site: SiteFile, site_file: Path, requests: Requests) -> list[str]:
    """Name the requests whose plans are not approved, where the policy asks for approval.

    Args:
        site: What the site file says.
        site_file: Beside which the approvals lie.
        requests: By their kind.

    Returns:
        Kinds of requests.
    """
    if site.policy.approved_plans is None:
        return []
    approved_plans = {*site.policy.approved_plans, *read_approvals(site_file).plans}
    kinds = []
    for kind, (request, _) in requests.items():
        nothing_leaves = kind == "evaluate" and site.policy.evaluation_release == "none"
        if request is None or nothing_leaves:
            continue
        if plan_digest(request) not in approved_plans:
            kinds.append(kind)
    return kinds


def _confirm_approval(item: WaitingItem, confirm: Confirm) -> None:
    """Refuse what has a problem; ask a person for everything else."""
    if item.problem:
        raise UserError(f"not approved: {item.problem}")
    if not confirm(f"approve this {item.kind[:-1]}?"):
        raise UserError("not approved")


def _code_lines(site: SiteFile) -> list[str]:
    return [
        f"installed: {code.name}, {code.distribution} {code.version}, {code.digest}"
        for code in site_code(site)
    ]


def _waiting_bundle(digest: str, content: bytes) -> WaitingItem:
    bundle = read_bundle(content)
    problem = bundle.problem
    if not problem and bundle.sha256 != digest:
        problem = "it was changed"
    return WaitingItem("bundles", digest=digest, text=bundle.described(), problem=problem)


def _waiting_plan(digest: str, content: bytes) -> WaitingItem:
    heading = f"plan {digest}"
    try:
        plan = json.loads(content)
        canonical = json.dumps(plan, sort_keys=True, separators=(",", ":"))
        lines = json.dumps(plan, indent=2, ensure_ascii=False).splitlines()
    except (ValueError, RecursionError):
        problem = "it cannot be read as JSON"
        return WaitingItem("plans", digest=digest, text=heading, problem=problem)
    is_long = len(lines) > MOST_LINES or max(map(len, lines)) > MOST_CHARACTERS
    is_changed = hashlib.sha256(canonical.encode()).hexdigest() != digest
    problem = "it was changed, or is too long to be shown" if is_long or is_changed else ""
    safe_lines = [outside_text(line, MOST_CHARACTERS) for line in lines[:MOST_LINES]]
    text = "\n".join([heading, *safe_lines])
    return WaitingItem("plans", digest=digest, text=text, problem=problem)
