"""What `fl-dpbayes site check` found: one line each, with the remedy where something is wrong."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console

STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red", "SKIP": "dim"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it is as it should be, what was found, and what to do about it."""

    status: Literal["PASS", "WARN", "FAIL", "SKIP"]
    what: str
    said: str
    remedy: str = ""


def passed(what: str, said: str) -> Finding:
    """Say that something is as it should be."""
    return Finding("PASS", what, said)


def failed(what: str, said: str, remedy: str) -> Finding:
    """Say that something must be corrected, and how."""
    return Finding("FAIL", what, said, remedy)


def show(findings: Iterable[Finding], console: Console) -> int:
    """Print findings as they come; return the exit status, 1 if one of them is a failure."""
    status = 0
    for found in findings:
        status |= found.status == "FAIL"
        console.print(found.status, style=STYLES[found.status], end="  ")
        remedy = f"\n      {found.remedy}" if found.remedy else ""
        console.print(f"{found.what}: {found.said}{remedy}", markup=False, highlight=False, soft_wrap=True)
    return int(status)
