"""Runs the apps through Flower's simulation: an own SuperLink for each call, ended with it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import Resources
from fl_dpbayes.run.flower_processes import descendants, end, kill, processes_of
from fl_dpbayes.run.progress import EVENTS_FILE, EventReader, end_of_events

START_SECONDS = 60.0
LOOK_SECONDS = 1.0
ASK_SECONDS = 15.0
LOG_FILE = "flower.log"
HOME_FILE = "flower-home"
HOME = "FLWR_HOME"
Environment = dict[str, str]
HOME_PREFIX = "fl-dpbayes-"
APP_PROJECT = """\
[project]
name = "fl-dpbayes-run"
version = "{version}"
description = "Runs the installed apps of fl-dpbayes"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fl-dpbayes"

[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "clients.app:app"

[tool.flwr.app.config]
scenario = ""
output-dir = ""
data-dir = ""
"""


def run_flower(run_folder: Path, sites: int, resources: Resources, stop: threading.Event) -> None:
    """Run the prepared scenario of a run directory through `flwr run`.

    Flower's own simulation leaves a server behind, reads its size from nowhere and reports success when the ServerApp
    failed; here the server is a child of this process, its size comes from the scenario, and the status is read back.

    `run_folder`: holds `scenario.toml` and `sites/`; Flower's log goes to `flower.log` in it. Raises UserError if
    Flower could not start, or the run did not complete; the text says where to read on.
    """
    home = Path(tempfile.mkdtemp(prefix=HOME_PREFIX))
    (run_folder / HOME_FILE).write_text(str(home), encoding="utf-8")
    events = EventReader(run_folder / EVENTS_FILE, end_of_events(run_folder / EVENTS_FILE))
    try:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        environment = _environment(home, resources)
        _write_app(home, port)
        with _superlink(home, port, environment, run_folder / LOG_FILE):
            run_id = _submit(environment, run_folder, sites, resources)
            _wait(environment, run_id, run_folder / LOG_FILE, events, stop)
    finally:
        shutil.rmtree(home, ignore_errors=True)
        (run_folder / HOME_FILE).unlink(missing_ok=True)


def end_interrupted(run_folder: Path) -> None:
    """End what a killed command left of its run: Flower's processes go on, and would write beside the next."""
    note = run_folder / HOME_FILE
    if not note.is_file():
        return
    home = Path(note.read_text(encoding="utf-8"))
    # The note lies in a folder that others may have written.
    if home.parent == Path(tempfile.gettempdir()) and home.name.startswith(HOME_PREFIX):
        left = {number for first in processes_of(home) for number in (first, *descendants(first))}
        kill(left)
        # What was started meanwhile.
        kill(processes_of(home))
        shutil.rmtree(home, ignore_errors=True)
    note.unlink()


def _environment(home: Path, resources: Resources) -> Environment:
    # Ray of its own listens on the loopback address only: it runs the code of whoever reaches its ports.
    address = resources.ray_address
    ray = {"RAY_ADDRESS": address} if address else {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    # Its processes run in another folder, and import a user's own code as this one does.
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return os.environ | ray | {
        "PYTHONPATH": os.pathsep.join(paths),
        HOME: str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONUNBUFFERED": "1",
        # Flower's programs are looked up by name, and a user need not have activated the virtual environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }  # fmt: skip


def _write_app(home: Path, port: int) -> None:
    app = home / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(APP_PROJECT.format(version=version("fl-dpbayes")), encoding="utf-8")
    text = f'[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(text, encoding="utf-8")


@contextmanager
def _superlink(home: Path, port: int, environment: dict[str, str], log_file: Path) -> Iterator[None]:
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--database", str(home / "state.db")]
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=home, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        _wait_until_healthy(process, port, log_file)
        yield
    finally:
        end(process, home)


def _wait_until_healthy(process: subprocess.Popen, port: int, log_file: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise UserError(f"Flower's SuperLink ended at once with status {process.returncode}: see {log_file}")
        with suppress(OSError), closing(HTTPConnection("127.0.0.1", port, timeout=1)) as connection:
            connection.request("GET", "/health")
            if connection.getresponse().status == HTTPStatus.OK:
                return
        time.sleep(0.1)
    raise UserError(f"Flower's SuperLink did not answer within {START_SECONDS:.0f} s: see {log_file}")


def _flwr(environment: Environment, *arguments: str) -> dict:
    command, home = ["flwr", *arguments, "--format", "json"], environment[HOME]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    start = done.stdout.find("{")
    if start < 0:
        raise UserError(f"`flwr {arguments[0]}` failed: {(done.stdout + done.stderr).strip()[-500:]}")
    return json.loads(done.stdout[start:])


def _submit(environment: Environment, run_folder: Path, sites: int, resources: Resources) -> str:
    run = {"scenario": str(run_folder / "scenario.toml"), "output-dir": str(run_folder)}
    federation = {"num-supernodes": sites, "client-resources-num-cpus": resources.cpus_per_site,
                  "client-resources-num-gpus": resources.gpus_per_site}  # fmt: skip
    options = []
    for name, config in (("--run-config", run), ("--federation-config", federation)):
        options += [name, " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())]
    answer = _flwr(environment, "run", str(Path(environment[HOME], "app")), "own", *options)
    if not answer.get("success"):
        raise UserError(f"`flwr run` was refused: {answer.get('error-message', answer)}")
    return str(answer["run-id"])


def _wait(environment: Environment, run_id: str, log_file: Path, events: EventReader, stop: threading.Event) -> None:
    try:
        status = _final_status(environment, run_id, events, stop)
    finally:
        with log_file.open("ab") as log:
            show = ["flwr", "log", run_id, "own", "--show"]
            subprocess.run(show, env=environment, cwd=environment[HOME], stdout=log, stderr=log, check=False)
    if status["status"] != "finished:completed":
        raise UserError(f"the run ended as {status['status']} ({status.get('status-details', '')}): see {log_file}")


def _final_status(environment: Environment, run_id: str, events: EventReader, stop: threading.Event) -> dict[str, str]:
    # Asking Flower starts a process that takes a core for more than a second. The run's own events say when it is over;
    # Flower is asked then, and now and then in case the ServerApp died without a last word.
    over, next_question = False, time.monotonic() + ASK_SECONDS
    while True:
        if stop.wait(LOOK_SECONDS):
            raise UserError("the run was stopped")
        over = over or any(event["event"] in ("finished", "failed") for event in events.new_events())
        if not over and time.monotonic() < next_question:
            continue
        run = _flwr(environment, "ls", "own", "--run-id", run_id)["runs"][0]
        if str(run["status"]).startswith("finished"):
            return run
        next_question = time.monotonic() + ASK_SECONDS
