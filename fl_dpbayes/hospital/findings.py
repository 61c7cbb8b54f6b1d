"""What `fl-dpbayes site check` found: one line each, with the remedy where something is wrong."""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from rich.console import Console

STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red", "SKIP": "dim"}


class Finding(NamedTuple):
    """One thing that was looked at: its status, of `STYLES`, what was found, and what to do about it."""

    status: str
    what: str
    said: str
    remedy: str = ""


passed, warned, failed, skipped = (partial(Finding, status) for status in STYLES)


def show(findings: Iterable[Finding], console: Console) -> int:
    """Print findings as they come; return the exit status, 1 if one of them is a failure."""
    status = 0
    for found in findings:
        status |= found.status == "FAIL"
        console.print(found.status, style=STYLES[found.status], end="  ")
        remedy = f"\n      {found.remedy}" if found.remedy else ""
        console.print(
            f"{found.what}: {found.said}{remedy}", markup=False, highlight=False, soft_wrap=True
        )
    return int(status)
