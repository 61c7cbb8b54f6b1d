"""The work behind `fl-dpbayes simulate --resume`: go on with a run that was cut off."""

from pathlib import Path

from rich.console import Console

from fl_dpbayes.config import Scenario, import_apps, load_scenario
from fl_dpbayes.data import (
    BASELINES,
    SCENARIO_FILE,
    SITES_FOLDER,
    plan_sites,
    prepare_simulation,
)
from fl_dpbayes.engine.baselines import write_baselines
from fl_dpbayes.engine.flower_engine import end_interrupted
from fl_dpbayes.engine.progress import EVENTS_FILE, EventReader, end_of_events
from fl_dpbayes.engine.simulate import check_machine, run_prepared, show_run
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import RunStore, digest
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.files.plain_files import check_plain
from fl_dpbayes.posterior import POSTERIOR_FILE, check_seal
from fl_dpbayes.report import read_summary

RESULTS = ("calibration.csv", "privacy.csv", "rounds.csv", "report.html")


def resume_run(
    folder: Path, scenario: Scenario | None, engine: str, data_dir: Path | None, console: Console
) -> Path:
    """Go on with a run after its last complete round; show one that is finished and whole.

    Args:
        folder: The run directory.
        scenario: What the caller takes the run's scenario to be; None: whatever it is.
        engine: "inline" or "flower".
        data_dir: The folder of data sets; None: the default one.
        console: Where progress and results are shown.

    Returns:
        The run directory, as an absolute path.

    Raises:
        UserError: If the folder holds no run or that of another scenario, a file is missing or
            damaged, another process works on it, or the run failed.
    """
    import_apps()
    from server.checkpoint import check_run_files, read_rounds

    folder = folder.resolve()
    _check_holds_run(folder)
    check_plain(folder)
    with folder_lock(folder):
        end_interrupted(folder)
        with RunStore.open(folder) as store:
            rounds = read_rounds(store)
            has_baselines = store.latest(BASELINES) is not None
            check_run_files(store, only=SCENARIO_FILE)
            is_finished = _is_finished(folder)
            if rounds and not is_finished:
                check_run_files(store)
        run_scenario = load_scenario(str(folder / SCENARIO_FILE))
        if scenario is not None:
            _check_same_scenario(folder, scenario, run_scenario)
        check_machine(run_scenario.resources)
        if is_finished:
            console.print(
                f"the run in {folder} is finished: nothing is left to do",
                soft_wrap=True,
                markup=False,
            )
            _warn_of_missing_results(folder, console)
        else:
            if not rounds:
                # Nothing was asked of any site yet, so the sites can be made once more.
                prepare_simulation(run_scenario, plan_sites(run_scenario, data_dir), folder)
            if not (rounds and has_baselines):
                site_files = sorted((folder / SITES_FOLDER).glob("*.toml"))
                write_baselines(run_scenario, site_files, folder)
            completed = rounds[-1].checkpoint.round if rounds else 0
            console.print(f"resuming after round {completed}", highlight=False)
            run_prepared(run_scenario, engine, folder, console)
    show_run(folder, console)
    return folder


def _check_holds_run(folder: Path) -> None:
    if (folder / SCENARIO_FILE).is_file():
        return
    if (folder / SITES_FOLDER).is_dir():
        reason = "has no scenario.toml: put it back, as the run goes on with what it says"
    else:
        reason = "holds no run: give the folder that it named as it began, or start it anew"
    raise UserError(f"--resume {folder} {reason}")


def _check_same_scenario(folder: Path, scenario: Scenario, run_scenario: Scenario) -> None:
    if digest(scenario) != digest(run_scenario):
        raise UserError(
            f"--resume {folder} holds a run of another scenario ({run_scenario.name!r}, or one "
            "with other settings): give --resume alone, which takes the run's own"
        )


def _warn_of_missing_results(folder: Path, console: Console) -> None:
    """Name the results that a finished run lacks, as somebody moved or deleted them."""
    missing = [name for name in RESULTS if not (folder / name).is_file()]
    if missing:
        console.print(
            f"warning: the run lacks {', '.join(missing)}: fl-dpbayes report {folder}  makes the "
            "page anew; for all else run the scenario again",
            style="yellow",
            soft_wrap=True,
            markup=False,
        )


def _is_finished(folder: Path) -> bool:
    """Tell whether a run has ended and its results are whole."""
    end_of_events(folder / EVENTS_FILE)
    events = EventReader(folder / EVENTS_FILE).new_events()
    try:
        read_summary(folder)
        # The posterior is not loaded: a finished run, perhaps of someone else, is shown without
        # importing the code that it names.
        check_seal(folder / POSTERIOR_FILE)
    except (UserError, OSError, ValueError):
        return False
    return any(event["event"] == "finished" for event in events)
