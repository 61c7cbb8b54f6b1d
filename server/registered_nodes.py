"""The nodes of real sites, known by the name under which each one's key is registered."""

import time
from collections.abc import Callable, Collection

from flwr.serverapp import Grid

from fl_dpbayes.config import RunWarning, Scenario, counted, outside_text, warning
from fl_dpbayes.errors import UserError

WAIT_POLL_SECONDS = 1.0
# Seconds after which it is said again who is missing.
SAY_SECONDS = 15.0


def registered_names(grid: Grid) -> dict[int, str]:
    """Return node -> the name under which its key is registered, of those that have one.

    A simulation has none.
    """
    return {node.node_id: node.name for node in grid.get_nodes() if node.name}


def allowed_nodes(grid: Grid, sites: Collection[str], *, only_registered: bool) -> list[int]:
    """Return the connected nodes that may be asked.

    Args:
        grid: The connected nodes.
        sites: Names of the sites.
        only_registered: Whether nodes without a registered name are left out.

    Returns:
        Their ids, ascending.
    """
    names = registered_names(grid)
    if only_registered:
        return sorted(node for node, name in names.items() if name in sites)
    return sorted(node for node in grid.get_node_ids() if names.get(node) in {None, *sites})


def unlisted_nodes(grid: Grid, sites: Collection[str]) -> list[RunWarning]:
    """Return a warning for each connected node whose registered name is no site's."""
    names = sorted(set(registered_names(grid).values()) - set(sites))
    return [
        warning("no-card", reason=f"{outside_text(name)}: it is no site of the scenario")
        for name in names
    ]


def wait_for_sites(
    grid: Grid, scenario: Scenario, seconds: float, say: Callable[[list[str]], None]
) -> None:
    """Wait until enough of a scenario's sites are connected.

    Args:
        grid: The connected nodes.
        scenario: The scenario.
        seconds: How long to wait.
        say: Called now and then with the names of those that are missing.

    Raises:
        UserError: Too few came.
    """
    deadline = time.monotonic() + seconds
    last_said = 0.0
    last_missing: list[str] = []
    while True:
        names = registered_names(grid)
        missing = [site for site in scenario.sites if site not in names.values()]
        if len(scenario.sites) - len(missing) >= scenario.least_nodes:
            return
        if missing != last_missing or time.monotonic() - last_said > SAY_SECONDS:
            say(missing)
            last_said = time.monotonic()
            last_missing = missing
        if time.monotonic() >= deadline:
            nameless = len(set(grid.get_node_ids()) - names.keys())
            raise _too_few_sites(scenario, seconds, missing, nameless)
        time.sleep(WAIT_POLL_SECONDS)


def _too_few_sites(
    scenario: Scenario, seconds: float, missing: list[str], nameless: int
) -> UserError:
    if nameless:
        return UserError(
            f"{counted(nameless, 'node')} without a registered name: start the SuperLink with "
            "--enable-supernode-auth, and register each site's key under its name"
        )
    return UserError(
        f"{len(scenario.sites) - len(missing)} of {counted(len(scenario.sites), 'site')} came "
        f"within {seconds:.0f} s, the run starts with {scenario.least_nodes}; missing: "
        f"{', '.join(missing)}: have their nodes started (fl-dpbayes site start), or start a new "
        "run with fewer resources.start_nodes"
    )
