"""The work behind `fl-dpbayes deploy run`, `status` and `resume`: a run at real sites, through a SuperLink."""

import os
import shlex
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

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
from fl_dpbayes.files import Config, journal, write_atomically
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.hospital.init_site import coordinators_scenario

DEPLOYMENT_FILE, LOG_FILE, COMMAND_LOCK = "deployment.json", "flower.log", "deploy.lock"
# Absolute, so that a run's folder can be moved: paths in it that are not start there.
AT_EACH_SITE = Path("/at-each-site")
# A SuperLink that was killed is started again, and the run goes on.
PATIENCE_SECONDS = 180.0


class Deployment(Config):
    """Where a run was submitted: the SuperLink's name in Flower's configuration, and the numbers it had there."""

    superlink: str
    wait: float
    runs: tuple[str, ...] = ()


def deploy_run(
    given: str,
    overrides: Sequence[str],
    folder: Path | None,
    superlink: str,
    wait: float,
    console: Console,
) -> Path:
    """Run a scenario at real sites and write its run directory.

    Of its records only the schema is used. `superlink`: its name in Flower's configuration. `wait`:
    seconds. Raises UserError if the scenario is not for real sites, FailedError if it failed; what
    was computed is then in the run directory. Raises Stopped after an interrupt; the run itself
    goes on.
    """
    import_apps()
    scenario = coordinators_scenario(given, AT_EACH_SITE, overrides)
    if odd := [name for name, site in scenario.sites.items() if site.shift or site.records_of]:
        said = "shift and records_of are for simulated sites, remove them: a real one is as it is"
        raise UserError(f"sites.{odd[0]}: {said}")
    run_folder = new_folder(folder, scenario.name, inside="")
    write_scenario(scenario, run_folder / SCENARIO_FILE)
    begun = journal.Journal(run_folder / journal.JOURNAL_FILE, journal.JournalMark())
    begun.append([journal.file_entry(SCENARIO_FILE, run_folder / SCENARIO_FILE)])
    with folder_lock(run_folder, COMMAND_LOCK):
        deployment = _submitted(
            scenario, run_folder, Deployment(superlink=superlink, wait=wait), console
        )
    _follow(scenario, run_folder, deployment, console)
    return run_folder


def deploy_resume(folder: Path, console: Console) -> None:
    """Go on with a deployed run after its last complete round, or follow it where it is still under way.

    A site that has answered a request sends its stored reply, at no new charge. Raises UserError if
    the folder holds no deployed run, or another command submits it; FailedError if the run fails
    again.
    """
    folder, *_ = _opened(folder)
    with folder_lock(folder, COMMAND_LOCK):
        _, deployment, scenario = _opened(folder)
        events = EventReader(folder / EVENTS_FILE).new_events()
        if (folder / "summary.json").is_file() and events and events[-1]["event"] == "finished":
            console.print(
                f"the run in {folder} is finished: nothing is left to do",
                soft_wrap=True,
                markup=False,
            )
            return show_run(folder, console)
        if deployment.runs and not _status(deployment).startswith("finished"):
            console.print("the run is still under way: following it", markup=False)
        else:
            # A ServerApp that outlived its SuperLink may still write here.
            with folder_lock(folder):
                end_of_events(folder / EVENTS_FILE)
            deployment = _submitted(scenario, folder, deployment, console)
    return _follow(scenario, folder, deployment, console)


def deploy_status(folder: Path, console: Console) -> None:
    """Print how far a deployed run is: who joined, who did not and why, each site's state and epsilon."""
    folder, deployment, scenario = _opened(folder)
    events = EventReader(folder / EVENTS_FILE).new_events()
    rosters = [event for event in events if event["event"] == "roster"]
    rounds = scenario.training.rounds * scenario.training.chains
    done = max((event["round"] for event in events if event["event"] == "site"), default=0)
    try:
        state = _status(deployment)
    except UserError as error:
        state = str(error)
    console.print(
        f"{scenario.name}: {state}; round {done} of {counted(rounds, 'round')}", markup=False
    )
    if rosters:
        joined = {name for name, _ in rosters[-1]["sites"]}
        for line in rosters[-1]["left_out"]:
            console.print(f"left out: {line}", markup=False)
        if absent := [name for name in scenario.sites if name not in joined]:
            console.print(f"not there: {', '.join(absent)}", markup=False)
        display = Display(Console(quiet=True), rounds)
        for event in events:
            display.show(event)
        console.print(display.table())
    else:
        waits = [event for event in events if event["event"] == "waiting"]
        console.print(
            "no site has been asked yet"
            + (f"; missing: {', '.join(waits[-1]['missing'])}" if waits else "")
        )
    if events and events[-1]["event"] == "failed":
        console.print(
            f"stopped: {events[-1]['reason']}; go on with  {_resume(folder)}",
            markup=False,
            soft_wrap=True,
        )


def _submitted(
    scenario: Scenario, folder: Path, deployment: Deployment, console: Console
) -> Deployment:
    # Before the run is submitted: a folder whose run nobody noted can then be gone on with.
    _note(folder, deployment)
    given = {
        "scenario": str(folder / SCENARIO_FILE),
        "output-dir": str(folder),
        "wait": deployment.wait,
    }
    go_on = f"go on with  {_resume(folder)}"
    try:
        with tempfile.TemporaryDirectory(prefix="fl-dpbayes-") as made:
            run = _flower(deployment).submit(write_app(Path(made, "app")), given, {})
    except UserError as error:
        raise FailedError(f"{error}; once the cause is removed, {go_on}") from None
    except KeyboardInterrupt:
        raise Stopped(
            f"stopped while the run was submitted, and it may be under way: {go_on}"
        ) from None
    deployment = deployment.model_copy(update={"runs": (*deployment.runs, run)})
    _note(folder, deployment)
    said = f"run {run} at {deployment.superlink!r}, writing {folder}"
    console.print(f"{scenario.name}: {said}", soft_wrap=True, markup=False)
    return deployment


def _note(folder: Path, deployment: Deployment) -> None:
    write_atomically(folder / DEPLOYMENT_FILE, deployment.model_dump_json(indent=2) + "\n")


def _resume(folder: Path) -> str:
    return f"fl-dpbayes deploy resume {shlex.quote(str(folder))}"


def _follow(scenario: Scenario, folder: Path, deployment: Deployment, console: Console) -> None:
    events, start, name = (
        folder / EVENTS_FILE,
        end_of_events(folder / EVENTS_FILE),
        shlex.quote(str(folder)),
    )
    run, resume = deployment.runs[-1], _resume(folder)

    def work(stop: threading.Event) -> None:
        _flower(deployment).wait(run, folder / LOG_FILE, EventReader(events, start), stop)

    try:
        rounds = scenario.training.rounds * scenario.training.chains
        failure = run_and_follow(work, EventReader(events, start), rounds, console)
    except KeyboardInterrupt:
        choices = f"Follow:  {resume}  End it:  flwr stop {run} {deployment.superlink}"
        said = (
            "no longer following, and the run goes on. Look:  fl-dpbayes deploy status "
            f"{name}  {choices}"
        )
        raise Stopped(said) from None
    raise_failure(failure, EventReader(events, start), folder, resume)
    show_run(folder, console)


def _flower(deployment: Deployment) -> FlowerCommand:
    return FlowerCommand(
        Path.cwd(), os.environ | ENVIRONMENT, deployment.superlink, PATIENCE_SECONDS
    )


def _status(deployment: Deployment) -> str:
    return (
        str(_flower(deployment).status(deployment.runs[-1])["status"])
        if deployment.runs
        else "not submitted"
    )


def _opened(folder: Path) -> tuple[Path, Deployment, Scenario]:
    folder = folder.resolve()
    file = folder / DEPLOYMENT_FILE
    if not file.is_file():
        raise UserError(
            f"{folder} holds no deployed run: give the folder that  fl-dpbayes deploy run  named"
        )
    listed = journal.listed_files(journal.read_journal(folder / journal.JOURNAL_FILE, None)[0])
    journal.check_files(
        folder, {name: entry for name, entry in listed.items() if name == SCENARIO_FILE}
    )
    try:
        deployment = Deployment.model_validate_json(file.read_bytes())
    except ValidationError:
        raise UserError(f"{file} is damaged: put back a copy of it, or start a new run") from None
    return folder, deployment, load_scenario(str(folder / SCENARIO_FILE))
