"""A small federation that runs in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fl_dpbayes.run.inline_engine import task_identity
from fl_dpbayes.run.inline_grid import InlineGrid
from fl_dpbayes.scenario import Scenario, load_scenario
from fl_dpbayes.simulation import SITES_FOLDER, plan_sites, prepare_simulation

SMALL = [
    "training={rounds=2, steps_per_round=4, burn_in=2, thinning=2}",
    "privacy.coupling=constant",
    "privacy.temperature=",
    "privacy.sampling_rate=1.0",
    "simulation.insecure_seed=5",
]


class WatchedGrid(InlineGrid):
    """Keeps every request and lets a test change or drop a reply."""

    def __init__(self, client_app: ClientApp, nodes: int) -> None:
        super().__init__(client_app, nodes)
        self.requests: list[Message] = []
        self.change: Callable[[Message, Message], Message | None] = lambda request, reply: reply

    def push_messages(self, messages):
        messages = list(messages)
        self.requests += messages
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        requests = {message_id: self._waiting[message_id] for message_id in message_ids if message_id in self._waiting}
        changed = [
            self.change(requests[reply.metadata.reply_to_message_id], reply)
            for reply in super().pull_messages(list(requests))
        ]
        return [reply for reply in changed if reply is not None]


class Federation:
    """A prepared run directory, its scenario and its grid."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        from clients.app import app

        self.folder, self.scenario = folder, scenario
        prepare_simulation(scenario, plan_sites(scenario, None), folder)
        self.grid = WatchedGrid(app, len(scenario.sites))

    def run(self, grid: Grid | None = None) -> None:
        from server.federation import run_federation

        run_federation(grid or self.grid, self.scenario, self.folder, str(self.folder / SITES_FOLDER))

    def site_of(self, message: Message) -> str:
        return list(self.scenario.sites)[message.metadata.dst_node_id - 1]


@pytest.fixture
def federation(tmp_path: Path):
    """Build federations of the quickstart's sites with few steps."""
    with task_identity():
        yield lambda *overrides, name="run": Federation(
            tmp_path / name, load_scenario("quickstart", [*SMALL, *overrides])
        )
