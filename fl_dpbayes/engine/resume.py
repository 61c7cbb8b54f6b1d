"""The work behind `fl-dpbayes simulate --resume`: go on with a run that was cut off."""

from pathlib import Path

from rich.console import Console

from fl_dpbayes.config import Scenario, import_apps, load_scenario
from fl_dpbayes.data import (
    BASELINES_FILE,
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
from fl_dpbayes.files import check_files, check_seal, digest, listed_files
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.posterior import POSTERIOR_FILE
from fl_dpbayes.report import read_summary

RESULTS = ("calibration.csv", "privacy.csv", "rounds.csv", "report.html")


def resume_run(
    folder: Path, scenario: Scenario | None, engine: str, data_dir: Path | None, console: Console
) -> Path:
    """Go on with a run after its last complete round.

    One that is finished, and whose results are whole, is shown.

    `scenario`: what the caller takes the run's scenario to be. Raises UserError if the folder holds
    no run or that of another scenario, a file is missing or damaged, another process works on it,
    or the run failed.
    """
    import_apps()
    from server.checkpoint import check_run_files, read_checkpoint, read_run_journal

    folder = folder.resolve()
    file = folder / SCENARIO_FILE
    if not file.is_file():
        lost = "has no scenario.toml: put it back, as the run goes on with what it says"
        none = "holds no run: give the folder that it named as it began, or start it anew"
        raise UserError(f"--resume {folder} {lost if (folder / SITES_FOLDER).is_dir() else none}")
    with folder_lock(folder):
        end_interrupted(folder)
        checkpoint, _ = read_checkpoint(folder) or (None, None)
        _, entries = read_run_journal(folder, checkpoint)
        check_files(
            folder,
            {name: entry for name, entry in listed_files(entries).items() if name == SCENARIO_FILE},
        )
        own = load_scenario(str(file))
        if scenario is not None and digest(scenario) != digest(own):
            other = f"another scenario ({own.name!r}, or one with other settings)"
            raise UserError(
                f"--resume {folder} holds a run of {other}: give --resume alone, which takes "
                "the run's own"
            )
        check_machine(own.resources)
        if _is_finished(folder):
            console.print(
                f"the run in {folder} is finished: nothing is left to do",
                soft_wrap=True,
                markup=False,
            )
            _tell_missing(folder, console)
        else:
            if checkpoint is None:
                # Nothing was asked of any site yet, so the sites can be made once more.
                prepare_simulation(own, plan_sites(own, data_dir), folder)
            else:
                check_run_files(folder, entries, checkpoint)
            if checkpoint is None or not (folder / BASELINES_FILE).is_file():
                write_baselines(own, sorted((folder / SITES_FOLDER).glob("*.toml")), folder)
            console.print(
                f"resuming after round {checkpoint.round if checkpoint else 0}", highlight=False
            )
            run_prepared(own, engine, folder, console)
    show_run(folder, console)
    return folder


def _tell_missing(folder: Path, console: Console) -> None:
    """Name the results that a finished run lacks, as somebody moved or deleted them."""
    missing = [name for name in (*RESULTS, BASELINES_FILE) if not (folder / name).is_file()]
    if missing:
        remedy = (
            f"fl-dpbayes report {folder}  makes the page anew; for all else run the scenario again"
        )
        said = f"warning: the run lacks {', '.join(missing)}: {remedy}"
        console.print(said, style="yellow", soft_wrap=True, markup=False)


def _is_finished(folder: Path) -> bool:
    """Tell whether a run has ended and its results are whole.

    Else the last stage is to be done again.
    """
    end_of_events(folder / EVENTS_FILE)
    events = EventReader(folder / EVENTS_FILE).new_events()
    try:
        read_summary(folder)
        # As it was written: a finished run, perhaps of someone else, is shown without the code that
        # it names.
        check_seal(folder / POSTERIOR_FILE)
    except (UserError, OSError, ValueError):
        return False
    return any(event["event"] == "finished" for event in events)
