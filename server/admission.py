"""What a node must be to join a run, and how long it may take to say who it is."""

import math
from dataclasses import dataclass

from fl_dpbayes.config.scenario import Scenario


@dataclass(frozen=True)
class Admission:
    """The rules.

    Attributes:
        timeout: seconds to wait for the nodes' cards.
        simulation_folder: where virtual sites find their files; empty in deployment.
        least_units: privacy units that a site that trains declares at least.
        most_silences: after so many questions in a row without an answer a node is asked no more.
        nodes_may_change: whether a site that is gone may come back on another node.
    """

    timeout: float
    simulation_folder: str
    least_units: int
    most_silences: int
    nodes_may_change: bool


def admission_rules(scenario: Scenario, simulation_folder: str, longest: float = math.inf) -> Admission:
    """Return a scenario's rules.

    A site whose expected batch q n is below one unit would take steps far longer than its share of the evidence: its
    steps are scaled by 1/(q n), so a claim to one unit would be a licence to go anywhere.

    Args:
        scenario: the validated scenario.
        simulation_folder: where virtual sites find their files; empty in deployment.
        longest: seconds that the others may have to wait at most.

    Returns:
        The rules.
    """
    resources = scenario.resources
    return Admission(
        timeout=min(longest, resources.round_timeout),
        simulation_folder=simulation_folder,
        # 1/q of a decimal q may lie a rounding above a whole number.
        least_units=math.ceil(1 / scenario.privacy.sampling_rate - 1e-9),
        most_silences=resources.silent_rounds,
        nodes_may_change=resources.nodes_may_change,
    )
