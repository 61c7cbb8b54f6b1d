"""What a run did: rounds, privacy and warnings, appended after every round so that nothing computed is lost."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.files.journal import Entry, Journal
from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.protocol.refusal import Refusal
from fl_dpbayes.protocol.train import PrivacyStatement
from fl_dpbayes.report.run_files import (
    PRIVACY_COLUMNS,
    PRIVACY_FILE,
    ROUND_COLUMNS,
    ROUNDS_FILE,
    append_csv,
    write_csv,
)
from server.check_reply import CheckedReply

STATUSES = ("OK", "PARTIAL", "REFUSED", "FAILED", "REJECTED")
NOT_ASKED = "NOT ASKED"
NO_REPLY = "no reply in time"


@dataclass(frozen=True)
class SiteOutcome:
    """How one site answered one training request."""

    site: str
    status: str
    detail: str = ""
    reply: CheckedReply | None = None
    bytes_up: int = 0

    @classmethod
    def answered(cls, site: str, status: str, reply: CheckedReply, bytes_up: int) -> "SiteOutcome":
        """A checked reply with status OK or PARTIAL, kept without its arrays."""
        return cls(site, status, reply=reply.without_arrays(), bytes_up=bytes_up)

    @classmethod
    def refused(cls, site: str, refusal: Refusal) -> "SiteOutcome":
        """A refusal with its code and field."""
        return cls(site, "REFUSED", refusal.describe())

    @classmethod
    def failed(cls, site: str, detail: str) -> "SiteOutcome":
        """An error instead of a reply."""
        return cls(site, "FAILED", detail)

    @classmethod
    def rejected(cls, site: str, detail: str) -> "SiteOutcome":
        """A reply that is not what was asked for."""
        return cls(site, "REJECTED", detail)

    @classmethod
    def silent(cls, site: str) -> "SiteOutcome":
        """No reply before the round's deadline."""
        return cls(site, "FAILED", NO_REPLY)

    @property
    def usable(self) -> bool:
        """Whether the round may use what the site sent."""
        return self.status in ("OK", "PARTIAL")

    @property
    def privacy(self) -> PrivacyStatement | None:
        """The site's privacy statement, if it sent one."""
        return self.reply.privacy if self.reply else None

    def describe(self) -> str:
        """Say in a few words what happened."""
        return f"{self.site}: {self.status} {self.detail}".strip()

    def event(self) -> dict[str, Any]:
        """Return what a progress display shows."""
        return {
            "site": self.site,
            "status": self.status,
            "detail": self.detail,
            "epsilon": self.privacy.epsilon if self.privacy else None,
            "budget": self.privacy.budget if self.privacy else None,
        }


def cost_cells(statement: PrivacyStatement) -> dict[str, Any]:
    """Return what a site stated of its spending, as cells of `privacy.csv`."""
    return {
        "steps": statement.steps,
        "epsilon": float("inf") if statement.epsilon is None else statement.epsilon,
        "epsilon_method": statement.epsilon_method,
        "delta": statement.delta,
        "mu": float("inf") if statement.mu is None else statement.mu,
        "mu_kind": statement.mu_kind,
        "adjacency": statement.adjacency,
        "noise_multiplier_first": statement.history[0][0] if statement.history else None,
        "noise_multiplier_last": statement.history[-1][0] if statement.history else None,
        "budget": float("inf") if statement.budget is None else statement.budget,
    }


class _ReplyEntry(Config):
    """What the record keeps of a reply; of its history only the rows after the first `kept`, which it had before."""

    samples: int
    temperature: tuple[float, float, float, float]
    privacy: dict[str, str | bool | int | float | None]
    kept: int
    history: tuple[tuple[float, float, int], ...]


class _OutcomeEntry(Config):
    site: str
    status: str
    detail: str
    bytes_up: int
    reply: _ReplyEntry | None


class _RoundEntry(Config):
    """A training round as the journal keeps it."""

    round: int
    seconds: float
    bytes_down: int
    outcomes: tuple[_OutcomeEntry, ...]


class RunRecord:
    """Collects a run's rows; what a round adds is appended to the journal, to `privacy.csv` and to `rounds.csv`.

    `tempered` says whether the run's sampler has a temperature.
    """

    def __init__(self, run_folder: Path, journal: Journal, *, tempered: bool = True) -> None:
        self.run_folder, self.journal = run_folder, journal
        self._tempered = tempered
        self.warnings: list[RunWarning] = []
        self.aggregation_inputs: dict[str, Any] | None = None
        self.privacy_rows: list[dict[str, Any]] = []
        self.round_rows: list[dict[str, Any]] = []
        self.statements: dict[str, PrivacyStatement] = {}
        self.outcomes: dict[str, list[SiteOutcome]] = {}
        self.resumed_after: list[int] = []
        self._statuses: dict[str, dict[int, str]] = {}
        self.seconds: dict[str, float] = {}
        self._temperatures: dict[str, list[tuple[float, float, float, float]]] = {}
        self._new: list[dict[str, Any]] = []
        self._kept_warnings = 0
        self._stage = ""
        self._started = time.monotonic()

    def new_entries(self) -> list[dict[str, Any]]:
        """Return a journal's entries for what the record has learnt since the last call."""
        warnings = [{"warning": one.model_dump()} for one in self.warnings[self._kept_warnings :]]
        entries, self._new, self._kept_warnings = [*self._new, *warnings], [], len(self.warnings)
        return entries

    def seconds_so_far(self) -> dict[str, float]:
        """Return the seconds of each stage, the time of the one under way included."""
        seconds = dict(self.seconds)
        if self._stage:
            seconds[self._stage] = seconds.get(self._stage, 0.0) + time.monotonic() - self._started
        return seconds

    def restore(self, entries: Iterable[Entry], seconds: Mapping[str, float], round_number: int) -> None:
        """Go on from the journal of the same run after a round; times add up.

        Args:
            entries: the journal's.
            seconds: stage -> seconds until then.
            round_number: the last round that is complete.

        Raises:
            UserError: if a table cannot be written.
        """
        own, self.warnings = self.warnings, []
        for entry in entries:
            if "round" in entry:
                self._take(_RoundEntry.model_validate(entry["round"]))
            elif "warning" in entry:
                self.warnings.append(RunWarning.model_validate(entry["warning"]))
            elif "resumed" in entry:
                self.resumed_after.append(entry["resumed"])
        self._kept_warnings = len(self.warnings)
        for one in own:
            self.warn(one)
        self.resumed_after.append(round_number)
        self._new.append({"resumed": round_number})
        for stage, taken in seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + taken
        if self.round_rows:
            # A row of a round that has no checkpoint goes.
            self._write_tables()

    def begin(self, stage: str) -> None:
        """End the stage under way, if any, and start the clock of another."""
        self.end_stage()
        self._stage, self._started = stage, time.monotonic()

    def end_stage(self) -> None:
        """Add the time of the stage under way."""
        if self._stage:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + time.monotonic() - self._started
        self._stage = ""

    def warn(self, found: RunWarning) -> None:
        """Keep a warning for the report, once."""
        if found not in self.warnings:
            self.warnings.append(found)

    def add_round(self, round_number: int, outcomes: Sequence[SiteOutcome], *, bytes_down: int) -> None:
        """Keep one training round and add it to the tables.

        Raises:
            UserError: if a table cannot be written.
        """
        if not outcomes:
            return
        entry = _RoundEntry(
            round=round_number,
            seconds=round(time.monotonic() - self._started, 3),
            bytes_down=bytes_down,
            outcomes=tuple(self._entry(outcome) for outcome in outcomes),
        )
        self._new.append({"round": entry.model_dump(mode="json")})
        for outcome in outcomes:
            if not outcome.usable:
                told = {"status": outcome.status, "detail": outcome.detail}
                self.warn(warning("not-usable", outcome.site, round=round_number, **told))
        privacy_rows, first = len(self.privacy_rows), not self.round_rows
        self._take(entry)
        if first:
            self._write_tables()
            return
        append_csv(self.run_folder / PRIVACY_FILE, self.privacy_rows[privacy_rows:], PRIVACY_COLUMNS)
        append_csv(self.run_folder / ROUNDS_FILE, self.round_rows[-1:], ROUND_COLUMNS)

    def last_round(self) -> dict[str, int | float]:
        """Return the last training round's row of `rounds.csv`: replies by status, bytes, seconds, samples."""
        return dict(self.round_rows[-1]) if self.round_rows else {}

    def temperature(self, site: str) -> tuple[float | None, list[float] | None]:
        """Return the run's mean temperature at a site, weighted by step size, and its range, where it has one."""
        parts = self._temperatures.get(site, []) if self._tempered else []
        weight = sum(part[0] for part in parts)
        if weight <= 0:
            return None, None
        mean = sum(part[0] * part[1] for part in parts) / weight
        return mean, [min(part[2] for part in parts), max(part[3] for part in parts)]

    def status(self, site: str) -> str:
        """Say how a site's rounds went, the least usual first."""
        statuses = [outcome.status for outcome in self.outcomes.get(site, [])]
        for status in ("REJECTED", "FAILED", "REFUSED", "PARTIAL"):
            if status in statuses:
                detail = next(outcome.detail for outcome in self.outcomes[site] if outcome.status == status)
                return f"{status} {detail}".strip()
        return "OK" if statuses else NOT_ASKED

    def participation(self, site: str) -> list[str]:
        """Return a site's status in every round so far; it was not asked after its last, or before it joined."""
        statuses = self._statuses.get(site, {})
        return [statuses.get(row["round"], NOT_ASKED) for row in self.round_rows]

    def _entry(self, outcome: SiteOutcome) -> _OutcomeEntry:
        reply = None
        if outcome.reply is not None:
            known, history = self.statements.get(outcome.site), outcome.reply.privacy.history
            kept = _common(known.history, history) if known else 0
            reply = _ReplyEntry(
                samples=len(outcome.reply.stretch.weights),
                temperature=(
                    outcome.reply.stretch.step_weight,
                    outcome.reply.stretch.temperature,
                    *outcome.reply.stretch.temperature_range,
                ),
                privacy=outcome.reply.privacy.model_dump(mode="json", exclude={"history"}),
                kept=kept,
                history=history[kept:],
            )
        return _OutcomeEntry(
            site=outcome.site, status=outcome.status, detail=outcome.detail, bytes_up=outcome.bytes_up, reply=reply
        )

    def _take(self, entry: _RoundEntry) -> None:
        """Add a round, new or read back, to what is known."""
        for outcome in entry.outcomes:
            self.outcomes.setdefault(outcome.site, []).append(SiteOutcome(outcome.site, outcome.status, outcome.detail))
            self._statuses.setdefault(outcome.site, {})[entry.round] = outcome.status
            self._add_privacy(entry.round, outcome)
        count = {status: sum(o.status == status for o in entry.outcomes) for status in STATUSES}
        self.round_rows.append(
            {
                "round": entry.round,
                "seconds": entry.seconds,
                "sites_asked": len(entry.outcomes),
                "sites_ok": count["OK"],
                "sites_partial": count["PARTIAL"],
                "sites_refused": count["REFUSED"],
                "sites_failed": count["FAILED"],
                "sites_rejected": count["REJECTED"],
                "bytes_up": sum(outcome.bytes_up for outcome in entry.outcomes),
                "bytes_down": entry.bytes_down,
                "samples_kept": sum(outcome.reply.samples for outcome in entry.outcomes if outcome.reply),
            }
        )

    def _add_privacy(self, round_number: int, outcome: _OutcomeEntry) -> None:
        row: dict[str, Any] = {
            "site": outcome.site,
            "round": round_number,
            "status": outcome.status,
            "reason": outcome.detail,
            "purpose": "training",
        }
        reply = outcome.reply
        if reply is not None:
            before = self.statements[outcome.site].history[: reply.kept] if reply.kept else ()
            # It was validated when it came.
            stated: dict[str, Any] = {**reply.privacy, "history": (*before, *reply.history)}
            statement = PrivacyStatement.model_construct(**stated)
            self.statements[outcome.site] = statement
            self._temperatures.setdefault(outcome.site, []).append(reply.temperature)
            row |= cost_cells(statement) | {"temperature": reply.temperature[1] if self._tempered else None}
        self.privacy_rows.append(row)

    def _write_tables(self) -> None:
        write_csv(self.run_folder / PRIVACY_FILE, self.privacy_rows, PRIVACY_COLUMNS)
        write_csv(self.run_folder / ROUNDS_FILE, self.round_rows, ROUND_COLUMNS)


def _common(first: Sequence[object], second: Sequence[object]) -> int:
    """Count the rows in which two histories begin alike."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
