"""How long a run waits for its nodes, when it begins and when it is taken up again."""

import time

from flwr.serverapp import Grid

from fl_dpbayes.config.errors import UserError

POLL_SECONDS = 0.2


def wait_for_simulated_nodes(grid: Grid, expected: int, timeout: float, settled: float) -> list[int]:
    """Wait until the nodes of a simulation are there; they appear together, so a number that stays is final.

    Args:
        grid: the grid.
        expected: how many nodes the run needs to start.
        timeout: seconds to wait for the first node.
        settled: seconds after which a number above zero that has not grown is final.

    Returns:
        Node ids in ascending order.

    Raises:
        UserError: if fewer nodes are connected when the time is over; for a simulation it gives the right command.
    """
    deadline, seen = time.monotonic() + timeout, 0
    while True:
        node_ids = sorted(grid.get_node_ids())
        if len(node_ids) >= expected:
            return node_ids
        if len(node_ids) > seen:
            seen, deadline = len(node_ids), time.monotonic() + settled
        if time.monotonic() >= deadline:
            raise UserError(
                f"{len(node_ids)} nodes are connected but the run waits for {expected}: start it with  "
                f'flwr run . --federation-config "num-supernodes={expected}"  (or use  fl-dpbayes simulate)'
            )
        time.sleep(POLL_SECONDS)


def wait_for_returning_nodes(grid: Grid, expected: int, timeout: float) -> list[int]:
    """Wait until the nodes of a run that is taken up again are there, or for as long as it may take.

    Args:
        grid: the grid.
        expected: how many nodes the run had.
        timeout: seconds to wait for all of them.

    Returns:
        Node ids in ascending order.

    Raises:
        UserError: if no node is connected when the time is over.
    """
    deadline = time.monotonic() + timeout
    while True:
        node_ids = sorted(grid.get_node_ids())
        if len(node_ids) >= expected or (node_ids and time.monotonic() >= deadline):
            return node_ids
        if time.monotonic() >= deadline:
            raise UserError(f"none of the run's {expected} nodes is connected: start them again, then resume once more")
        time.sleep(POLL_SECONDS)
