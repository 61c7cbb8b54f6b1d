"""Runs the apps through Flower's simulation: an own SuperLink for each call, ended with it."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from fl_dpbayes.config import SHARED_RECORDS, Resources
from fl_dpbayes.engine.flower_command import ENVIRONMENT, FlowerCommand, write_app
from fl_dpbayes.engine.flower_processes import descendants, end, kill, processes_of
from fl_dpbayes.engine.progress import EVENTS_FILE, EventReader, end_of_events
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically

START_SECONDS = 60.0
LOG_FILE = "flower.log"
HOME_FILE, PREPARED_FILE = "flower-home", "prepared"
HOME_PREFIX = "fl-dpbayes-"


class StartedFlower(NamedTuple):
    """A SuperLink in a folder of its own, and the number, to come, of a run that waits for its run directory there."""

    home: Path
    command: FlowerCommand
    run: Future[str]


_STARTED: ContextVar[StartedFlower | None] = ContextVar("started", default=None)


@contextmanager
def started_flower(
    sites: int, resources: Resources, written_app: Callable[[Path], Path] = write_app
) -> Iterator[None]:
    """Start Flower for one `run_flower` in this context, while its run directory is still being made.

    Flower's own simulation leaves a server behind, reads its size from nowhere and reports success
    when the ServerApp failed; here the server is a child of this process, its size comes from the
    scenario, and the status is read back.
    """
    home = Path(tempfile.mkdtemp(prefix=HOME_PREFIX))
    try:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        flower = FlowerCommand(home, _environment(home, resources), "own")
        superlink = (
            '[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = '
            f'"127.0.0.1:{port}"\ninsecure = true\n'
        )
        (home / "config.toml").write_text(superlink, encoding="utf-8")
        with ThreadPoolExecutor(1) as pool, _superlink(home, port, flower.environment) as process:

            def submit() -> str:
                _wait_until_healthy(process, port)
                return flower.submit(
                    written_app(home / "app"),
                    {"prepared": str(home / PREPARED_FILE)},
                    {
                        "num-supernodes": sites,
                        "client-resources-num-cpus": resources.cpus_per_site,
                        "client-resources-num-gpus": resources.gpus_per_site,
                    },
                )

            _STARTED.set(StartedFlower(home, flower, pool.submit(submit)))
            yield
    finally:
        _STARTED.set(None)
        shutil.rmtree(home, ignore_errors=True)


def run_flower(
    run_folder: Path,
    sites: int,
    resources: Resources,
    stop: threading.Event,
    written_app: Callable[[Path], Path] = write_app,
) -> None:
    """Run the prepared scenario of a run directory through `flwr run`.

    Raises UserError if Flower could not start, or the run did not complete; the text says where to
    read on.
    """
    if (started := _STARTED.get()) is None:
        with started_flower(sites, resources, written_app):
            run_flower(run_folder, sites, resources, stop)
        return
    (run_folder / HOME_FILE).write_text(str(started.home), encoding="utf-8")
    events = EventReader(run_folder / EVENTS_FILE, end_of_events(run_folder / EVENTS_FILE))
    try:
        write_atomically(started.home / PREPARED_FILE, str(run_folder))
        started.command.wait(started.run.result(), run_folder / LOG_FILE, events, stop)
    finally:
        with (run_folder / LOG_FILE).open("ab") as log:
            log.write((started.home / LOG_FILE).read_bytes())
        (run_folder / HOME_FILE).unlink(missing_ok=True)


def end_interrupted(run_folder: Path) -> None:
    """End what a killed command left of its run: Flower's processes go on, and would write beside the next."""
    note = run_folder / HOME_FILE
    if not note.is_file():
        return
    home = Path(note.read_text(encoding="utf-8"))
    # The note lies in a folder that others may have written.
    if home.parent == Path(tempfile.gettempdir()) and home.name.startswith(HOME_PREFIX):
        kill({number for first in processes_of(home) for number in (first, *descendants(first))})
        # What was started meanwhile.
        kill(processes_of(home))
        shutil.rmtree(home, ignore_errors=True)
    note.unlink()


def _environment(home: Path, resources: Resources) -> dict[str, str]:
    # Ray of its own listens on the loopback address only: it runs the code of whoever reaches its
    # ports.
    address = resources.ray_address
    ray = {"RAY_ADDRESS": address} if address else {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    # Its processes run in another folder, and import a user's own code as this one does.
    paths = [
        str(Path(path).resolve())
        for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if path
    ]
    return (
        os.environ
        | ray
        | ENVIRONMENT
        | {
            "PYTHONPATH": os.pathsep.join(paths),
            SHARED_RECORDS: "1",
            "FLWR_HOME": str(home),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            # Flower's programs are looked up by name, and a user need not have activated the
            # virtual environment.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
    )


@contextmanager
def _superlink(home: Path, port: int, environment: Mapping[str, str]) -> Iterator[subprocess.Popen]:
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--database", str(home / "state.db")]
    with (home / LOG_FILE).open("ab") as log:
        # PR_SET_PDEATHSIG: what a command that is killed before it has a run directory left, none
        # could find.
        before = (
            partial(ctypes.CDLL(None).prctl, 1, signal.SIGTERM) if sys.platform == "linux" else None
        )
        streams: Any = {
            "stdout": log,
            "stderr": log,
            "stdin": subprocess.DEVNULL,
            "preexec_fn": before,
        }
        process = subprocess.Popen(
            command, env=dict(environment), cwd=home, start_new_session=True, **streams
        )
    try:
        yield process
    finally:
        if not (home / PREPARED_FILE).exists():
            kill({process.pid, *descendants(process.pid)})  # it has nothing to lose
        end(process, home)


def _wait_until_healthy(process: subprocess.Popen, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise UserError(
                f"Flower's SuperLink ended at once with status {process.returncode}: see "
                f"its {LOG_FILE}"
            )
        with suppress(OSError), closing(HTTPConnection("127.0.0.1", port, timeout=1)) as connection:
            connection.request("GET", "/health")
            if connection.getresponse().status == HTTPStatus.OK:
                return
        time.sleep(0.1)
    raise UserError(
        f"Flower's SuperLink did not answer within {START_SECONDS:.0f} s: see its {LOG_FILE}"
    )
