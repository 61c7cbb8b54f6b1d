"""The folder of a deployed run: what it is opened with, and how it is refused by name."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from fl_dpbayes.config.scenario import load_scenario, write_scenario
from fl_dpbayes.coordinator.deploy import DEPLOYMENT_FILE, Deployment, deploy_status
from fl_dpbayes.files.atomic_file import file_sha256
from fl_dpbayes.files.run_store import STORE_FILE, RunStore
from tests.asking import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scenario_file = tmp_path / "scenario.toml"
    write_scenario(load_scenario("digits"), scenario_file)
    RunStore.make(tmp_path).close()
    deployment = Deployment(scenario=file_sha256(scenario_file), superlink="here", wait=1.0)
    (tmp_path / DEPLOYMENT_FILE).write_text(deployment.model_dump_json())
    return tmp_path


def status(folder: Path) -> None:
    deploy_status(folder, Console(quiet=True))


def change_scenario(folder: Path) -> None:
    path = folder / "scenario.toml"
    path.write_text(path.read_text().replace("seed = ", "seed = 1", 1))


def become_older(folder: Path) -> None:
    (folder / STORE_FILE).rename(folder / "journal.jsonl")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed scenario": (change_scenario, "scenario.toml is not as it was written"),
    "no scenario": (lambda folder: (folder / "scenario.toml").unlink(), "scenario.toml is missing"),
    "no store": (lambda folder: (folder / STORE_FILE).unlink(), f"{STORE_FILE} is missing"),
    "older": (
        become_older,
        "holds a run of an older version of fl-dpbayes .journal.jsonl.: finish",
    ),
    "deployment": (
        lambda folder: (folder / DEPLOYMENT_FILE).write_text("{}"),
        f"{DEPLOYMENT_FILE} is damaged",
    ),
    "no deployment": (
        lambda folder: (folder / DEPLOYMENT_FILE).unlink(),
        "holds no deployed run",
    ),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=list(DAMAGES))
def test_a_folder_that_is_not_as_it_was_is_refused(folder: Path, damage, said: str) -> None:
    status(folder)
    damage(folder)
    refused(said, status, folder)
