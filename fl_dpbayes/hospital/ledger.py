"""What `fl-dpbayes site ledger` makes, shows, checks, repairs and exports."""

import math
from collections.abc import Callable, Iterator
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
from fl_dpbayes.privacy import (
    PARTS,
    RENEWED,
    Cohort,
    Ledger,
    LedgerError,
    Spent,
    planned_epsilon,
    repair_witness,
    write_history,
)
from fl_dpbayes.report import count, page_table, printed_table, rounded_up

METHODS = {
    "pld": "privacy-loss distribution of one fixed schedule",
    "rdp filter": "Renyi filter across runs",
    "gdp filter": "Gaussian filter across runs",
}


def create_ledger(site_file: Path, console: Console) -> None:
    """Make a site's ledger and its second place, or a further cohort in it.

    Nothing is overwritten.
    """
    record, settings = _read_site(site_file, read_own_site_file)
    # Made for good, so not with what every request is refused for.
    if problem := delta_problem(record):
        raise UserError(problem)
    with _as_user_errors(settings), make_ledger(record, load_site(record)) as ledger:
        made = (
            f"made cohort {settings.cohort} in ledger {settings.path}, second place "
            f"{settings.witness}"
        )
        keep = "Keep the two in different backups: a ledger that is put back alone is refused."
        console.print(
            f"{made}\n{_budget_line(ledger.cohort)}\n{keep}", markup=False, soft_wrap=True
        )


def repair_ledger(site_file: Path, console: Console) -> None:
    """Make the second place of a site's ledger anew, where it is lost or unreadable or the ledger was moved."""
    _, settings = _read_site(site_file)
    with _as_user_errors(settings):
        repaired = repair_witness(ledger_place(settings))
    text = f"made second place {settings.witness} anew; the ledger keeps a note of it"
    console.print(
        text if repaired else "the second place is sound: nothing to repair",
        markup=False,
        soft_wrap=True,
    )


def restrict_ledger(
    site_file: Path, console: Console, epsilon: float | None, confirm: Callable[[str], bool]
) -> None:
    """Ask, and lower what each part of a site's cohort may spend from now on, or close the cohort (None); for good."""
    with ledger_of(site_file) as ledger:
        said = (
            "is closed to every request"
            if epsilon is None
            else f"may spend epsilon {epsilon:g} in each part"
        )
        said = f"cohort {ledger.cohort.name} {said}, for good"
        if not confirm(f"{said}?"):
            raise UserError("not confirmed, so nothing is changed")
        try:
            ledger.restrict(epsilon)
        except LedgerError as error:
            state = ledger.state()
            held = state.closed if epsilon is None else state.lowered == epsilon
            raise LedgerError(
                f"{said + ': it holds, but its second place: ' if held else ''}{error}"
            ) from error
        console.print(said, markup=False, soft_wrap=True)


def show_ledger(site_file: Path, console: Console) -> None:
    """Print what a site's cohort has spent, and its reservations."""
    with ledger_of(site_file) as ledger:
        console.print(_budget_line(ledger.cohort), markup=False)
        state = ledger.state()
        if state.closed or state.lowered < math.inf:
            console.print(
                "It is closed."
                if state.closed
                else f"Lowered to epsilon {rounded_up(state.lowered)}."
            )
        for entry in ledger.entries():
            if entry.content["kind"] == RENEWED:
                console.print(
                    f"The second place was made anew on {entry.content['time'][:19]} (UTC).",
                    markup=False,
                )
        parts = [ledger.spent(part) for part in PARTS]
        console.print(_spent_table(parts, console.width))
        for spent in parts:
            if (planned := planned_epsilon(state, spent.part)) is not None:
                ends = (
                    f"holds for these {spent.steps} steps if where they end was fixed "
                    "beforehand; if the server ends"
                )
                said = (
                    f"epsilon {rounded_up(spent.epsilon)} {ends} the run because of what it "
                    "saw, its whole plan's"
                )
                console.print(
                    f"{spent.part}: {said}, {rounded_up(planned)}, does, or the budget.",
                    markup=False,
                )
        console.print(_reservation_table(ledger, console.width))


def verify_ledger(site_file: Path, console: Console) -> int:
    """Check a site's ledger and print what is wrong."""
    problems, entries = ledger_problems(site_file)
    newer = "(That no newer copy of both places exists shows only in a head that a server saw.)"
    said = (
        f"The ledger is sound: {count(entries)} entries, each bound to the one before; budget "
        f"kept. {newer}"
    )
    console.print("\n".join(problems) or said, markup=False, soft_wrap=True)
    return 1 if problems else 0


def ledger_problems(site_file: Path) -> tuple[list[str], int]:
    """Return what is wrong with a site's ledger, and the number of entries of one that is sound."""
    try:
        with ledger_of(site_file) as ledger:
            problems = ledger.verify()
            return problems, 0 if problems else len(ledger.entries())
    except UserError as error:
        if not isinstance(error.__cause__, LedgerError):
            raise
        return [str(error)], 0


def export_ledger(site_file: Path) -> dict[str, Any]:
    """Write a site's ledger as JSON values, for an auditor.

    `parts`: spend of each; `entries`: the file's whole chain. Each head is the SHA-256 of the
    previous head, a line feed, and `content` as JSON with sorted keys and no blanks. Raises
    UserError if there is none, or it cannot be read.
    """
    with ledger_of(site_file) as ledger:
        whole: dict[str, Any] = {
            "cohort": asdict(ledger.cohort),
            "head": ledger.head(),
            "problems": ledger.verify(),
        }
        parts = [_spent_values(ledger.spent(part)) for part in PARTS]
        whole |= {"parts": parts, "entries": list(map(asdict, ledger.entries()))}
        return {name: json_values(value) for name, value in whole.items()}


@contextmanager
def ledger_of(site_file: Path) -> Iterator[Ledger]:
    """Open the ledger that a site file names, to look into it.

    UserError if there is none or it cannot be read.
    """
    _, settings = _read_site(site_file)
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
        raise UserError(with_path(error, settings.path)) from error


def _read_site(
    site_file: Path, read: Callable[[Path], SiteFile] = read_site_file
) -> tuple[SiteFile, LedgerSettings]:
    record = read(site_file)
    if record.ledger is None:
        raise UserError(f"site file {site_file} names no ledger: only sites that train have one")
    return record, record.ledger


def _budget_line(cohort: Cohort) -> str:
    at = f"at delta {cohort.delta:g}, unit {cohort.unit}, adjacency {cohort.adjacency}"
    return f"Cohort {cohort.name}: each part may spend epsilon {rounded_up(cohort.epsilon)} {at}."


def _spent_table(parts: list[Spent], width: int) -> Table:
    rows = [
        (
            spent.part,
            count(spent.steps),
            rounded_up(spent.epsilon),
            METHODS[spent.method],
            f"{rounded_up(spent.mu.mu)} ({spent.mu.kind})",
        )
        for spent in parts
    ]
    content = page_table(("part", "steps", "epsilon", "by", "mu"), rows, (0, 3))
    return printed_table("Spent so far", content, width, expendable=("by",))


def _reservation_table(ledger: Ledger, width: int) -> Table:
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
        for row in ledger.rows()
    ]
    columns = ("time (UTC)", "part", "run", "round", "purpose", "first step", "steps", "state")
    title, expendable = (
        "Reservations (each counts, whatever became of it)",
        ("first step", "run", "purpose"),
    )
    return printed_table(
        title, page_table(columns, rows, (1, 2, 4, 7)), width, expendable=expendable
    )


def _spent_values(spent: Spent) -> dict[str, Any]:
    return {
        "part": spent.part,
        "steps": spent.steps,
        "epsilon": spent.epsilon,
        "epsilon_method": spent.method,
        "mu": spent.mu.mu,
        "mu_kind": spent.mu.kind,
        "history": write_history(spent.history),
    }
