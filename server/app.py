"""The Flower ServerApp."""

import contextlib
import time
from datetime import UTC, datetime
from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

import server
from fl_dpbayes.config import check_origin, load_scenario
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
    prepared = str(context.run_config.get("prepared", ""))
    while prepared and not Path(prepared).is_file():
        time.sleep(POLL_SECONDS)
    given = (
        Path(prepared).read_text(encoding="utf-8")
        if prepared
        else str(context.run_config.get("output-dir", ""))
    )
    named = (
        f"{given}/{SCENARIO_FILE}"
        if prepared
        else str(context.run_config.get("scenario", "quickstart"))
    )
    scenario = load_scenario(named)
    run_folder = Path(given or f"runs/{scenario.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}").resolve()
    run_folder.mkdir(parents=True, exist_ok=True)
    wait = float(context.run_config.get("wait", 0))
    report = bool(context.run_config.get("report", True))
    events = EventLog(run_folder)
    # A second process writes nothing, not even that it was refused: the events are those of the
    # first.
    with folder_lock(run_folder) if wait else contextlib.nullcontext():
        try:
            if wait:
                wait_for_sites(
                    grid, scenario, wait, lambda missing: events.write("waiting", missing=missing)
                )
                run_federation(grid, scenario, run_folder, "", report=report)
            else:
                if not (run_folder / SITES_FOLDER).is_dir():
                    data_dir = str(context.run_config.get("data-dir", ""))
                    plan = plan_sites(scenario, Path(data_dir) if data_dir else None)
                    prepare_simulation(scenario, plan, run_folder)
                run_federation(
                    grid, scenario, run_folder, str(run_folder / SITES_FOLDER), report=report
                )
        except UserError as error:
            # On a full disk this one cannot be written either.
            with contextlib.suppress(UserError):
                events.write("failed", reason=str(error))
            raise
        events.write("finished")
    log(INFO, "run directory: %s", run_folder)
