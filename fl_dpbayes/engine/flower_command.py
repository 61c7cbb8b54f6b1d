"""Flower's command line, asked as another process would: submit a run, read its status and log."""

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
    """Write the app that a run names: a project file alone, which brings no code.

    Args:
        folder: Where to write it, absent.

    Returns:
        The folder.
    """
    folder.mkdir()
    project = APP_PROJECT.format(version=version("fl-dpbayes"))
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    return folder


@dataclass(frozen=True)
class FlowerCommand:
    """The command `flwr`, for one of the SuperLinks that its configuration names.

    Attributes:
        folder: Where it runs.
        environment: All variables of its process.
        superlink: Name of the SuperLink.
        patience: Seconds for which a SuperLink that does not answer is waited for while a run is
            followed.
    """

    folder: Path
    environment: Mapping[str, str]
    superlink: str
    patience: float = 0.0

    def ask(self, verb: str, *arguments: str) -> dict[str, Any]:
        """Run a command and return what it answers.

        Args:
            verb: Such as "ls".
            *arguments: The command's arguments.

        Returns:
            The answer, parsed.

        Raises:
            UserError: With the end of the command's output, if that holds no JSON.
        """
        command = self._run(verb, *arguments, "--format", "json", capture_output=True, text=True)
        start = command.stdout.find("{")
        if start < 0:
            output = (command.stdout + command.stderr).strip()
            raise UserError(f"`flwr {verb}` failed: {output[-500:]}")
        return dict(json.loads(command.stdout[start:]))

    def submit(
        self, app: Path, run_config: Mapping[str, Any], federation: Mapping[str, Any]
    ) -> str:
        """Submit a run.

        Args:
            app: The folder of the app.
            run_config: What the apps are told.
            federation: What a simulation is told of its size.

        Returns:
            The run's number.

        Raises:
            UserError: If the run is refused.
        """
        options = []
        for option, config in (("--run-config", run_config), ("--federation-config", federation)):
            if config:
                pairs = [f"{key}={json.dumps(value)}" for key, value in config.items()]
                options += [option, " ".join(pairs)]
        answer = self.ask("run", str(app), self.superlink, *options)
        if not answer.get("success"):
            raise UserError(f"`flwr run` was refused: {answer.get('error-message', answer)}")
        return str(answer["run-id"])

    def status(self, run: str) -> dict[str, str]:
        """Return a run's `status` and `status-details`; UserError if it is not to be had."""
        answer = self.ask("ls", self.superlink, "--run-id", run)
        if answer.get("runs"):
            return dict(answer["runs"][0])
        message = answer.get("error-message", answer)
        if "unavailable" in str(message):
            raise UserError(
                f"the SuperLink {self.superlink!r} does not answer: see to its unit and its address"
            )
        raise UserError(f"the SuperLink {self.superlink!r} knows no run {run}: {message}")

    def wait(self, run: str, log_file: Path, events: EventReader, stop: threading.Event) -> None:
        """Wait until a run is over, and keep its log.

        Args:
            run: The run's number.
            log_file: The log is appended to it, however the run ends.
            events: Reads the run's own events.
            stop: Set where nobody waits any more.

        Raises:
            UserError: If the run did not complete, or was stopped here.
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

    def _run(self, *words: str, **streams: Any) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["flwr", *words], env=dict(self.environment), cwd=self.folder, check=False, **streams
        )

    def _final_status(self, run: str, events: EventReader, stop: threading.Event) -> dict[str, str]:
        # Asking Flower starts a process that takes a core for more than a second. The run's own
        # events say when it is over; Flower is asked then, and where none came for a while, in case
        # the ServerApp died without a last word.
        is_over = False
        next_question = time.monotonic() + ASK_SECONDS
        last_answer = time.monotonic()
        while not stop.wait(LOOK_SECONDS):
            if not is_over:
                names = [event["event"] for event in events.new_events()]
                is_over = "finished" in names or "failed" in names
                if names:
                    next_question = time.monotonic() + ASK_SECONDS
            if not is_over and time.monotonic() < next_question:
                continue
            next_question = time.monotonic() + ASK_SECONDS
            try:
                status = self.status(run)
            except UserError:
                if time.monotonic() - last_answer > self.patience:
                    raise
                continue
            last_answer = time.monotonic()
            if str(status["status"]).startswith("finished"):
                return status
        raise UserError("the run was stopped")
