"""What is fixed for a whole run."""

from dataclasses import dataclass
from pathlib import Path

from fl_dpbayes.scenario import Scenario
from server.roster import Roster


@dataclass(frozen=True)
class Federation:
    """What is fixed for a whole run, but for who has joined: `planned_sites` sites trained when it began."""

    scenario: Scenario
    run: str
    roster: Roster
    planned_sites: int
    shapes: dict[str, tuple[int, ...]]
    run_folder: Path
    simulation_folder: str
