"""What `fl-dpbayes site ledger` makes, shows, checks, repairs and exports."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fl_dpbayes.config import LedgerSettings, SiteFile, read_own_site_file, read_site_file
from fl_dpbayes.data import create_ledger as make_ledger
from fl_dpbayes.data import delta_problem, ledger_place, load_site, with_path
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import json_values
from fl_dpbayes.hospital.findings import say
from fl_dpbayes.privacy import (
    PARTS,
    RENEWED,
    Cohort,
    Ledger,
    LedgerError,
    Reservation,
    Spent,
    planned_epsilon,
    repair_witness,
    spent,
    write_history,
)
from fl_dpbayes.protocol import EpsilonMethod
from fl_dpbayes.report import count, page_table, printed_table, rounded_up

METHODS: dict[EpsilonMethod, str] = {
    "pld": "privacy-loss distribution of one fixed schedule",
    "rdp filter": "Renyi filter across runs",
    "gdp filter": "Gaussian filter across runs",
}


class UnusableLedgerError(UserError):
    """A site's ledger could not be read or written, or is damaged; the text names its path."""


def create_ledger(site_file: Path, console: Console) -> None:
    """Make a site's ledger and its second place, or a further cohort in it; overwrite nothing.

    Args:
        site_file: Names the ledger; the site's records must be in order.
        console: Where it is told.

    Raises:
        UserError: If the site file, its records or the ledger do not allow it.
    """
    site = read_own_site_file(site_file)
    settings = _ledger_settings(site, site_file)
    # The ledger is made for good, so not with a delta for which every request would be refused.
    problem = delta_problem(site)
    if problem:
        raise UserError(problem)
    with _as_user_errors(settings), make_ledger(site, load_site(site)) as ledger:
        say(
            console,
            f"made cohort {settings.cohort} in ledger {settings.path}, second place "
            f"{settings.witness}\n"
            f"{_budget_line(ledger.cohort)}\n"
            "Keep the two in different backups: a ledger that is put back alone is refused.",
        )


def repair_ledger(site_file: Path, console: Console) -> None:
    """Make the second place of a ledger anew, where it is lost or the ledger was moved.

    Args:
        site_file: Names the ledger.
        console: Where it is told.

    Raises:
        UserError: If there is no ledger, or it is behind its second place.
    """
    settings = _read_ledger_settings(site_file)
    with _as_user_errors(settings):
        repaired = repair_witness(ledger_place(settings))
    if repaired:
        message = f"made second place {settings.witness} anew; the ledger keeps a note of it"
    else:
        message = "the second place is sound: nothing to repair"
    say(console, message)


def restrict_ledger(
    site_file: Path, console: Console, epsilon: float | None, confirm: Callable[[str], bool]
) -> None:
    """Ask, then lower what a site's cohort may spend from now on, or close it; for good.

    Args:
        site_file: Names the ledger and the cohort.
        console: Where it is told.
        epsilon: What each part may spend, above 0; None closes the cohort.
        confirm: Asks a person a question.

    Raises:
        UserError: If it is not confirmed, or the ledger cannot be written.
    """
    effect = (
        "is closed to every request"
        if epsilon is None
        else f"may spend epsilon {epsilon:g} in each part"
    )
    with ledger_of(site_file) as ledger:
        restriction = f"cohort {ledger.cohort.name} {effect}, for good"
        if not confirm(f"{restriction}?"):
            raise UserError("not confirmed, so nothing is changed")
        try:
            ledger.restrict(epsilon)
        except LedgerError as error:
            state = ledger.state()
            holds = state.closed if epsilon is None else state.lowered == epsilon
            if not holds:
                raise
            raise LedgerError(f"{restriction}: it holds, but its second place: {error}") from error
        say(console, restriction)


def show_ledger(site_file: Path, console: Console) -> None:
    """Print what a site's cohort has spent, and its reservations.

    Args:
        site_file: Names the ledger and the cohort.
        console: Where it is printed.

    Raises:
        UserError: If there is no ledger, or it cannot be read.
    """
    with ledger_of(site_file) as ledger:
        cohort = ledger.cohort
        state = ledger.state()
        entries = ledger.entries()
    say(console, _budget_line(cohort), wrapped=True)
    if state.closed:
        say(console, "It is closed.")
    elif state.lowered < math.inf:
        say(console, f"Lowered to epsilon {rounded_up(state.lowered)}.")
    for entry in entries:
        if entry.content["kind"] == RENEWED:
            say(console, f"The second place was made anew on {entry.content['time'][:19]} (UTC).")
    parts = [spent(state, part) for part in PARTS]
    console.print(_spent_table(parts, console.width))
    for part in parts:
        planned = planned_epsilon(state, part.part)
        if planned is not None:
            # The server could end the run early.
            say(
                console,
                f"{part.part}: epsilon {rounded_up(part.epsilon)} holds for these {part.steps} "
                "steps if where they end was fixed beforehand; if the server ends the run because "
                f"of what it saw, its whole plan's, {rounded_up(planned)}, does, or the budget.",
                wrapped=True,
            )
    console.print(_reservation_table(state.reservations.values(), console.width))


def verify_ledger(site_file: Path, console: Console) -> int:
    """Check a site's ledger and print what is wrong.

    Args:
        site_file: Names the ledger.
        console: Where it is printed.

    Returns:
        The exit status: 1 if something is wrong.

    Raises:
        UserError: If the site file names no ledger.
    """
    problems = ledger_problems(site_file)
    if problems:
        say(console, "\n".join(problems))
        return 1
    with ledger_of(site_file) as ledger:
        entry_count = len(ledger.entries())
    say(
        console,
        f"The ledger is sound: {count(entry_count)} entries, each bound to the one before; budget "
        "kept. (That no newer copy of both places exists shows only in a head that a server saw.)",
    )
    return 0


def ledger_problems(site_file: Path) -> list[str]:
    """Check a site's ledger.

    Args:
        site_file: Names the ledger.

    Returns:
        What is wrong, a line of text each.

    Raises:
        UserError: If the site file names no ledger.
    """
    try:
        with ledger_of(site_file) as ledger:
            return ledger.verify()
    except UnusableLedgerError as error:
        return [str(error)]


def export_ledger(site_file: Path) -> dict[str, Any]:
    """Write a site's ledger as JSON values, for an auditor.

    Each head is the SHA-256 of the previous head, a line feed, and `content` as JSON with sorted
    keys and no blanks.

    Args:
        site_file: Names the ledger and the cohort.

    Returns:
        The cohort, the head, what is wrong, `parts` (the spend of each) and `entries` (the file's
        whole chain).

    Raises:
        UserError: If there is no ledger, or it cannot be read.
    """
    with ledger_of(site_file) as ledger:
        content: dict[str, Any] = {
            "cohort": asdict(ledger.cohort),
            "head": ledger.head(),
            "problems": ledger.verify(),
            "parts": [_spent_values(ledger.spent(part)) for part in PARTS],
            "entries": [asdict(entry) for entry in ledger.entries()],
        }
        return {name: json_values(value) for name, value in content.items()}


@contextmanager
def ledger_of(site_file: Path) -> Iterator[Ledger]:
    """Open the ledger that a site file names, to look into it.

    Args:
        site_file: Names the ledger and the cohort.

    Yields:
        The ledger, open.

    Raises:
        UserError: If the site file names none.
        UnusableLedgerError: If it does not exist, or cannot be read.
    """
    settings = _read_ledger_settings(site_file)
    with (
        _as_user_errors(settings),
        Ledger.open_existing(ledger_place(settings), settings.cohort) as ledger,
    ):
        yield ledger


@contextmanager
def _as_user_errors(settings: LedgerSettings) -> Iterator[None]:
    try:
        yield
    except LedgerError as error:
        raise UnusableLedgerError(with_path(error, settings.path)) from error


def _read_ledger_settings(site_file: Path) -> LedgerSettings:
    return _ledger_settings(read_site_file(site_file), site_file)


def _ledger_settings(site: SiteFile, site_file: Path) -> LedgerSettings:
    if site.ledger is None:
        raise UserError(f"site file {site_file} names no ledger: only sites that train have one")
    return site.ledger


def _budget_line(cohort: Cohort) -> str:
    return (
        f"Cohort {cohort.name}: each part may spend epsilon {rounded_up(cohort.epsilon)} "
        f"at delta {cohort.delta:g}, unit {cohort.unit}, adjacency {cohort.adjacency}."
    )


def _spent_table(parts: list[Spent], width: int) -> Table:
    rows = [
        (
            account.part,
            count(account.steps),
            rounded_up(account.epsilon),
            METHODS[account.method],
            f"{rounded_up(account.mu.mu)} ({account.mu.kind})",
        )
        for account in parts
    ]
    content = page_table(
        columns=("part", "steps", "epsilon", "by", "mu"), rows=rows, text_columns=(0, 3)
    )
    return printed_table("Spent so far", content=content, width=width, expendable=("by",))


def _reservation_table(reservations: Iterable[Reservation], width: int) -> Table:
    rows = [
        (
            row.time[:19].replace("T", " "),
            row.part,
            row.run[:16],
            count(row.round),
            row.purpose,
            count(row.first_step),
            count(row.steps),
            row.state,
        )
        for row in reservations
    ]
    content = page_table(
        columns=("time (UTC)", "part", "run", "round", "purpose", "first step", "steps", "state"),
        rows=rows,
        text_columns=(1, 2, 4, 7),
    )
    return printed_table(
        "Reservations (each counts, whatever became of it)",
        content=content,
        width=width,
        expendable=("first step", "run", "purpose"),
    )


def _spent_values(account: Spent) -> dict[str, Any]:
    return {
        "part": account.part,
        "steps": account.steps,
        "epsilon": account.epsilon,
        "epsilon_method": account.method,
        "mu": account.mu.mu,
        "mu_kind": account.mu.kind,
        "history": write_history(account.history),
    }
