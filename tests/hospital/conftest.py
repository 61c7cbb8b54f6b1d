"""A coordinator's scenario, and a hospital's table that fits it."""

from pathlib import Path

import numpy as np
import pandas
import pytest

SCENARIO = """
name = "trial"
model = { kind = "logistic" }
training = { rounds = 2, steps_per_round = 5, thinning = 1 }
privacy = { epsilon = 2.0, delta = 1e-3, sampling_rate = 0.5 }
aggregation = { rule = "fald" }
evaluation = { release = "noised", noise_multiplier = 4.0 }
[data.source]
kind = "table"
path = "none.csv"
label = "outcome"
classes = 2
class_names = ["alive", "dead"]
site_column = "hospital"
unit_column = "patient"
features = ["age", "pressure"]
centers = [65.0, 140.0]
scales = [10.0, 20.0]
missing = { pressure = 140.0 }
categories = { smoker = ["never", "now"] }
[sites.north]
role = "train"
[sites.south]
role = "train"
[sampler]
kind = "dp-sgld"
step_size = { kind = "constant", initial = 0.2 }
prior = { kind = "gaussian", scale = 1.0 }
"""


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """Write a scenario, and the table of 200 patients with two rows each."""
    generator = np.random.default_rng(0)
    (tmp_path / "trial.toml").write_text(SCENARIO)
    pandas.DataFrame(
        {
            "patient": [f"p{number // 2:03d}" for number in range(400)],
            "age": generator.normal(66, 12, 400).round(),
            "pressure": generator.normal(140, 20, 400).round(1),
            "smoker": generator.choice(["never", "now"], 400),
            "outcome": generator.choice(["alive", "dead"], 400),
        }
    ).to_csv(tmp_path / "patients.csv", index=False)
    return tmp_path


def init_words(folder: Path, name: str = "north") -> list[object]:
    """What is typed to make a site file of the table."""
    given = [
        "--scenario",
        folder / "trial.toml",
        "--data",
        folder / "patients.csv",
        "--name",
        name,
        "--yes",
    ]
    return ["site", "init", folder / f"{name}.toml", *given]


@pytest.fixture
def made(trial: Path, command) -> Path:
    """Let `site init` write the site file of the table, its snapshot and its ledger."""
    status, said, error = command(*init_words(trial))
    assert (status, error) == (0, ""), said
    return trial / "north.toml"


def files_in(folder: Path) -> dict[str, bytes]:
    """The bytes of every file, by its path."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
