"""The work behind `fl-dpbayes simulate`: prepare, run on an engine, show."""

import json
import shlex
import shutil
import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from fl_dpbayes.config import Resources, Scenario, counted, import_apps
from fl_dpbayes.data import PARTITION_FILE, SITES_FOLDER, SitePlan, plan_sites, prepare_simulation
from fl_dpbayes.engine.baselines import write_baselines
from fl_dpbayes.engine.flower_engine import run_flower
from fl_dpbayes.engine.inline_engine import run_inline
from fl_dpbayes.engine.progress import EVENTS_FILE, EventReader, end_of_events, run_and_follow
from fl_dpbayes.engine.weak_budget import weak_budget
from fl_dpbayes.errors import FailedError, Stopped, UserError
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.report import calibration_table, privacy_table, read_summary

FULL_BYTES = 2**16


def simulate(
    scenario: Scenario,
    engine: str,
    run_folder: Path | None,
    data_dir: Path | None,
    console: Console,
) -> Path:
    """Run a scenario and write its run directory.

    `run_folder`: absent or empty. Raises UserError if the scenario cannot run, or its run failed;
    what was computed is then in the run directory. Raises Stopped if an interrupt ended it.
    """
    check_machine(scenario.resources)
    plan = plan_sites(scenario, data_dir)
    folder = new_folder(run_folder, scenario.name)
    with folder_lock(folder):
        run_planned(scenario, plan, engine, folder, console)
    show_run(folder, console)
    return folder


def run_planned(
    scenario: Scenario, plan: SitePlan, engine: str, folder: Path, console: Console
) -> None:
    """Make the sites of a plan in a run directory, measure the baselines on them, and run the scenario."""
    write_baselines(scenario, prepare_simulation(scenario, plan, folder), folder)
    run_prepared(scenario, engine, folder, console)


def run_prepared(scenario: Scenario, engine: str, folder: Path, console: Console) -> None:
    """Run the scenario of a run directory, from its checkpoint where it has one."""
    console.print(
        f"[bold]{scenario.name}[/bold]: {counted(len(scenario.sites), 'site')}, "
        f"{counted(scenario.training.rounds, 'round')}, engine {engine}, writing {folder}"
    )
    if scenario.privacy.kind == "none":
        console.print("NOT PRIVATE: privacy.kind is 'none', epsilon is infinite", style="bold red")
    planned = json.loads((folder / PARTITION_FILE).read_text(encoding="utf-8"))["units"]
    trained = {
        name: planned[name]["train"]
        for name, site in scenario.sites.items()
        if site.role == "train"
    }
    if weak := weak_budget(scenario, trained):
        console.print(f"warning: {weak}", style="yellow", markup=False)
    events, start = folder / EVENTS_FILE, end_of_events(folder / EVENTS_FILE)
    resume = f"fl-dpbayes simulate --resume {shlex.quote(str(folder))}"
    resume += "" if engine == "flower" else f" --engine {engine}"
    try:
        rounds = scenario.training.rounds * scenario.training.chains
        failure = run_and_follow(
            partial(run_on, engine, scenario, folder), EventReader(events, start), rounds, console
        )
    except KeyboardInterrupt:
        from server.checkpoint import read_checkpoint

        done = found[0].round if (found := read_checkpoint(folder)) else 0
        kept = (
            f"{done} of {counted(rounds, 'round')} {'is' if done == 1 else 'are'} complete and "
            "kept, with their cost"
        )
        raise Stopped(f"{kept}, in {folder}; go on with  {resume}") from None
    raise_failure(failure, EventReader(events, start), folder, resume)


def run_on(engine: str, scenario: Scenario, folder: Path, stop: threading.Event) -> None:
    """Run the scenario of a run directory on an engine, until it ends or is stopped."""
    if engine == "inline":
        run_inline(folder, len(scenario.sites), stop)
    else:
        run_flower(folder, len(scenario.sites), scenario.resources, stop)


def check_machine(resources: Resources) -> None:
    """Check that the apps are ours and that the device is here."""
    import_apps()
    # The processes of an existing Ray cluster may run on machines that have what this one has not.
    if not resources.device.startswith("cuda") or resources.ray_address is not None:
        return
    found, index = torch.cuda.device_count(), int(resources.device.partition(":")[2] or 0)
    if index >= found:
        here = f"the CUDA devices here are 0 to {found - 1}" if found else "no CUDA device is here"
        raise UserError(f"resources.device is {resources.device!r}: {here}; use 'auto' or 'cpu'")


def show_run(run_folder: Path, console: Console) -> None:
    """Print the privacy and calibration tables of a run, its warnings, and where its report is."""
    summary = read_summary(run_folder)
    console.print(privacy_table(summary, console.width))
    if summary.calibration:
        console.print()
        console.print(calibration_table(summary, console.width))
    if summary.warnings:
        console.print()
    for warning in summary.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)
    console.print(f"report: {run_folder / 'report.html'}", soft_wrap=True, markup=False)


def raise_failure(
    failure: BaseException | None, reader: EventReader, folder: Path, resume: str
) -> None:
    """Raise why a run did not come to its end, if it did not: its last word, or what ended it."""
    events = reader.new_events()
    reasons = [str(event["reason"]) for event in events if event["event"] == "failed"]
    # What a full disk did to a site, or to the word of the process that failed, shows here only.
    if shutil.disk_usage(folder).free < FULL_BYTES:
        reasons = [f"the disk of {folder} is full: free space on it"]
    elif not reasons and isinstance(failure, UserError):
        reasons = [str(failure)]
    if reasons:
        kept = f"what was computed until then, and the logs, are in {folder}"
        raise FailedError(
            f"the run stopped: {reasons[-1]} ({kept}; once the cause is removed, go on "
            f"with  {resume})"
        )
    if failure is not None:
        raise failure
    if not any(event["event"] == "finished" for event in events):
        raise FailedError(f"the run ended without a result: see the logs in {folder}")


def new_folder(given: Path | None, name: str, inside: str = SITES_FOLDER) -> Path:
    """Make the folder of a run or a study, `runs/<name>-<time>` where none is given.

    UserError if it is not empty.
    """
    folder = (given or Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}").resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: give a folder that does not exist yet")
    try:
        (folder / inside).mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None
    return folder
