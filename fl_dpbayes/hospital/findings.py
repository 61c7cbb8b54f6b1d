"""What a check found: one line each, with the remedy for what is wrong; and how it is printed."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console

STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red", "SKIP": "dim"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        status: Of `STYLES`.
        subject: What was looked at.
        message: What it is like.
        remedy: What to do about it; empty if nothing.
    """

    status: str
    subject: str
    message: str
    remedy: str = ""


def passed(subject: str, message: str) -> Finding:
    """Say of a subject that it is in order."""
    return Finding("PASS", subject, message)


def warned(subject: str, message: str, remedy: str = "") -> Finding:
    """Say of a subject what a person should look at."""
    return Finding("WARN", subject, message, remedy)


def failed(subject: str, message: str, remedy: str = "") -> Finding:
    """Say of a subject what must be corrected."""
    return Finding("FAIL", subject, message, remedy)


def skipped(subject: str, message: str) -> Finding:
    """Say of a subject why it was not looked at."""
    return Finding("SKIP", subject, message)


def show(findings: Iterable[Finding], console: Console) -> int:
    """Print findings as they come.

    Args:
        findings: What was looked at.
        console: Where it is printed.

    Returns:
        The exit status: 1 if one of them is a failure.
    """
    status = 0
    for finding in findings:
        if finding.status == "FAIL":
            status = 1
        console.print(finding.status, style=STYLES[finding.status], end="  ")
        remedy = f"\n      {finding.remedy}" if finding.remedy else ""
        say(console, f"{finding.subject}: {finding.message}{remedy}")
    return status


def say(console: Console, text: str, *, wrapped: bool = False) -> None:
    """Print a text as nothing but text.

    Args:
        console: Where it is printed.
        text: In which nothing is markup.
        wrapped: Whether lines are broken where the console ends; else they end where the text
            says so, and paths and commands in it can be copied.
    """
    console.print(text, markup=False, highlight=False, soft_wrap=not wrapped)
