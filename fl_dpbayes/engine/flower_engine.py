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
from typing import NamedTuple

from fl_dpbayes.config import SHARED_RECORDS, Resources
from fl_dpbayes.engine.flower_command import ENVIRONMENT, FlowerCommand, write_app
from fl_dpbayes.engine.flower_processes import descendants, end, kill, processes_of
from fl_dpbayes.engine.progress import EVENTS_FILE, EventReader, end_of_events
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically

START_SECONDS = 60.0
LOG_FILE = "flower.log"
# In a run directory: where the folder of its SuperLink is.
HOME_FILE = "flower-home"
# In the folder of a SuperLink: where the run directory is, once its sites are made.
PREPARED_FILE = "prepared"
HOME_PREFIX = "fl-dpbayes-"
# Linux's PR_SET_PDEATHSIG: a signal for this process when its parent dies.
SIGNAL_WHEN_PARENT_DIES = 1


class StartedFlower(NamedTuple):
    """A SuperLink that waits for a run directory.

    Attributes:
        home: The SuperLink's own folder.
        command: Asks this SuperLink.
        run: Number of the submitted run, once it is known.
    """

    home: Path
    command: FlowerCommand
    run: Future[str]


_STARTED: ContextVar[StartedFlower | None] = ContextVar("started", default=None)


@contextmanager
def started_flower(
    sites: int, resources: Resources, written_app: Callable[[Path], Path] = write_app
) -> Iterator[None]:
    """Start Flower for one `run_flower` in this context, while its run directory is being made.

    Flower's own simulation leaves a server behind, reads its size from nowhere and reports success
    when the ServerApp failed; here the server is a child of this process, its size comes from the
    scenario, and the status is read back.

    Args:
        sites: Number of virtual sites.
        resources: What each may use.
        written_app: Writes the app that the run names into a folder, and returns the folder.
    """
    home = Path(tempfile.mkdtemp(prefix=HOME_PREFIX))
    try:
        port = _free_port()
        flower = FlowerCommand(home, _environment(home, resources), "own")
        configuration = (
            '[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = '
            f'"127.0.0.1:{port}"\ninsecure = true\n'
        )
        (home / "config.toml").write_text(configuration, encoding="utf-8")
        with ThreadPoolExecutor(1) as pool, _superlink(home, port, flower.environment) as process:

            def submit() -> str:
                _wait_until_healthy(process, port)
                return flower.submit(
                    app=written_app(home / "app"),
                    run_config={"prepared": str(home / PREPARED_FILE)},
                    federation={
                        "num-supernodes": sites,
                        "client-resources-num-cpus": resources.cpus_per_site,
                        "client-resources-num-gpus": resources.gpus_per_site,
                    },
                )

            _STARTED.set(StartedFlower(home=home, command=flower, run=pool.submit(submit)))
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

    Args:
        run_folder: The run directory, with its sites.
        sites: Number of virtual sites.
        resources: What each may use.
        stop: Ends the run when it is set.
        written_app: As of `started_flower`, which is called where it was not before.

    Raises:
        UserError: If Flower could not start, or the run did not complete; the text says where to
            read on.
    """
    started = _STARTED.get()
    if started is None:
        with started_flower(sites, resources, written_app):
            run_flower(run_folder, sites, resources, stop)
        return
    (run_folder / HOME_FILE).write_text(str(started.home), encoding="utf-8")
    events_file = run_folder / EVENTS_FILE
    events = EventReader(events_file, end_of_events(events_file))
    try:
        write_atomically(started.home / PREPARED_FILE, str(run_folder))
        run = started.run.result()
        started.command.wait(run, run_folder / LOG_FILE, events, stop)
    finally:
        with (run_folder / LOG_FILE).open("ab") as log:
            log.write((started.home / LOG_FILE).read_bytes())
        (run_folder / HOME_FILE).unlink(missing_ok=True)


def end_interrupted(run_folder: Path) -> None:
    """End what a killed command left of its run.

    Flower's processes go on without it, and would write beside the next command's.

    Args:
        run_folder: The run directory.
    """
    note = run_folder / HOME_FILE
    if not note.is_file():
        return
    home = Path(note.read_text(encoding="utf-8"))
    # The note lies in a folder that others may have written.
    if home.parent == Path(tempfile.gettempdir()) and home.name.startswith(HOME_PREFIX):
        processes = processes_of(home)
        for process in list(processes):
            processes.update(descendants(process))
        kill(processes)
        # What was started meanwhile.
        kill(processes_of(home))
        shutil.rmtree(home, ignore_errors=True)
    note.unlink()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _environment(home: Path, resources: Resources) -> dict[str, str]:
    if resources.ray_address:
        ray = {"RAY_ADDRESS": resources.ray_address}
    else:
        # A Ray of its own then listens on the loopback address only: it runs the code of whoever
        # reaches its ports.
        ray = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    # Flower's processes run in another folder, and import a user's own code as this one does.
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    import_path = [str(Path(folder).resolve()) for folder in folders if folder]
    # Flower's programs are looked up by name, and a user need not have activated the virtual
    # environment.
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {
        **os.environ,
        **ray,
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(import_path),
        SHARED_RECORDS: "1",
        "FLWR_HOME": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PATH": programs,
    }


@contextmanager
def _superlink(home: Path, port: int, environment: Mapping[str, str]) -> Iterator[subprocess.Popen]:
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--database", str(home / "state.db")]
    # If this command is killed before it has a run directory, nothing says where its SuperLink is.
    end_with_parent = None
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        end_with_parent = partial(prctl, SIGNAL_WHEN_PARENT_DIES, signal.SIGTERM)
    with (home / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=home,
            start_new_session=True,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            preexec_fn=end_with_parent,
        )
    try:
        yield process
    finally:
        if not (home / PREPARED_FILE).exists():
            # It has nothing to lose.
            kill({process.pid, *descendants(process.pid)})
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
