"""What a run did: rounds, privacy and warnings, appended after every round."""

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fl_dpbayes.config import RunWarning, warning
from fl_dpbayes.files import RunStore, written
from fl_dpbayes.protocol import PrivacyStatement, StatedPasses
from fl_dpbayes.report import (
    PRIVACY_COLUMNS,
    PRIVACY_FILE,
    ROUND_COLUMNS,
    ROUNDS_FILE,
    AggregationInputs,
    PassRecord,
    PrivacyRow,
    RoundRow,
    append_csv,
    write_csv,
)
from server.check_reply import CheckedReply
from server.checkpoint import Checkpoint, RoundEntry
from server.round_outcomes import Answer, RoundOutcome, SiteHistory, SiteOutcome, paid_row

EVENTS_FILE = "events.jsonl"


class EventLog:
    """Appends what happens to `events.jsonl`, which a display can follow from another process."""

    def __init__(self, run_folder: Path) -> None:
        self._path = run_folder / EVENTS_FILE

    def write(self, event: str, **details: object) -> None:
        """Append an event with its time (seconds since the epoch) as one line of JSON.

        Raises:
            UserError: The file cannot be written.
        """
        line = json.dumps({"event": event, "time": time.time(), **details})
        with written(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class RunRecord:
    """Collects what a run did.

    What a round adds is appended to the run's store, to `privacy.csv` and to `rounds.csv`.

    Attributes:
        run_folder: The run directory.
        store: The run's store.
        events: The run's events.
        warnings: Warnings for the report, each once.
        aggregation_inputs: What the rule says of the public records that it uses.
        round_rows: Rows of `rounds.csv`.
        statements: Site -> its last privacy statement of the training.
        resumed_after: Rounds after which the run was taken up again.
        seconds: Stage -> seconds of those that have ended.
        histories: Site -> how its rounds went.
        passes: What passes over records looked like -> the sites that said so.
    """

    def __init__(self, store: RunStore, *, tempered: bool = True) -> None:
        """Begin with nothing.

        Args:
            store: The store of the run's directory.
            tempered: Whether the run's sampler has a temperature.
        """
        self.run_folder = store.path.parent
        self.store = store
        self.events = EventLog(self.run_folder)
        self.warnings: list[RunWarning] = []
        self.aggregation_inputs: AggregationInputs | None = None
        self.round_rows: list[RoundRow] = []
        self.statements: dict[str, PrivacyStatement] = {}
        self.resumed_after: list[int] = []
        self.seconds: dict[str, float] = {}
        self.histories: defaultdict[str, SiteHistory] = defaultdict(SiteHistory)
        self.passes: dict[PassRecord, list[str]] = {}
        self._tempered = tempered
        # (site, computation): each site is heard once for each computation.
        self._stated_passes: set[tuple[str, str]] = set()
        # What the next entry of the store says.
        self._outcome: RoundOutcome | None = None
        self._resumed: int | None = None
        self._stored_warnings = 0
        self._stage = ""
        self._stage_began = time.monotonic()

    def new_entry(self, checkpoint: Checkpoint) -> RoundEntry:
        """Return an entry of the store with what the record has learnt since the last one."""
        entry = RoundEntry(
            checkpoint=checkpoint,
            outcome=self._outcome,
            warnings=tuple(self.warnings[self._stored_warnings :]),
            resumed=self._resumed,
        )
        self._outcome = None
        self._resumed = None
        self._stored_warnings = len(self.warnings)
        return entry

    def restore(self, rounds: Sequence[RoundEntry]) -> None:
        """Go on from what a run's store holds of its rounds, one at least.

        The seconds of this process are added to those before.
        """
        warnings_of_this_process = self.warnings
        self.warnings = []
        privacy_rows: list[PrivacyRow] = []
        for entry in rounds:
            if entry.outcome is not None:
                privacy_rows += self._add_outcome(entry.outcome)
            self.warnings += entry.warnings
            if entry.resumed is not None:
                self.resumed_after.append(entry.resumed)
        self._stored_warnings = len(self.warnings)
        self.warn(*warnings_of_this_process)
        checkpoint = rounds[-1].checkpoint
        self.resumed_after.append(checkpoint.round)
        self._resumed = checkpoint.round
        for stage, seconds_before in checkpoint.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds_before
        if self.round_rows:
            # A row of a round that the store has not goes.
            self._write_tables(privacy_rows)

    def begin(self, stage: str, **details: object) -> None:
        """End the stage under way, if any, and begin another.

        Args:
            stage: Its name.
            **details: What a display of the events shows of it; without any it is told nothing.
        """
        self.end_stage()
        self._stage = stage
        self._stage_began = time.monotonic()
        if details:
            self.events.write(stage, **details)

    def end_stage(self) -> None:
        """Add the time of the stage under way."""
        self.seconds = self.seconds_so_far()
        self._stage = ""

    def seconds_so_far(self) -> dict[str, float]:
        """Return the seconds of each stage, the time of the one under way included."""
        seconds = dict(self.seconds)
        if self._stage:
            elapsed = time.monotonic() - self._stage_began
            seconds[self._stage] = seconds.get(self._stage, 0.0) + elapsed
        return seconds

    def warn(self, *warnings: RunWarning) -> None:
        """Keep warnings for the report, each once."""
        for warned in warnings:
            if warned not in self.warnings:
                self.warnings.append(warned)

    def add_passes(self, site: str, stated: StatedPasses | None) -> None:
        """Keep what a site says of its passes when it first does so.

        Warn where it computes records one by one.
        """
        if stated is None:
            return
        for stated_pass in stated.passes:
            computation = stated_pass.computation
            if (site, computation) in self._stated_passes:
                continue
            self._stated_passes.add((site, computation))
            row = PassRecord.model_validate(
                stated.model_dump(exclude={"passes"}) | stated_pass.model_dump()
            )
            self.passes.setdefault(row, []).append(site)
            if stated_pass.rows == 1 < stated_pass.wanted:
                slower = stated_pass.slower
                self.warn(warning("one-by-one", site, computation=computation, slower=slower))

    def add_round(
        self, round_number: int, answers: Sequence[Answer[CheckedReply]], *, bytes_down: int
    ) -> None:
        """Keep one training round and add it to the tables.

        Args:
            round_number: The round, from 1.
            answers: One of each site that got a request.
            bytes_down: Size of the arrays of all requests.

        Raises:
            UserError: A table cannot be written.
        """
        if not answers:
            return
        round_outcome = RoundOutcome(
            round=round_number,
            seconds=round(time.monotonic() - self._stage_began, 3),
            bytes_down=bytes_down,
            outcomes=tuple(
                SiteOutcome.of_answer(answer, self.statements.get(answer.site))
                for answer in answers
            ),
        )
        self._outcome = round_outcome
        for answer in answers:
            if not answer.usable:
                self.warn(
                    warning(
                        "not-usable",
                        answer.site,
                        round=round_number,
                        status=answer.status,
                        detail=answer.detail,
                    )
                )
        privacy_rows = self._add_outcome(round_outcome)
        if len(self.round_rows) == 1:
            self._write_tables(privacy_rows)
        else:
            append_csv(self.run_folder / PRIVACY_FILE, privacy_rows, PRIVACY_COLUMNS)
            append_csv(self.run_folder / ROUNDS_FILE, self.round_rows[-1:], ROUND_COLUMNS)

    def add_costs(self, purpose: str, statements: Mapping[str, PrivacyStatement]) -> None:
        """Add rows without a round to `privacy.csv`.

        Args:
            purpose: What was paid for beside training.
            statements: Site -> what it paid.
        """
        rows = [
            paid_row(site=site, status="OK", purpose=purpose, statement=statement)
            for site, statement in statements.items()
        ]
        if rows:
            append_csv(self.run_folder / PRIVACY_FILE, rows, PRIVACY_COLUMNS)

    def mean_temperature(self, site: str) -> float | None:
        """Return the run's mean temperature at a site, weighted by step size, where it has one."""
        return self.histories[site].mean_temperature() if self._tempered else None

    def temperature_range(self, site: str) -> tuple[float, float] | None:
        """Return the run's least and largest temperature at a site, where it has one."""
        return self.histories[site].temperature_range() if self._tempered else None

    def participation(self, site: str) -> tuple[str, ...]:
        """Return a site's status in every round so far."""
        rounds = [row.round for row in self.round_rows]
        return self.histories[site].statuses_in(rounds)

    def _add_outcome(self, round_outcome: RoundOutcome) -> list[PrivacyRow]:
        """Add a round, new or read back, and return its rows of `privacy.csv`."""
        for outcome in round_outcome.outcomes:
            self.histories[outcome.site].add(round_outcome.round, outcome)
        self.round_rows.append(round_outcome.row())
        return [
            self._add_privacy(round_outcome.round, outcome) for outcome in round_outcome.outcomes
        ]

    def _add_privacy(self, round_number: int, outcome: SiteOutcome) -> PrivacyRow:
        """Take over a site's privacy statement, and return its row of `privacy.csv`."""
        if outcome.reply is None:
            return PrivacyRow(
                site=outcome.site,
                round=round_number,
                status=outcome.status,
                reason=outcome.detail,
                purpose="training",
            )
        statement = outcome.reply.statement(self.statements.get(outcome.site))
        self.statements[outcome.site] = statement
        return paid_row(
            site=outcome.site,
            status=outcome.status,
            purpose="training",
            statement=statement,
            round_number=round_number,
            temperature=outcome.reply.mean_temperature if self._tempered else None,
        )

    def _write_tables(self, privacy_rows: Iterable[PrivacyRow]) -> None:
        write_csv(self.run_folder / PRIVACY_FILE, privacy_rows, PRIVACY_COLUMNS)
        write_csv(self.run_folder / ROUNDS_FILE, self.round_rows, ROUND_COLUMNS)
