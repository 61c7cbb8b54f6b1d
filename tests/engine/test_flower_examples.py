"""The project of docs/flower.md runs under Flower, with a `server.py` and `clients` of its own."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.engine.test_engines import ROOT, environment, flwr_run

__all__ = ["environment"]
PROJECT = ROOT / "docs" / "flower"
CODE = ("server.py", "clients/app.py")


def test_the_page_shows_the_project_that_runs() -> None:
    shown = re.findall(
        r"```py\n(.*?)```", (ROOT / "docs" / "flower.md").read_text(encoding="utf-8"), re.DOTALL
    )
    for name in CODE:
        assert (PROJECT / name).read_text(encoding="utf-8") in shown


@pytest.mark.slow
def test_flwr_run_of_the_example_project(environment: dict[str, str], tmp_path: Path) -> None:
    project = tmp_path / "mine"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    place = tmp_path / "posterior.npz"
    options = [
        "--run-config",
        f"posterior={json.dumps(str(place))}",
        "--federation-config",
        "num-supernodes=4",
    ]
    said = flwr_run(project, environment, project, *options)
    assert np.load(place)["weight"].shape == (3, 10, 64)
    assert float(re.findall(r"'accuracy': '([\d.e+-]+)'", said)[-1]) > 0.85
    # Each site's position went on from round to round, in the node's own state.
    assert [float(one) for one in re.findall(r"'steps-max': '([\d.e+-]+)'", said)] == [
        20,
        40,
        60,
        80,
        100,
    ]
    assert "'left-out': '0'" in said
