"""The live display of a run: round, sites, epsilon spent, time left, from the server's events."""

import contextvars
import decimal
import io
import json
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
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fl_dpbayes.report import rounded_up

EVENTS_FILE = "events.jsonl"
POLL_SECONDS = 0.2
STOP_SECONDS = 60.0
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
    """What the display shows of a site: its role, what it did last, and the epsilon it spent."""

    role: str = ""
    state: str = ""
    spent: str = ""


class Display:
    """Turns events into a bar and a table of sites; without a terminal, into one line per round."""

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
        # Why a site did not train, which its tests do not hide.
        self._problems: dict[str, str] = {}
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("replies elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=None)

    def show(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        match event["event"]:
            case "waiting":
                self._show_waiting(event)
            case "roster":
                self._show_roster(event)
            case "train":
                number = event["round"]
                self._bar.update(
                    self._task,
                    description=f"round {number}/{event['rounds']}",
                    completed=(number - 1) * self._trainers,
                )
                self._set_states(event["sites"], "training")
            case "recalibrate":
                self._bar.update(
                    self._task, description=f"recalibrating {event['round']}/{event['rounds']}"
                )
                self._set_states(event["sites"], "recalibrating")
            case "evaluate":
                self._bar.update(
                    self._task,
                    description="evaluating",
                    completed=self._rounds * self._trainers,
                )
                self._set_states(event["sites"], "evaluating")
            case "site":
                self._show_reply(event)
            case "evaluated":
                problem = self._problems.get(event["site"], "")
                self._set_states([event["site"]], f"{problem}tests: {event['problem'] or 'done'}")
                self._bar.advance(self._task)

    def render(self) -> Group:
        """Return what the terminal shows now."""
        return Group(self._bar, self.table())

    def table(self) -> Table:
        """Return the sites, with what each did last and has spent."""
        table = Table(
            "site", "role", "state", "epsilon spent", box=None, padding=(0, 2), header_style="bold"
        )
        for name, site in self._sites.items():
            # As plain text: a state may hold what a site sent, and square brackets are markup to
            # rich.
            table.add_row(Text(name), Text(site.role), Text(site.state), Text(site.spent))
        return table

    def _show_waiting(self, event: dict[str, Any]) -> None:
        text = f"waiting for {', '.join(event['missing'])}"
        self._bar.update(self._task, description=text)
        if not self._is_live:
            self._console.print(text, markup=False)

    def _show_roster(self, event: dict[str, Any]) -> None:
        roles = dict(event["sites"])
        # A run that is resumed calls its sites again, and what was spent stays spent.
        self._sites = {
            name: SiteState(role=role, state="waiting", spent=self._site(name).spent)
            for name, role in roles.items()
        }
        self._trainers = sum(role == "train" for role in roles.values())
        self._bar.update(self._task, total=self._rounds * self._trainers + len(roles))

    def _show_reply(self, event: dict[str, Any]) -> None:
        name = event["site"]
        status = event["status"]
        detail = event["detail"]
        epsilon = event["epsilon"]
        budget = event["budget"]
        state = f"{status} {detail}".strip()
        spent = ""
        if epsilon is not None and budget:
            spent = f"{spent_text(epsilon)} of {budget:g}"
        self._problems[name] = "" if status in ("OK", "PARTIAL") else f"{state}; "
        before = self._site(name)
        self._sites[name] = replace(before, state=state, spent=spent or before.spent)
        self._bar.advance(self._task)
        if not self._is_live:
            round_of_site = f"round {event['round']}/{self._rounds}  {name}"
            self._console.print(f"{round_of_site}  {status}  {detail or spent}", markup=False)

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
