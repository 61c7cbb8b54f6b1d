"""The work behind `fl-dpbayes simulate`: prepare, run on an engine, show."""

import shlex
import shutil
import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from fl_dpbayes.config import Resources, Scenario, counted, import_apps
from fl_dpbayes.data import SITES_FOLDER, SitePlan, plan_sites, prepare_simulation, read_partition
from fl_dpbayes.engine.baselines import write_baselines
from fl_dpbayes.engine.flower_engine import run_flower
from fl_dpbayes.engine.inline_engine import run_inline
from fl_dpbayes.engine.progress import EVENTS_FILE, EventReader, end_of_events, run_and_follow
from fl_dpbayes.errors import FailedError, Stopped, UserError
from fl_dpbayes.files import RunStore
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.posterior import weak_budget
from fl_dpbayes.report import (
    Summary,
    calibration_table,
    hospital_verdicts,
    privacy_overview,
    privacy_table,
    read_summary,
    sentences,
    verdict_table,
)

# A disk with less free space than this is full.
FULL_BYTES = 2**16


def simulate(
    scenario: Scenario,
    engine: str,
    run_folder: Path | None,
    data_dir: Path | None,
    console: Console,
) -> Path:
    """Run a scenario and write its run directory.

    Args:
        scenario: The scenario.
        engine: "inline" or "flower".
        run_folder: The run directory, absent or empty; None: `runs/<scenario>-<time>`.
        data_dir: The folder of data sets; None: the default one.
        console: Where progress and results are shown.

    Returns:
        The run directory.

    Raises:
        UserError: If the scenario cannot run, or its run failed; what was computed is then in the
            run directory.
        Stopped: If an interrupt ended it.
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
    """Make the sites of a plan in a run directory, measure the baselines, and run the scenario."""
    site_files = prepare_simulation(scenario, plan, folder)
    write_baselines(scenario, site_files, folder)
    run_prepared(scenario, engine, folder, console)


def run_prepared(scenario: Scenario, engine: str, folder: Path, console: Console) -> None:
    """Run the scenario of a run directory, from its last round where it has one.

    Args:
        scenario: The scenario of the run directory.
        engine: "inline" or "flower".
        folder: The run directory, with its sites.
        console: Where progress is shown.

    Raises:
        FailedError: If the run failed.
        Stopped: If an interrupt ended it.
    """
    _print_start(scenario, engine, folder, console)
    events = folder / EVENTS_FILE
    start = end_of_events(events)
    rounds = scenario.training.rounds * scenario.training.chains
    resume_command = f"fl-dpbayes simulate --resume {shlex.quote(str(folder))}"
    if engine != "flower":
        resume_command += f" --engine {engine}"
    try:
        failure = run_and_follow(
            work=partial(run_on, engine, scenario, folder),
            reader=EventReader(events, start),
            rounds=rounds,
            console=console,
        )
    except KeyboardInterrupt:
        done = _completed_rounds(folder)
        verb = "is" if done == 1 else "are"
        raise Stopped(
            f"{done} of {counted(rounds, 'round')} {verb} complete and kept, with their cost, in "
            f"{folder}; go on with  {resume_command}"
        ) from None
    raise_failure(failure, EventReader(events, start), folder, resume_command)


def run_on(engine: str, scenario: Scenario, folder: Path, stop: threading.Event) -> None:
    """Run the scenario of a run directory on an engine, until it ends or is stopped."""
    sites = len(scenario.sites)
    if engine == "inline":
        run_inline(folder, sites, stop)
    else:
        run_flower(folder, sites, scenario.resources, stop)


def check_machine(resources: Resources) -> None:
    """Check that the apps are ours and that the device is here.

    Args:
        resources: What a scenario asks for.

    Raises:
        UserError: If other modules are in the way of the apps, or the device is not here.
    """
    import_apps()
    # The processes of an existing Ray cluster may run on machines that have what this one has not.
    if not resources.device.startswith("cuda") or resources.ray_address is not None:
        return
    devices = torch.cuda.device_count()
    index = int(resources.device.partition(":")[2] or 0)
    if index >= devices:
        devices_here = "no CUDA device is here"
        if devices:
            devices_here = f"the CUDA devices here are 0 to {devices - 1}"
        raise UserError(
            f"resources.device is {resources.device!r}: {devices_here}; use 'auto' or 'cpu'"
        )


def show_run(run_folder: Path, console: Console, *, in_full: bool = False) -> None:
    """Print what a run cost and what was seen, its warnings, and where its report is.

    Args:
        run_folder: The run.
        console: Where it is printed.
        in_full: With all predictors and measures, and what is pooled over hospitals.
    """
    summary = read_summary(run_folder)
    costs = privacy_table if in_full else privacy_overview
    console.print(costs(summary, console.width))
    verdicts = verdict_table(summary, console.width)
    if verdicts is not None:
        console.print()
        console.print(verdicts)
    if summary.calibration and (in_full or verdicts is None):
        console.print()
        console.print(calibration_table(summary, console.width))
    if summary.warnings:
        console.print()
    for warning in summary.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)
    site_file = _site_to_update(summary, run_folder)
    if site_file is not None:
        console.print(
            "What a hospital's own patients repair, for epsilon 1:\n"
            f"  fl-dpbayes update {shlex.quote(str(run_folder))} {shlex.quote(str(site_file))} "
            "--epsilon 1",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    console.print(f"report: {run_folder / 'report.html'}", soft_wrap=True, markup=False)


def _site_to_update(run: Summary, run_folder: Path) -> Path | None:
    """Return the site file of the held-out hospital that needs an update most, in a simulation."""
    if not run.hospitals:
        return None
    # A simulation's site files are `<number>-<name>.toml`; a real coordinator has none.
    files = {
        path.stem.partition("-")[2]: path for path in (run_folder / SITES_FOLDER).glob("*.toml")
    }
    for hospital in hospital_verdicts(run):
        if hospital.row.role == "held_out" and hospital.row.site in files:
            return files[hospital.row.site]
    return None


def raise_failure(
    failure: BaseException | None, reader: EventReader, folder: Path, resume_command: str
) -> None:
    """Raise why a run did not come to its end, if it did not.

    Args:
        failure: What ended the engine, if anything.
        reader: Reads the run's events; the reason of a "failed" event comes before the failure.
        folder: The run directory.
        resume_command: The command that goes on with the run.

    Raises:
        FailedError: If the run failed, or ended without a result.
    """
    events = reader.new_events()
    reasons = [str(event["reason"]) for event in events if event["event"] == "failed"]
    # What a full disk did to a site, or to the word of the process that failed, shows here only.
    if shutil.disk_usage(folder).free < FULL_BYTES:
        reasons = [f"the disk of {folder} is full: free space on it"]
    elif not reasons and isinstance(failure, UserError):
        reasons = [str(failure)]
    if reasons:
        raise FailedError(
            f"the run stopped: {reasons[-1]} (what was computed until then, and the logs, are in "
            f"{folder}; once the cause is removed, go on with  {resume_command})"
        )
    if failure is not None:
        raise failure
    if not any(event["event"] == "finished" for event in events):
        raise FailedError(f"the run ended without a result: see the logs in {folder}")


def new_folder(folder: Path | None, name: str, inside: str = SITES_FOLDER) -> Path:
    """Make the folder of a run or a study.

    Args:
        folder: The folder, absent or empty; None: `runs/<name>-<time>`.
        name: Of the scenario or study.
        inside: A folder to make in it; "" for none.

    Returns:
        The folder, as an absolute path.

    Raises:
        UserError: If it is not empty, or cannot be made.
    """
    if folder is None:
        folder = Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: give a folder that does not exist yet")
    try:
        (folder / inside).mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None
    return folder


def _print_start(scenario: Scenario, engine: str, folder: Path, console: Console) -> None:
    console.print(
        f"[bold]{scenario.name}[/bold]: {counted(len(scenario.sites), 'site')}, "
        f"{counted(scenario.training.rounds, 'round')}, engine {engine}, writing {folder}"
    )
    if not scenario.sampler.is_private:
        text = f"NOT PRIVATE: sampler.kind is {scenario.sampler.kind!r}, epsilon is infinite"
        console.print(text, style="bold red")
    partition = read_partition(folder)
    training_units = {
        name: units["train"]
        for name, units in partition.units.items()
        if name in scenario.sites and scenario.sites[name].role == "train"
    }
    # Here too, as whoever waits for the page has waited for nothing.
    for warning in sentences(weak_budget(scenario, training_units)):
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _completed_rounds(folder: Path) -> int:
    from server.checkpoint import read_rounds

    with RunStore.open(folder) as store:
        rounds = read_rounds(store)
    return rounds[-1].checkpoint.round if rounds else 0
