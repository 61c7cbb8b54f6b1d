"""The live display of a run: round, sites, epsilon spent, time left, from the server's events."""

import contextvars
import decimal
import io
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fl_dpbayes.report import rounded_up

EVENTS_FILE = "events.jsonl"
POLL_SECONDS = 0.2
STOP_SECONDS = 60.0
# So that all stands on one line of 80 columns.
BAR_WIDTH = 20
# More sites with a problem are counted, not listed.
MOST_PROBLEMS = 8
# A hospital's policy that no test results leave is no fault.
BY_POLICY = "NOT_SENT"
# Below this epsilon, three decimal places tell too little.
SMALL_EPSILON = 0.01
SMALL_DIGITS = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)


def spent_text(epsilon: float) -> str:
    """Write an epsilon, rounded up so that the text never claims less than was spent."""
    if epsilon >= SMALL_EPSILON:
        return rounded_up(epsilon)
    # A budget of .001 that is spent must not show as .00101.
    return f"{float(SMALL_DIGITS.create_decimal(epsilon * (1 - 1e-9))):g}"


class EventReader:
    """Reads the lines that were appended to an event file since the last look.

    A damaged line shows nothing.
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        """Begin at a position in the file, in bytes."""
        self._path = path
        self._position = position

    def new_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call.

        A line that is still being written waits for the next.
        """
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            content = file.read()
        whole_lines = content[: content.rfind(b"\n") + 1]
        self._position += len(whole_lines)
        events = []
        for line in whole_lines.splitlines():
            with suppress(ValueError):
                events.append(json.loads(line))
        return [event for event in events if isinstance(event, dict) and "event" in event]


@dataclass(frozen=True)
class SiteState:
    """What the display knows of a site: its role, what it did last, and the epsilon it spent.

    Attributes:
        role: Train, held out or shifted.
        state: What it did last.
        epsilon: What it has spent; None before its first reply.
        budget: What it may spend; None as long as it is not told.
        problem: Why it did not train or was not tested, empty if all is well.
    """

    role: str = ""
    state: str = ""
    epsilon: float | None = None
    budget: float | None = None
    problem: str = ""

    @property
    def spent(self) -> str:
        """Epsilon of its budget, in words; empty where neither is known."""
        if self.epsilon is None or not self.budget:
            return ""
        return f"{spent_text(self.epsilon)} of {self.budget:g}"

    @property
    def share(self) -> float:
        """Share of the budget that is spent, in [0, 1]; 0 where it is not known or infinite."""
        share = self.epsilon / self.budget if self.epsilon and self.budget else 0.0
        return share if math.isfinite(share) else 0.0


class Display:
    """Turns events into one bar, and a line for each site with a problem.

    Without a terminal, into a line for each tenth of the rounds, and the same lines for sites.
    """

    def __init__(self, console: Console, rounds: int) -> None:
        """Show nothing yet.

        Args:
            console: Where the display is shown.
            rounds: Number of rounds of all chains.
        """
        self._console = console
        self._rounds = rounds
        self._trainers = 0
        self._is_live = console.is_terminal or console.is_jupyter
        self._sites: dict[str, SiteState] = {}
        self._printed_tenths = 0
        self._printed_problems: set[tuple[str, str]] = set()
        self._unmeasured: set[str] = set()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(BAR_WIDTH),
            TaskProgressColumn(),
            TextColumn("{task.fields[spent]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=None, spent="")

    def show(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        match event["event"]:
            case "waiting":
                self._show_waiting(event)
            case "roster":
                self._show_roster(event)
            case "train":
                self._begin_round(event["round"])
                self._set_states(event["sites"], "training")
            case "recalibrate":
                self._rounds_done(self._rounds)
                self._describe(f"recalibrating {event['round']}/{event['rounds']}")
                self._set_states(event["sites"], "recalibrating")
            case "evaluate":
                self._rounds_done(self._rounds)
                self._describe("evaluating")
                self._unmeasured = set(event["sites"])
                self._set_states(event["sites"], "evaluating")
            case "site":
                self._show_reply(event)
            case "evaluated":
                self._show_evaluated(event)

    def render(self) -> Group:
        """Return what the terminal shows now."""
        problems = [name for name, site in self._sites.items() if site.problem]
        if len(problems) > MOST_PROBLEMS:
            names = f"{', '.join(problems[:MOST_PROBLEMS])} and more"
            return Group(self._bar, Text(f"{len(problems)} sites have a problem: {names}"))
        return Group(self._bar, self._table(problems)) if problems else Group(self._bar)

    def table(self) -> Table:
        """Return the sites, with what each did last and has spent."""
        return self._table(self._sites)

    def _table(self, names: Iterable[str]) -> Table:
        table = Table(
            "site", "role", "state", "epsilon spent", box=None, padding=(0, 2), header_style="bold"
        )
        for name in names:
            site = self._sites[name]
            # As plain text: a state may hold what a site sent, and square brackets are markup to
            # rich.
            table.add_row(Text(name), Text(site.role), Text(site.state), Text(site.spent))
        return table

    def _show_waiting(self, event: dict[str, Any]) -> None:
        text = f"waiting for {', '.join(event['missing'])}"
        self._describe(text)
        if not self._is_live:
            self._print(text)

    def _show_roster(self, event: dict[str, Any]) -> None:
        roles = dict(event["sites"])
        # A run that is resumed calls its sites again, and what was spent stays spent.
        self._sites = {
            name: replace(self._site(name), role=role, state="waiting")
            for name, role in roles.items()
        }
        self._trainers = sum(role == "train" for role in roles.values())
        self._bar.update(self._task, total=self._rounds * self._trainers + len(roles))
        for line in event.get("left_out", ()):
            self._print(f"left out: {line}")

    def _begin_round(self, number: int) -> None:
        self._rounds_done(number - 1)
        self._describe(f"round {number}/{self._rounds}")

    def _rounds_done(self, done: int) -> None:
        """Fill the bar up to a round; without a terminal print a line for each new tenth."""
        self._bar.update(self._task, completed=done * self._trainers)
        tenths = 10 * done // self._rounds
        if self._is_live or tenths <= self._printed_tenths:
            return
        self._printed_tenths = tenths
        most = self._most_spent()
        self._print(f"round {done}/{self._rounds}{f', {most}' if most else ''}")

    def _most_spent(self) -> str:
        """Say what the site spent that spent the largest share of its budget."""
        most = max(self._sites.values(), key=lambda site: site.share, default=SiteState())
        return f"epsilon {most.spent}" if most.spent else ""

    def _show_reply(self, event: dict[str, Any]) -> None:
        name = event["site"]
        status = event["status"]
        state = f"{status} {event['detail']}".strip()
        site = replace(self._site(name), state=state, problem="" if status == "OK" else state)
        if event["epsilon"] is not None and event["budget"]:
            site = replace(site, epsilon=event["epsilon"], budget=event["budget"])
        self._keep(name, site, f"round {event['round']}/{self._rounds}")
        self._bar.advance(self._task)
        self._bar.update(self._task, spent=self._most_spent())

    def _show_evaluated(self, event: dict[str, Any]) -> None:
        name = event["site"]
        before = self._site(name)
        tests = f"tests: {event['problem'] or 'done'}"
        # That a site did not train is not hidden by its tests.
        trained_badly = f"{before.problem}; " if before.problem else ""
        is_well = not event["problem"] or event["problem"] == BY_POLICY
        problem = before.problem if is_well else f"{trained_badly}{tests}"
        self._keep(
            name, replace(before, state=f"{trained_badly}{tests}", problem=problem), "evaluation"
        )
        self._bar.advance(self._task)
        self._unmeasured.discard(name)
        if not self._unmeasured:
            self._describe("writing the report")

    def _keep(self, name: str, site: SiteState, when: str) -> None:
        """Keep what a site did; without a terminal print its problem once."""
        if (
            site.problem
            and not self._is_live
            and (name, site.problem) not in self._printed_problems
        ):
            self._printed_problems.add((name, site.problem))
            self._print(f"{when}: {name}: {site.problem}")
        self._sites[name] = site

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _describe(self, text: str) -> None:
        self._bar.update(self._task, description=text)

    def _set_states(self, names: Iterable[str], state: str) -> None:
        for name in names:
            self._sites[name] = replace(self._site(name), state=state)

    def _site(self, name: str) -> SiteState:
        return self._sites.get(name, SiteState())


def end_of_events(path: Path) -> int:
    """Drop a line that a kill cut off from an event file, and return the file's size in bytes."""
    if not path.is_file():
        return 0
    with path.open("r+b") as file:
        size = file.read().rfind(b"\n") + 1
        file.truncate(size)
    return size


def follow(
    reader: EventReader, rounds: int, console: Console, is_running: Callable[[], bool]
) -> None:
    """Show a run's events until it is over.

    Args:
        reader: Reads the run's events.
        rounds: Number of rounds of all chains.
        console: Where they are shown.
        is_running: Tells whether the run goes on.
    """
    display = Display(console, rounds)
    with _shown(display, console) as refresh:
        running = True
        while running:
            running = is_running()
            for event in reader.new_events():
                display.show(event)
            refresh()
            time.sleep(POLL_SECONDS if running else 0)


def run_and_follow(
    work: Callable[[threading.Event], None], reader: EventReader, rounds: int, console: Console
) -> BaseException | None:
    """Work in a thread and show the run's events meanwhile.

    Args:
        work: The work, which ends early when the event that it is given is set.
        reader: Reads the run's events.
        rounds: Number of rounds of all chains.
        console: Where events are shown.

    Returns:
        What the work raised, or None.

    Raises:
        KeyboardInterrupt: As it came, after the work was stopped and waited for.
    """
    failures: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:
            failures.append(error)

    # With a copy of this context, as it holds a module object that was given to this run.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), daemon=True)
    thread.start()
    try:
        follow(reader, rounds, console, thread.is_alive)
    except KeyboardInterrupt:
        stop.set()
        thread.join(STOP_SECONDS)
        raise
    return failures[0] if failures else None


@contextmanager
def _shown(display: Display, console: Console) -> Iterator[Callable[[], None]]:
    """Show a display while the context lasts; yield what brings it up to date."""
    if not console.is_jupyter or console.quiet:
        with Live(
            get_renderable=display.render,
            console=console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            auto_refresh=console.is_terminal,
        ):
            yield lambda: None
        return
    from IPython import display as notebook

    def page() -> notebook.HTML:
        recorder = Console(record=True, file=io.StringIO(), width=100, force_jupyter=False)
        recorder.print(display.render())
        return notebook.HTML(
            recorder.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        )

    # One cell output that is written anew; rich's own way needs ipywidgets.
    handle = notebook.display(page(), display_id=True)
    yield lambda: handle.update(page())
