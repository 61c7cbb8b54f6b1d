"""A closer look on the paper's own pictures: stand-ins in the hub's layout, and networks of random weights."""

import hashlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
import torchvision
from PIL import Image
from torch import nn

from fl_dpbayes.config.scenario import scenario_folder
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.config.study_file import load_study
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.study.grid import study_cells


class StandIn(NamedTuple):
    """What the hub's data set looks like: its splits, where its files lie, and how many there train."""

    column: str
    classes: int
    folder: str
    splits: dict[str, str]
    training_records: int


STAND_INS = {
    "cifar10": StandIn("img", 10, "plain_text", {"train": "train", "test": "test"}, 50_000),
    "sun397": StandIn("image", 397, "data", {"train": "train", "test": "test"}, 76_128),
    "food101": StandIn("image", 101, "data", {"train": "train", "test": "validation"}, 75_750),
}
COUNTS = {"train": 40, "test": 20}


def levels(kind: str, part: str) -> np.ndarray:
    generator = np.random.default_rng(COUNTS[part])
    height, width = BuiltIn(kind=kind).task.input_shape[1:]
    return generator.integers(0, 256, (COUNTS[part], height, width, 3), dtype=np.uint8)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write random pictures as the hub lays a data set out, into a data folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)

    def write(kind: str) -> Path:
        layout = STAND_INS[kind]
        folder = tmp_path / "data" / kind / layout.folder
        folder.mkdir(parents=True)
        types = {
            layout.column: datasets.Image(),
            "label": datasets.ClassLabel(num_classes=layout.classes),
        }
        for part, split in layout.splits.items():
            rows = {
                layout.column: [Image.fromarray(picture) for picture in levels(kind, part)],
                "label": np.arange(COUNTS[part]) % layout.classes,
            }
            datasets.Dataset.from_dict(rows, features=datasets.Features(types)).to_parquet(
                folder / f"{split}-00000-of-00001.parquet"
            )
        return tmp_path / "data"

    return write


@pytest.mark.parametrize("kind", STAND_INS)
def test_pictures_in_the_hubs_layout_are_read_from_the_data_folder(
    kind: str, stand_in: Callable[[str], Path]
) -> None:
    source = BuiltIn(kind=kind).located(stand_in(kind))
    assert source.parts == tuple(COUNTS)
    for part, count in COUNTS.items():
        records = load_unscaled(source, part)
        expected = levels(kind, part).transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(records.features, expected)
        assert records.labels.tolist() == [
            number % STAND_INS[kind].classes for number in range(count)
        ]
        assert (records.task, records.unit) == (source.task, "image")


@pytest.mark.parametrize("kind", STAND_INS)
def test_missing_files_are_named_in_one_line(
    kind: str, refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    name = f"closer-{kind}"
    (tmp_path / kind).mkdir()
    error = refusal("reproduce", name, "--data-dir", tmp_path, "--out", tmp_path / "out")
    assert f"{tmp_path / kind} holds no Parquet file: put the Parquet files of" in error
    assert error.count("\n") == 1
    error = refusal("reproduce", name, "--out", tmp_path / "other")
    assert f"into the folder {kind} of one, and give it by --data-dir or FL_DPBAYES_DATA" in error


@pytest.mark.parametrize("kind", STAND_INS)
def test_settings_are_those_that_the_paper_prints(kind: str) -> None:
    for cell in study_cells(load_study(f"closer-{kind}")):
        scenario = cell.scenario
        count, plan = STAND_INS[kind].training_records, scenario.training
        assert scenario.privacy.sampling_rate * count == pytest.approx(32, rel=1e-3)
        assert plan.steps_per_round * scenario.privacy.sampling_rate == pytest.approx(10, rel=1e-3)
        assert plan.burn_in == plan.steps_per_round - 1
        weight_decay = 1 / (scenario.sampler.prior.scale**2 * count)
        assert weight_decay == pytest.approx(1e-4, rel=1e-3)
        if scenario.sampler.kind == "dp-sgld":
            last_share = scenario.sampler.step_size.decay**plan.steps_per_round
            assert last_share == pytest.approx(0.028, rel=1e-3)


def random_network(kind: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "cifar10":
            return torchvision.models.resnet50(weights=None)
        return torchvision.models.VisionTransformer(
            image_size=224,
            patch_size=112,
            num_layers=1,
            num_heads=2,
            hidden_dim=768,
            mlp_dim=8,
        )


@pytest.fixture
def tiny_run(
    stand_in: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    command,
    here: list[str],
    tmp_path: Path,
) -> Callable[[str, str], pd.DataFrame]:
    """Run a study on stand-ins by the command that its notes name; return what it measured."""

    def run(kind: str, study: str) -> pd.DataFrame:
        data_folder = stand_in(kind)
        weights = data_folder / "backbones" / "weights.pth"
        weights.parent.mkdir()
        torch.save(random_network(kind).state_dict(), weights)
        if kind != "cifar10":
            monkeypatch.setattr(
                torchvision.models, "get_model", lambda *_, **__: random_network(kind)
            )
        changes = {
            "model.features.weights": hashlib.sha256(weights.read_bytes()).hexdigest(),
            "model.features.image_size": 32 if kind == "cifar10" else 224,
            "training.steps_per_round": 4,
            "training.burn_in": 3,
            "privacy.sampling_rate": 0.5,
        }
        options = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        places = ["--data-dir", data_folder, "--out", tmp_path / "out"]
        status, printed, _ = command("study", study, *places, *options)
        assert status == 0, printed
        results = pd.read_csv(tmp_path / "out" / "results.csv")
        return results[results["site"] == "official-test"]

    return run


@pytest.mark.slow
def test_a_study_of_stand_ins_measures_every_value_of_the_paper(
    tiny_run: Callable[[str, str], pd.DataFrame], here: list[str], tmp_path: Path
) -> None:
    results = tiny_run("cifar10", "closer-cifar10")
    assert len(here) == 11
    assert (results["n"] == COUNTS["test"]).all()
    beside = pd.read_csv(tmp_path / "out" / "paper.csv")
    assert len(beside) == 32
    assert beside["measured"].notna().all()
    epsilons = beside[beside["column"] == "epsilon"]
    np.testing.assert_allclose(epsilons["measured"], epsilons["paper"], rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sun397", "food101"])
def test_a_vision_transformer_maps_stand_ins(
    kind: str, tiny_run: Callable[[str, str], pd.DataFrame], tmp_path: Path
) -> None:
    path = scenario_folder() / "papers" / f"closer-{kind}.toml"
    study = tomllib.loads(path.read_text(encoding="utf-8"))
    row = "DP-TS, epsilon 8"
    study["variants"]["algorithm"] = {row: study["variants"]["algorithm"][row]}
    del study["paper"]["values"]
    (tmp_path / "study.toml").write_text(tomli_w.dumps(study), encoding="utf-8")
    results = tiny_run(kind, str(tmp_path / "study.toml")).set_index("predictor")
    assert results["n"].tolist() == [COUNTS["test"]] * len(results)
    assert 7.9 < results["epsilon"]["recalibrated"] <= 8
