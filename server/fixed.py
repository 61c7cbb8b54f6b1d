"""What is fixed for a whole run."""

from dataclasses import dataclass
from pathlib import Path

from fl_dpbayes.config.scenario import Scenario
from server.roster import Roster


@dataclass(frozen=True)
class Federation:
    """What is fixed for a whole run, but for who has joined: `planned_sites` sites trained when it began.

    `heads_file` keeps the heads of the sites' ledgers across runs; None where the ledgers are made for the run.
    """

    scenario: Scenario
    run: str
    roster: Roster
    planned_sites: int
    shapes: dict[str, tuple[int, ...]]
    run_folder: Path
    simulation_folder: str
    heads_file: Path | None = None
