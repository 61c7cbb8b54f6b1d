"""The live display of a run: round, sites, epsilon spent, time left, from the events that the server writes."""

import contextvars
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

EVENTS_FILE = "events.jsonl"
POLL_SECONDS = 0.2
STOP_SECONDS = 60.0


class EventReader:
    """Reads the lines that were appended to an event file since the last look.

    One that is damaged shows nothing.
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        self._path, self._position = path, position

    def new_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call.

        A line that is still being written waits for the next.
        """
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            content = file.read()
        whole, found = content[: content.rfind(b"\n") + 1], []
        self._position += len(whole)
        for line in whole.splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [event for event in found if isinstance(event, dict) and "event" in event]


class Display:
    """Turns events into a bar and a table of sites; without a terminal, into one line per round."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console, self._rounds, self._trainers = console, rounds, 0
        self._live = console.is_terminal or console.is_jupyter
        self._sites: dict[str, tuple[str, str, str]] = {}
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
                text = f"waiting for {', '.join(event['missing'])}"
                self._bar.update(self._task, description=text)
                if not self._live:
                    self._console.print(text, markup=False)
            case "roster":
                roles, paid = (
                    dict(event["sites"]),
                    {name: row[2] for name, row in self._sites.items()},
                )
                # A run that is resumed calls them again, and what was spent stays spent.
                self._sites = {
                    name: (role, "waiting", paid.get(name, "")) for name, role in roles.items()
                }
                self._trainers = sum(role == "train" for role in roles.values())
                self._bar.update(self._task, total=self._rounds * self._trainers + len(roles))
            case "train":
                text, done = (
                    f"round {event['round']}/{event['rounds']}",
                    (event["round"] - 1) * self._trainers,
                )
                self._ask(event, "training", description=text, completed=done)
            case "recalibrate":
                self._ask(
                    event,
                    "recalibrating",
                    description=f"recalibrating {event['round']}/{event['rounds']}",
                )
            case "evaluate":
                self._ask(
                    event,
                    "evaluating",
                    description="evaluating",
                    completed=self._rounds * self._trainers,
                )
            case "site":
                epsilon, budget = event["epsilon"], event["budget"]
                spent = f"{epsilon:.3f} of {budget:g}" if epsilon is not None and budget else None
                said = f"{event['status']} {event['detail']}".strip()
                self._problems[event["site"]] = (
                    f"{said}; " if event["status"] not in ("OK", "PARTIAL") else ""
                )
                self._set(event["site"], said, spent)
                self._bar.advance(self._task)
                if not self._live:
                    place = f"round {event['round']}/{self._rounds}  {event['site']}"
                    self._console.print(
                        f"{place}  {event['status']}  {event['detail'] or spent or ''}",
                        markup=False,
                    )
            case "evaluated":
                # What it let out of tests does not hide that it did not train.
                self._set(
                    event["site"],
                    f"{self._problems.get(event['site'], '')}tests: {event['problem'] or 'done'}",
                )
                self._bar.advance(self._task)

    def render(self) -> Group:
        """Return what the terminal shows now."""
        return Group(self._bar, self.table())

    def table(self) -> Table:
        """Return the sites, with what each did last and has spent."""
        table = Table(
            "site", "role", "state", "epsilon spent", box=None, padding=(0, 2), header_style="bold"
        )
        for name, (role, state, spent) in self._sites.items():
            # As plain text: a state may hold what a site sent, and square brackets are markup to
            # rich.
            table.add_row(*map(Text, (name, role, state, spent)))
        return table

    def _ask(self, event: dict[str, Any], state: str, **progress: Any) -> None:
        self._bar.update(self._task, **progress)
        for name in event["sites"]:
            self._set(name, state)

    def _set(self, name: str, state: str, spent: str | None = None) -> None:
        role, _, before = self._sites.get(name, ("", "", ""))
        self._sites[name] = (role, state, before if spent is None else spent)


def end_of_events(path: Path) -> int:
    """Return the size of an event file after its last whole line.

    A line that a kill cut off is dropped from it.
    """
    if not path.is_file():
        return 0
    with path.open("r+b") as file:
        size = file.read().rfind(b"\n") + 1
        file.truncate(size)
    return size


def follow(
    reader: EventReader, rounds: int, console: Console, is_running: Callable[[], bool]
) -> None:
    """Show a run's events until it is over."""
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
    """Work in a thread and show the run's events meanwhile; return what the work raised, or None.

    An interrupt sets the event that `work` is given, waits for it and is raised again.
    """
    failures, stop = list[BaseException](), threading.Event()

    def run() -> None:
        try:
            work(stop)
        except BaseException as error:
            failures.append(error)

    # With its context: a module object that was given to this run is in it.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
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
