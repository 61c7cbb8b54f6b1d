"""What a run did: rounds, privacy and warnings, appended after every round so that nothing computed is lost."""

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from fl_dpbayes.config import RunWarning, warning
from fl_dpbayes.files import Config, Entry, Journal, written
from fl_dpbayes.protocol import PrivacyStatement, StatedPasses
from fl_dpbayes.report import (
    PRIVACY_COLUMNS,
    PRIVACY_FILE,
    ROUND_COLUMNS,
    ROUNDS_FILE,
    PassRecord,
    append_csv,
    write_csv,
)
from server.check_reply import CheckedReply
from server.exchange import Answer

EVENTS_FILE = "events.jsonl"
# The least usual last.
STATUSES = ("OK", "PARTIAL", "REFUSED", "FAILED", "REJECTED")
USED = ("OK", "PARTIAL")
NOT_ASKED = "NOT ASKED"


class EventLog:
    """Appends what happens to `events.jsonl` in the run directory, which a display can follow from another process."""

    def __init__(self, run_folder: Path) -> None:
        self._path = run_folder / EVENTS_FILE

    def write(self, event: str, **details: Any) -> None:
        """Append an event with its time (seconds since the epoch) as one line of JSON.

        UserError if that fails.
        """
        line = json.dumps({"event": event, "time": time.time(), **details})
        with written(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def cost_cells(statement: PrivacyStatement) -> dict[str, Any]:
    """Return what a site stated of its spending, as cells of `privacy.csv`; null is infinite."""
    names = ("steps", "epsilon", "epsilon_method", "delta", "mu", "mu_kind", "adjacency", "budget")
    stated = {name: getattr(statement, name) for name in names}
    noises: Sequence[float | None] = [sigma for sigma, *_ in statement.history] or [None]
    return {name: math.inf if value is None else value for name, value in stated.items()} | {
        "noise_multiplier_first": noises[0],
        "noise_multiplier_last": noises[-1],
    }


class _ReplyEntry(Config):
    """What the record keeps of a reply.

    Of its history only the rows after the first `kept`, which it had before.
    """

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
    round: int
    seconds: float
    bytes_down: int
    outcomes: tuple[_OutcomeEntry, ...]


class SiteOutcomes:
    """How a site's rounds went so far, without what its replies said.

    `statuses`: by round. `said`: what came with each status when it first came. `used`: number of
    replies that were.
    """

    def __init__(self) -> None:
        self.statuses: dict[int, str] = {}
        self.said: dict[str, str] = {}
        self.used = 0
        self._weight = self._weighted = 0.0
        self._range = [math.inf, -math.inf]

    def add(self, round_number: int, outcome: _OutcomeEntry) -> None:
        """Add a round."""
        # One text for all sites and rounds.
        status = sys.intern(outcome.status)
        self.statuses[round_number] = status
        self.said.setdefault(status, outcome.detail)
        if outcome.reply is not None:
            weight, temperature, low, high = outcome.reply.temperature
            self.used += 1
            self._weight += weight
            self._weighted += weight * temperature
            self._range = [min(low, self._range[0]), max(high, self._range[1])]

    def temperature(self) -> tuple[float | None, list[float] | None]:
        """Return the mean temperature, weighted by step size, and its range, where there is one."""
        return (self._weighted / self._weight, self._range) if self._weight > 0 else (None, None)


class RunRecord:
    """Collects a run's rows.

    What a round adds is appended to the journal, to `privacy.csv` and to `rounds.csv`.
    """

    def __init__(self, run_folder: Path, journal: Journal, *, tempered: bool = True) -> None:
        self.run_folder, self.journal, self.events = run_folder, journal, EventLog(run_folder)
        self._tempered = tempered
        self.warnings: list[RunWarning] = []
        self.aggregation_inputs: dict[str, Any] | None = None
        self.round_rows: list[dict[str, Any]] = []
        self.statements: dict[str, PrivacyStatement] = {}
        self.resumed_after: list[int] = []
        self.seconds: dict[str, float] = {}
        self.outcomes: defaultdict[str, SiteOutcomes] = defaultdict(SiteOutcomes)
        # What passes looked like -> the sites that said so; each is heard once for each
        # computation.
        self.passes: dict[PassRecord, list[str]] = {}
        self._heard_of: set[tuple[str, str]] = set()
        self._new: list[dict[str, Any]] = []
        self._kept_warnings = 0
        self._stage = ""
        self._started = time.monotonic()

    def new_entries(self) -> list[dict[str, Any]]:
        """Return a journal's entries for what the record has learnt since the last call."""
        warnings = [{"warning": one.model_dump()} for one in self.warnings[self._kept_warnings :]]
        entries, self._new, self._kept_warnings = [*self._new, *warnings], [], len(self.warnings)
        return entries

    def restore(
        self, entries: Iterable[Entry], seconds: Mapping[str, float], round_number: int
    ) -> None:
        """Go on from a run's journal after a round, with the seconds of each stage until then.

        Times add up.
        """
        own, self.warnings, rows = self.warnings, [], list[dict[str, Any]]()
        for entry in entries:
            if "round" in entry:
                rows += self._take(_RoundEntry.model_validate(entry["round"]))
            elif "warning" in entry:
                self.warnings.append(RunWarning.model_validate(entry["warning"]))
            elif "resumed" in entry:
                self.resumed_after.append(entry["resumed"])
        self._kept_warnings = len(self.warnings)
        self.warn(*own)
        self.resumed_after.append(round_number)
        self._new.append({"resumed": round_number})
        for stage, taken in seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + taken
        if self.round_rows:
            # A row of a round that has no checkpoint goes.
            self._write_tables(rows)

    def begin(self, stage: str, **details: Any) -> None:
        """End the stage under way, if any, start the clock of another, and tell a display that shows details of it."""
        self.end_stage()
        self._stage, self._started = stage, time.monotonic()
        if details:
            self.events.write(stage, **details)

    def end_stage(self) -> None:
        """Add the time of the stage under way."""
        self.seconds, self._stage = self.seconds_so_far(), ""

    def seconds_so_far(self) -> dict[str, float]:
        """Return the seconds of each stage, the time of the one under way included."""
        seconds = dict(self.seconds)
        if self._stage:
            seconds[self._stage] = seconds.get(self._stage, 0.0) + time.monotonic() - self._started
        return seconds

    def warn(self, *found: RunWarning) -> None:
        """Keep warnings for the report, each once."""
        self.warnings += [one for one in dict.fromkeys(found) if one not in self.warnings]

    def add_passes(self, site: str, stated: StatedPasses | None) -> None:
        """Keep what a site says of its passes when it first does so.

        Warn where it computes records one by one.
        """
        if stated is None:
            return
        for one in stated.passes:
            if (site, one.computation) in self._heard_of:
                continue
            self._heard_of.add((site, one.computation))
            row = PassRecord.model_validate(
                stated.model_dump(exclude={"passes"}) | one.model_dump()
            )
            self.passes.setdefault(row, []).append(site)
            if one.rows == 1 < one.wanted:
                self.warn(
                    warning("one-by-one", site, computation=one.computation, slower=one.slower)
                )

    def add_round(
        self, round_number: int, answers: Sequence[Answer[CheckedReply]], *, bytes_down: int
    ) -> None:
        """Keep one training round and add it to the tables; UserError if one cannot be written."""
        if not answers:
            return
        seconds, outcomes = (
            round(time.monotonic() - self._started, 3),
            tuple(map(self._entry, answers)),
        )
        entry = _RoundEntry(
            round=round_number, seconds=seconds, bytes_down=bytes_down, outcomes=outcomes
        )
        self._new.append({"round": entry.model_dump(mode="json")})
        bad = [answer for answer in answers if not answer.usable]
        self.warn(
            *(
                warning("not-usable", a.site, round=round_number, status=a.status, detail=a.detail)
                for a in bad
            )
        )
        rows = self._take(entry)
        if len(self.round_rows) == 1:
            self._write_tables(rows)
        else:
            append_csv(self.run_folder / PRIVACY_FILE, rows, PRIVACY_COLUMNS)
            append_csv(self.run_folder / ROUNDS_FILE, self.round_rows[-1:], ROUND_COLUMNS)

    def add_costs(self, spent: Mapping[str, Mapping[str, PrivacyStatement]]) -> None:
        """Add to `privacy.csv` rows without a round: purpose -> site -> what it paid beside training."""
        rows = [
            {"site": site, "status": "OK", "purpose": purpose} | cost_cells(statement)
            for purpose, statements in spent.items()
            for site, statement in statements.items()
        ]
        if rows:
            append_csv(self.run_folder / PRIVACY_FILE, rows, PRIVACY_COLUMNS)

    def temperature(self, site: str) -> tuple[float | None, list[float] | None]:
        """Return the run's mean temperature at a site, weighted by step size, and its range, where it has one."""
        return self.outcomes[site].temperature() if self._tempered else (None, None)

    def status(self, site: str) -> str:
        """Say how a site's last round went, and after a good one how many were not, by the least usual of these."""
        outcomes = self.outcomes[site]
        if not outcomes.statuses:
            return NOT_ASKED
        last = outcomes.statuses[max(outcomes.statuses)]
        if last not in USED:
            return f"{last} {outcomes.said[last]}".strip()
        bad = [status for status in outcomes.statuses.values() if status not in USED]
        if not bad:
            return "PARTIAL" if "PARTIAL" in outcomes.said else last
        worst = max(bad, key=STATUSES.index)
        return (
            f"{last}; {len(bad)} of {len(outcomes.statuses)} rounds {worst} {outcomes.said[worst]}"
        ).strip()

    def participation(self, site: str) -> tuple[str, ...]:
        """Return a site's status in every round so far.

        It was not asked after its last, or before it joined.
        """
        statuses = self.outcomes[site].statuses
        return tuple(statuses.get(row["round"], NOT_ASKED) for row in self.round_rows)

    def _entry(self, answer: Answer[CheckedReply]) -> _OutcomeEntry:
        reply = None
        if answer.checked is not None:
            stretch, privacy = answer.checked.stretch, answer.checked.privacy
            known = self.statements.get(answer.site)
            rows = zip(known.history if known else (), privacy.history, strict=False)
            kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rows))
            reply = _ReplyEntry(
                samples=len(stretch.weights),
                temperature=(stretch.step_weight, stretch.temperature, *stretch.temperature_range),
                privacy=privacy.model_dump(mode="json", exclude={"history"}),
                kept=kept,
                history=privacy.history[kept:],
            )
        said = {name: getattr(answer, name) for name in ("site", "status", "detail", "bytes_up")}
        return _OutcomeEntry(**said, reply=reply)

    def _take(self, entry: _RoundEntry) -> list[dict[str, Any]]:
        """Add a round, new or read back, to what is known, and return its rows of `privacy.csv`."""
        for outcome in entry.outcomes:
            self.outcomes[outcome.site].add(entry.round, outcome)
        statuses = [outcome.status for outcome in entry.outcomes]
        self.round_rows.append(
            {
                "round": entry.round,
                "seconds": entry.seconds,
                "sites_asked": len(entry.outcomes),
                **{f"sites_{status.lower()}": statuses.count(status) for status in STATUSES},
                "bytes_up": sum(outcome.bytes_up for outcome in entry.outcomes),
                "bytes_down": entry.bytes_down,
                "samples_kept": sum(
                    outcome.reply.samples for outcome in entry.outcomes if outcome.reply
                ),
            }
        )
        return [self._privacy_row(entry.round, outcome) for outcome in entry.outcomes]

    def _privacy_row(self, round_number: int, outcome: _OutcomeEntry) -> dict[str, Any]:
        row: dict[str, Any] = {"site": outcome.site, "round": round_number, "purpose": "training"}
        row |= {"status": outcome.status, "reason": outcome.detail}
        if (reply := outcome.reply) is not None:
            before = self.statements[outcome.site].history[: reply.kept] if reply.kept else ()
            stated: dict[str, Any] = {**reply.privacy, "history": (*before, *reply.history)}
            # It was validated when it came.
            self.statements[outcome.site] = statement = PrivacyStatement.model_construct(**stated)
            row |= cost_cells(statement) | {
                "temperature": reply.temperature[1] if self._tempered else None
            }
        return row

    def _write_tables(self, privacy: Iterable[Mapping[str, Any]]) -> None:
        write_csv(self.run_folder / PRIVACY_FILE, privacy, PRIVACY_COLUMNS)
        write_csv(self.run_folder / ROUNDS_FILE, self.round_rows, ROUND_COLUMNS)
