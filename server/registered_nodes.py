"""The nodes of real sites: known by the name under which each one's key is registered, waited for by that name."""

import time
from collections.abc import Callable, Collection

from flwr.serverapp import Grid

from fl_dpbayes.config import RunWarning, Scenario, counted, outside_text, warning
from fl_dpbayes.errors import UserError

WAIT_POLL_SECONDS, SAY_SECONDS = 1.0, 15.0


def registered_names(grid: Grid) -> dict[int, str]:
    """Return node -> the name under which its key is registered, of those that have one.

    A simulation has none.
    """
    return {node.node_id: node.name for node in grid.get_nodes() if node.name}


def allowed_nodes(grid: Grid, sites: Collection[str], *, only_registered: bool) -> list[int]:
    """Return ids, ascending, of connected nodes with a site's name, or, but for `only_registered`, without a name."""
    names = registered_names(grid)
    if only_registered:
        return sorted(node for node, name in names.items() if name in sites)
    return sorted(node for node in grid.get_node_ids() if names.get(node) in {None, *sites})


def unlisted_nodes(grid: Grid, sites: Collection[str]) -> list[RunWarning]:
    """Return a warning for each connected node that is registered under a name that is no site's."""
    names = sorted(set(registered_names(grid).values()) - set(sites))
    return [
        warning("no-card", reason=f"{outside_text(name)}: it is no site of the scenario")
        for name in names
    ]


def wait_for_sites(
    grid: Grid, scenario: Scenario, seconds: float, say: Callable[[list[str]], None]
) -> None:
    """Wait until enough of a scenario's sites are connected, or raise UserError.

    Say now and then who is missing.
    """
    needed = scenario.resources.start_nodes or len(scenario.sites)
    deadline, said, told = time.monotonic() + seconds, 0.0, list[str]()
    while True:
        names = registered_names(grid)
        missing = [site for site in scenario.sites if site not in names.values()]
        if len(scenario.sites) - len(missing) >= needed:
            return
        if missing != told or time.monotonic() - said > SAY_SECONDS:
            say(missing)
            said, told = time.monotonic(), missing
        if time.monotonic() >= deadline:
            nameless = len(set(grid.get_node_ids()) - names.keys())
            if nameless:
                raise UserError(
                    f"{counted(nameless, 'node')} without a registered name: start the "
                    "SuperLink with "
                    "--enable-supernode-auth, and register each site's key under its name"
                )
            raise UserError(
                f"{len(scenario.sites) - len(missing)} of {counted(len(scenario.sites), 'site')} "
                "came within "
                f"{seconds:.0f} s, the run starts with {needed}; missing: {', '.join(missing)}: have their nodes "
                "started (fl-dpbayes site start), or start a new run with fewer "
                "resources.start_nodes"
            )
        time.sleep(WAIT_POLL_SECONDS)
