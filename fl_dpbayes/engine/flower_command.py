"""Flower's own command line, asked as another process would: submit a run, read its status back, read its log."""

import json
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fl_dpbayes.engine.progress import EventReader
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.templates import templates

LOOK_SECONDS = 1.0
ASK_SECONDS = 15.0
APP_PROJECT = templates("init")["pyproject.toml"]
# Neither telemetry nor a question for updates leaves the machine, and no package is fetched for a
# run.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}


def write_app(folder: Path) -> Path:
    """Write the app that a run names, a project file alone, which brings no code.

    Return its folder.
    """
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        APP_PROJECT.format(version=version("fl-dpbayes")), encoding="utf-8"
    )
    return folder


@dataclass(frozen=True)
class FlowerCommand:
    """The command `flwr` in a folder and an environment, for one of the SuperLinks that its configuration names.

    `patience`: seconds for which a SuperLink that does not answer is waited for while a run is
    followed.
    """

    folder: Path
    environment: Mapping[str, str]
    superlink: str
    patience: float = 0.0

    def ask(self, verb: str, *arguments: str) -> dict[str, Any]:
        """Return what a command answers.

        UserError with the end of what it said if that is no JSON.
        """
        done = self._run(verb, *arguments, "--format", "json", capture_output=True, text=True)
        start = done.stdout.find("{")
        if start < 0:
            raise UserError(f"`flwr {verb}` failed: {(done.stdout + done.stderr).strip()[-500:]}")
        return dict(json.loads(done.stdout[start:]))

    def submit(
        self, app: Path, run_config: Mapping[str, Any], federation: Mapping[str, Any]
    ) -> str:
        """Submit a run and return its number; UserError if it is refused."""
        options = []
        for name, config in (("--run-config", run_config), ("--federation-config", federation)):
            if config:
                options += [
                    name,
                    " ".join(f"{key}={json.dumps(value)}" for key, value in config.items()),
                ]
        answer = self.ask("run", str(app), self.superlink, *options)
        if not answer.get("success"):
            raise UserError(f"`flwr run` was refused: {answer.get('error-message', answer)}")
        return str(answer["run-id"])

    def status(self, run: str) -> dict[str, str]:
        """Return a run's `status` and `status-details`.

        UserError if the SuperLink does not know it.
        """
        answer = self.ask("ls", self.superlink, "--run-id", run)
        if not answer.get("runs"):
            said, away = (
                answer.get("error-message", answer),
                "does not answer: see to its unit and its address",
            )
            why = away if "unavailable" in str(said) else f"knows no run {run}: {said}"
            raise UserError(f"the SuperLink {self.superlink!r} {why}")
        return dict(answer["runs"][0])

    def _run(self, *words: str, **streams: Any) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["flwr", *words], env=dict(self.environment), cwd=self.folder, check=False, **streams
        )

    def wait(self, run: str, log_file: Path, events: EventReader, stop: threading.Event) -> None:
        """Wait until a run is over, and keep its log.

        UserError if it did not complete, or was stopped here.
        """
        try:
            status = self._final_status(run, events, stop)
        finally:
            with log_file.open("ab") as log:
                self._run("log", run, self.superlink, "--show", stdout=log, stderr=log)
        if status["status"] != "finished:completed":
            raise UserError(
                f"the run ended as {status['status']} ({status.get('status-details', '')}): "
                f"see {log_file}"
            )

    def _final_status(self, run: str, events: EventReader, stop: threading.Event) -> dict[str, str]:
        # Asking Flower starts a process that takes a core for more than a second. The run's own
        # events say when it is over; Flower is asked then, and now and then in case the ServerApp
        # died without a last word.
        over, next_question, heard = False, time.monotonic() + ASK_SECONDS, time.monotonic()
        while not stop.wait(LOOK_SECONDS):
            over = over or any(
                event["event"] in ("finished", "failed") for event in events.new_events()
            )
            if not over and time.monotonic() < next_question:
                continue
            next_question = time.monotonic() + ASK_SECONDS
            try:
                status, heard = self.status(run), time.monotonic()
            except UserError:
                if time.monotonic() - heard > self.patience:
                    raise
                continue
            if str(status["status"]).startswith("finished"):
                return status
        raise UserError("the run was stopped")
