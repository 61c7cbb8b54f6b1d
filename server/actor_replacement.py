"""Keeps a simulation going when the process of a virtual site dies."""

from typing import Any

from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid


def replace_dead_actors(grid: Grid) -> None:
    """Make the simulation's pool of Ray actors put a new actor in the place of a dead one.

    Flower 1.41 returns a dead actor to its pool, where it fails every message at once and so, being always idle, takes
    most of them: one killed process would cost most sites all their rounds. This wraps one method of that pool.

    Args:
        grid: the ServerApp's grid; nothing is done unless it is that of Flower's simulation, whose pool lives in the
            same process.
    """
    if not isinstance(grid, InMemoryGrid):
        return
    from flwr.simulation.ray_transport.ray_actor import BasicActorPool
    from ray.exceptions import RayActorError

    original = BasicActorPool.fetch_result_and_return_actor_to_pool

    def fetch(self: Any, future: Any) -> Any:
        try:
            return original(self, future)
        except RayActorError:
            self._future_to_actor[future] = self.create_actor_fn()
            raise

    BasicActorPool.fetch_result_and_return_actor_to_pool = fetch  # type: ignore[method-assign]
