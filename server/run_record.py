"""What a run did: rounds, privacy and warnings, written after every round so that nothing computed is lost."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from fl_dpbayes.protocol.record import Record
from fl_dpbayes.protocol.refusal import Refusal
from fl_dpbayes.protocol.train import PrivacyStatement, TrainReply
from fl_dpbayes.report.records import PRIVACY_COLUMNS, ROUND_COLUMNS, write_csv

STATUSES = ("OK", "PARTIAL", "REFUSED", "FAILED", "REJECTED")
NOT_ASKED = "NOT ASKED"
NO_REPLY = "no reply in time"


@dataclass(frozen=True)
class SiteOutcome:
    """How one site answered one training request."""

    site: str
    status: str
    detail: str = ""
    reply: TrainReply | None = None
    bytes_up: int = 0

    @classmethod
    def answered(cls, site: str, reply: TrainReply, bytes_up: int) -> "SiteOutcome":
        """A checked reply with status OK or PARTIAL."""
        return cls(site, reply.status, reply=reply, bytes_up=bytes_up)

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


class RecordState(Record):
    """A record between two rounds, for a checkpoint; of past replies it keeps what the summary needs."""

    model_config = ConfigDict(allow_inf_nan=True)

    warnings: tuple[str, ...]
    privacy_rows: tuple[dict[str, str | int | float | None], ...]
    round_rows: tuple[dict[str, str | int | float | None], ...]
    statements: dict[str, PrivacyStatement]
    outcomes: tuple[tuple[str, str, str], ...]
    participation: dict[str, dict[int, str]]
    seconds: dict[str, float]
    temperatures: dict[str, tuple[tuple[float, float, float, float], ...]]
    resumed_after: tuple[int, ...] = ()


class RunRecord:
    """Collects a run's rows; `privacy.csv` and `rounds.csv` are rewritten after each round.

    `tempered` says whether the run's sampler has a temperature.
    """

    def __init__(self, run_folder: Path, *, tempered: bool = True) -> None:
        self.run_folder = run_folder
        self._tempered = tempered
        self.warnings: list[str] = []
        self.aggregation_inputs: dict[str, Any] | None = None
        self.privacy_rows: list[dict[str, Any]] = []
        self.round_rows: list[dict[str, Any]] = []
        self.statements: dict[str, PrivacyStatement] = {}
        self.outcomes: dict[str, list[SiteOutcome]] = {}
        self.resumed_after: list[int] = []
        self._statuses: dict[str, dict[int, str]] = {}
        self.seconds: dict[str, float] = {}
        self._temperatures: dict[str, list[tuple[float, float, float, float]]] = {}
        self._stage = ""
        self._started = time.monotonic()

    def state(self) -> RecordState:
        """Return what is known so far, the time of the stage under way included."""
        seconds = dict(self.seconds)
        if self._stage:
            seconds[self._stage] = seconds.get(self._stage, 0.0) + time.monotonic() - self._started
        return RecordState(
            warnings=tuple(self.warnings),
            privacy_rows=tuple(self.privacy_rows),
            round_rows=tuple(self.round_rows),
            statements=self.statements,
            outcomes=tuple((o.site, o.status, o.detail) for of_site in self.outcomes.values() for o in of_site),
            participation=self._statuses,
            seconds=seconds,
            temperatures={site: tuple(parts) for site, parts in self._temperatures.items()},
            resumed_after=tuple(self.resumed_after),
        )

    def restore(self, state: RecordState, round_number: int) -> None:
        """Go on from a record of the same run after a round; times add up."""
        self.resumed_after = [*state.resumed_after, round_number]
        self.warnings = [*state.warnings, *(text for text in self.warnings if text not in state.warnings)]
        self.privacy_rows, self.round_rows = list(state.privacy_rows), list(state.round_rows)
        self.statements = dict(state.statements)
        for site, status, detail in state.outcomes:
            self.outcomes.setdefault(site, []).append(SiteOutcome(site, status, detail))
        self._statuses = {site: dict(statuses) for site, statuses in state.participation.items()}
        for stage, seconds in state.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self._temperatures = {site: list(parts) for site, parts in state.temperatures.items()}

    def begin(self, stage: str) -> None:
        """End the stage under way, if any, and start the clock of another."""
        self.end_stage()
        self._stage, self._started = stage, time.monotonic()

    def end_stage(self) -> None:
        """Add the time of the stage under way."""
        if self._stage:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + time.monotonic() - self._started
        self._stage = ""

    def warn(self, text: str) -> None:
        """Keep a warning for the report, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def add_round(self, round_number: int, outcomes: Sequence[SiteOutcome], *, bytes_down: int) -> None:
        """Keep one training round and rewrite the tables."""
        if not outcomes:
            return
        for outcome in outcomes:
            self.outcomes.setdefault(outcome.site, []).append(outcome)
            self._statuses.setdefault(outcome.site, {})[round_number] = outcome.status
            if not outcome.usable:
                self.warn(f"round {round_number}: {outcome.describe()}")
            self._add_privacy(round_number, outcome)
        count = {status: sum(o.status == status for o in outcomes) for status in STATUSES}
        self.round_rows.append(
            {
                "round": round_number,
                "seconds": round(time.monotonic() - self._started, 3),
                "sites_asked": len(outcomes),
                "sites_ok": count["OK"],
                "sites_partial": count["PARTIAL"],
                "sites_refused": count["REFUSED"],
                "sites_failed": count["FAILED"],
                "sites_rejected": count["REJECTED"],
                "bytes_up": sum(outcome.bytes_up for outcome in outcomes),
                "bytes_down": bytes_down,
                "samples_kept": sum(len(outcome.reply.sample_steps) for outcome in outcomes if outcome.reply),
            }
        )
        write_csv(self.run_folder / "privacy.csv", self.privacy_rows, PRIVACY_COLUMNS)
        write_csv(self.run_folder / "rounds.csv", self.round_rows, ROUND_COLUMNS)

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

    def _add_privacy(self, round_number: int, outcome: SiteOutcome) -> None:
        row: dict[str, Any] = {
            "site": outcome.site,
            "round": round_number,
            "status": outcome.status,
            "reason": outcome.detail,
            "purpose": "training",
        }
        statement, reply = outcome.privacy, outcome.reply
        if statement is not None and reply is not None:
            self.statements[outcome.site] = statement
            self._temperatures.setdefault(outcome.site, []).append(
                (reply.step_weight, reply.temperature_mean, reply.temperature_low, reply.temperature_high)
            )
            row |= cost_cells(statement) | {"temperature": reply.temperature_mean if self._tempered else None}
        self.privacy_rows.append(row)
