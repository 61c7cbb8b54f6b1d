"""The Flower ServerApp."""

import contextlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

import server
from fl_dpbayes.config import Scenario, check_origin, load_scenario
from fl_dpbayes.data import SCENARIO_FILE, SITES_FOLDER, plan_sites, prepare_simulation
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.folder_lock import folder_lock
from server.federation import run_federation
from server.grid import POLL_SECONDS, check_workers_folder, replace_dead_actors
from server.registered_nodes import wait_for_sites
from server.run_record import EventLog

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the scenario that the run config names, and write its run directory.

    Run config: `prepared`, a file that will hold the path of a prepared run directory; or
    `scenario` (a shipped name or a path), `output-dir` (empty: `runs/<scenario>-<time>`),
    `data-dir`; and `report`, by which a study leaves out the drawing. `wait`: seconds to wait for
    real sites; 0 makes simulated ones. A folder that already holds simulated sites' files is used
    as it is, and a run in it that was cut off is resumed.
    """
    check_origin(server)
    check_workers_folder(grid)
    replace_dead_actors(grid)
    scenario, run_folder = _scenario_and_folder(context.run_config)
    run_folder.mkdir(parents=True, exist_ok=True)
    wait = float(context.run_config.get("wait", 0))
    events = EventLog(run_folder)
    # A second process writes nothing, not even that it was refused: the events are those of the
    # first.
    with folder_lock(run_folder) if wait else contextlib.nullcontext():
        try:
            simulation_folder = ""
            if wait:
                wait_for_sites(
                    grid, scenario, wait, lambda missing: events.write("waiting", missing=missing)
                )
            else:
                simulation_folder = str(run_folder / SITES_FOLDER)
                data_folder = str(context.run_config.get("data-dir", ""))
                _prepare_sites(scenario, run_folder, data_folder)
            report = bool(context.run_config.get("report", True))
            run_federation(grid, scenario, run_folder, simulation_folder, report=report)
        except UserError as error:
            # On a full disk this one cannot be written either.
            with contextlib.suppress(UserError):
                events.write("failed", reason=str(error))
            raise
        events.write("finished")
    log(INFO, "run directory: %s", run_folder)


def _scenario_and_folder(run_config: Mapping[str, object]) -> tuple[Scenario, Path]:
    """Return what to run, and the run directory; wait until a prepared one is ready."""
    prepared_file = str(run_config.get("prepared", ""))
    if prepared_file:
        while not Path(prepared_file).is_file():
            time.sleep(POLL_SECONDS)
        folder = Path(prepared_file).read_text(encoding="utf-8")
        scenario = load_scenario(f"{folder}/{SCENARIO_FILE}")
    else:
        folder = str(run_config.get("output-dir", ""))
        scenario = load_scenario(str(run_config.get("scenario", "quickstart")))
    now = datetime.now(UTC)
    return scenario, Path(folder or f"runs/{scenario.name}-{now:%Y%m%d-%H%M%S}").resolve()


def _prepare_sites(scenario: Scenario, run_folder: Path, data_folder: str) -> None:
    """Make a simulation's sites, unless the folder holds them already."""
    if (run_folder / SITES_FOLDER).is_dir():
        return
    plan = plan_sites(scenario, Path(data_folder) if data_folder else None)
    prepare_simulation(scenario, plan, run_folder)
