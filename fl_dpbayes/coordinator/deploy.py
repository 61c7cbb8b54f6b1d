"""What `fl-dpbayes deploy run`, `status` and `resume` do: a run at real sites."""

import os
import shlex
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from fl_dpbayes.config import Scenario, counted, import_apps, load_scenario, write_scenario
from fl_dpbayes.data import SCENARIO_FILE
from fl_dpbayes.engine.flower_command import ENVIRONMENT, FlowerCommand, write_app
from fl_dpbayes.engine.progress import (
    EVENTS_FILE,
    Display,
    EventReader,
    end_of_events,
    run_and_follow,
)
from fl_dpbayes.engine.simulate import new_folder, raise_failure, show_run
from fl_dpbayes.errors import FailedError, Stopped, UserError
from fl_dpbayes.files import (
    REMEDY,
    Config,
    RunStore,
    file_sha256,
    require_store,
    write_atomically,
)
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.files.plain_files import check_plain
from fl_dpbayes.hospital.init_site import coordinators_scenario
from fl_dpbayes.protocol import Digest

DEPLOYMENT_FILE = "deployment.json"
LOG_FILE = "flower.log"
COMMAND_LOCK = "deploy.lock"
# Absolute, so that a run's folder can be moved: paths in it that are not start there.
AT_EACH_SITE = Path("/at-each-site")
# A SuperLink that was killed is started again, and the run goes on.
PATIENCE_SECONDS = 180.0


class Deployment(Config):
    """Where a run was submitted.

    Attributes:
        scenario: SHA-256 of the run's scenario file.
        superlink: The SuperLink's name in Flower's configuration.
        wait: Seconds to wait for the sites that are missing.
        runs: The numbers that the run had there, the last one last.
    """

    scenario: Digest
    superlink: str
    wait: float
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeployedRun:
    """A run directory of a run at real sites.

    Attributes:
        folder: The run directory, absolute.
        scenario: What is run.
        deployment: Where it was submitted.
    """

    folder: Path
    scenario: Scenario
    deployment: Deployment

    @property
    def events_file(self) -> Path:
        """The file of the run's events."""
        return self.folder / EVENTS_FILE

    @property
    def total_rounds(self) -> int:
        """The rounds of all its chains."""
        return self.scenario.training.rounds * self.scenario.training.chains

    @property
    def resume_command(self) -> str:
        """The command that goes on with it."""
        return f"fl-dpbayes deploy resume {shlex.quote(str(self.folder))}"


def deploy_run(
    scenario_name: str,
    overrides: Sequence[str],
    folder: Path | None,
    superlink: str,
    wait: float,
    console: Console,
) -> Path:
    """Run a scenario at real sites and write its run directory.

    Args:
        scenario_name: The scenario file; of its records only the schema is used.
        overrides: Keys and values, as `resources.start_nodes=2`.
        folder: The run directory, absent or empty; None for a new one.
        superlink: The SuperLink's name in Flower's configuration.
        wait: Seconds to wait for the sites that are missing.
        console: Where it is told.

    Returns:
        The run directory.

    Raises:
        UserError: If the scenario is not for real sites.
        FailedError: If it failed; what was computed is then in the run directory.
        Stopped: After an interrupt; the run itself goes on.
    """
    import_apps()
    scenario = coordinators_scenario(scenario_name, AT_EACH_SITE, overrides)
    for name, site in scenario.sites.items():
        if site.shift or site.records_of:
            raise UserError(
                f"sites.{name}: shift and records_of are for simulated sites, remove them: a real "
                "one is as it is"
            )
    run_folder = new_folder(folder, scenario.name, inside="")
    write_scenario(scenario, run_folder / SCENARIO_FILE)
    RunStore.make(run_folder).close()
    deployment = Deployment(
        scenario=file_sha256(run_folder / SCENARIO_FILE), superlink=superlink, wait=wait
    )
    run = DeployedRun(run_folder, scenario, deployment)
    with folder_lock(run_folder, COMMAND_LOCK):
        run = _submit(run, console)
    _follow(run, console)
    return run_folder


def deploy_resume(folder: Path, console: Console) -> None:
    """Go on with a deployed run after its last complete round, or follow it if it is under way.

    A site that has answered a request sends its stored reply, at no new charge.

    Args:
        folder: The run directory.
        console: Where it is told.

    Raises:
        UserError: If the folder holds no deployed run, or another command submits it.
        FailedError: If the run fails again.
    """
    # What is no deployed run must not get a lock file.
    folder = _open_run(folder).folder
    check_plain(folder)
    with folder_lock(folder, COMMAND_LOCK):
        run = _open_run(folder)
        events = EventReader(run.events_file).new_events()
        if (folder / "summary.json").is_file() and events and events[-1]["event"] == "finished":
            console.print(
                f"the run in {folder} is finished: nothing is left to do",
                soft_wrap=True,
                markup=False,
            )
            show_run(folder, console)
            return
        if run.deployment.runs and not _status(run.deployment).startswith("finished"):
            console.print("the run is still under way: following it", markup=False)
        else:
            # A ServerApp that outlived its SuperLink may still write here.
            with folder_lock(folder):
                end_of_events(run.events_file)
                # It is checked whole before the run is submitted.
                RunStore.open(folder).close()
            run = _submit(run, console)
    _follow(run, console)


def deploy_status(folder: Path, console: Console) -> None:
    """Print how far a deployed run is.

    Args:
        folder: The run directory.
        console: Where it is told who joined, who did not and why, and each site's state.

    Raises:
        UserError: If the folder holds no deployed run.
    """
    run = _open_run(folder)
    events = EventReader(run.events_file).new_events()
    last_round = max((event["round"] for event in events if event["event"] == "site"), default=0)
    try:
        state = _status(run.deployment)
    except UserError as error:
        state = str(error)
    console.print(
        f"{run.scenario.name}: {state}; round {last_round} of {counted(run.total_rounds, 'round')}",
        markup=False,
    )
    rosters = [event for event in events if event["event"] == "roster"]
    if rosters:
        _print_roster(rosters[-1], run.scenario, console)
        display = Display(Console(quiet=True), run.total_rounds)
        for event in events:
            display.show(event)
        console.print(display.table())
    else:
        _print_missing_sites(events, console)
    if events and events[-1]["event"] == "failed":
        console.print(
            f"stopped: {events[-1]['reason']}; go on with  {run.resume_command}",
            markup=False,
            soft_wrap=True,
        )


def _print_roster(roster: dict[str, Any], scenario: Scenario, console: Console) -> None:
    """Print which sites take no part, and why."""
    for line in roster["left_out"]:
        console.print(f"left out: {line}", markup=False)
    joined = {name for name, _ in roster["sites"]}
    absent = [name for name in scenario.sites if name not in joined]
    if absent:
        console.print(f"not there: {', '.join(absent)}", markup=False)


def _print_missing_sites(events: list[dict[str, Any]], console: Console) -> None:
    """Print for which sites the run waits."""
    waits = [event for event in events if event["event"] == "waiting"]
    missing = f"; missing: {', '.join(waits[-1]['missing'])}" if waits else ""
    console.print(f"no site has been asked yet{missing}")


def _submit(run: DeployedRun, console: Console) -> DeployedRun:
    """Submit a run to its SuperLink, and note its number there."""
    deployment = run.deployment
    # Before the run is submitted: a folder whose run nobody noted can then be gone on with.
    _write_deployment(run.folder, deployment)
    run_config = {
        "scenario": str(run.folder / SCENARIO_FILE),
        "output-dir": str(run.folder),
        "wait": deployment.wait,
    }
    advice = f"go on with  {run.resume_command}"
    try:
        with tempfile.TemporaryDirectory(prefix="fl-dpbayes-") as app_folder:
            app = write_app(Path(app_folder, "app"))
            number = _flower_command(deployment).submit(app, run_config, {})
    except UserError as error:
        raise FailedError(f"{error}; once the cause is removed, {advice}") from None
    except KeyboardInterrupt:
        raise Stopped(
            f"stopped while the run was submitted, and it may be under way: {advice}"
        ) from None
    deployment = deployment.model_copy(update={"runs": (*deployment.runs, number)})
    _write_deployment(run.folder, deployment)
    console.print(
        f"{run.scenario.name}: run {number} at {deployment.superlink!r}, writing {run.folder}",
        soft_wrap=True,
        markup=False,
    )
    return DeployedRun(run.folder, run.scenario, deployment)


def _write_deployment(folder: Path, deployment: Deployment) -> None:
    write_atomically(folder / DEPLOYMENT_FILE, deployment.model_dump_json(indent=2) + "\n")


def _follow(run: DeployedRun, console: Console) -> None:
    """Show a run's events until it ends, then its results."""
    start = end_of_events(run.events_file)
    number = run.deployment.runs[-1]

    def wait_for_end(stop: threading.Event) -> None:
        command = _flower_command(run.deployment)
        command.wait(number, run.folder / LOG_FILE, EventReader(run.events_file, start), stop)

    try:
        events = EventReader(run.events_file, start)
        failure = run_and_follow(wait_for_end, events, run.total_rounds, console)
    except KeyboardInterrupt:
        raise Stopped(
            "no longer following, and the run goes on. Look:  fl-dpbayes deploy status "
            f"{shlex.quote(str(run.folder))}  Follow:  {run.resume_command}  "
            f"End it:  flwr stop {number} {run.deployment.superlink}"
        ) from None
    raise_failure(failure, EventReader(run.events_file, start), run.folder, run.resume_command)
    show_run(run.folder, console)


def _flower_command(deployment: Deployment) -> FlowerCommand:
    return FlowerCommand(
        Path.cwd(), os.environ | ENVIRONMENT, deployment.superlink, PATIENCE_SECONDS
    )


def _status(deployment: Deployment) -> str:
    """Ask the SuperLink for a run's status."""
    if not deployment.runs:
        return "not submitted"
    return str(_flower_command(deployment).status(deployment.runs[-1])["status"])


def _open_run(folder: Path) -> DeployedRun:
    """Read a run directory, if its scenario is as it was written."""
    folder = folder.resolve()
    file = folder / DEPLOYMENT_FILE
    if not file.is_file():
        raise UserError(
            f"{folder} holds no deployed run: give the folder that  fl-dpbayes deploy run  named"
        )
    require_store(folder)
    try:
        deployment = Deployment.model_validate_json(file.read_bytes())
    except ValidationError:
        raise UserError(f"{file} is damaged: put back a copy of it, or start a new run") from None
    scenario_file = folder / SCENARIO_FILE
    if not scenario_file.is_file():
        raise UserError(f"{scenario_file} is missing: {REMEDY}")
    if file_sha256(scenario_file) != deployment.scenario:
        raise UserError(f"{scenario_file} is not as it was written (its SHA-256 differs): {REMEDY}")
    return DeployedRun(folder, load_scenario(str(scenario_file)), deployment)
