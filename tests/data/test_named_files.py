"""Files that a scenario names are looked at before a run makes a folder."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from rich.console import Console

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.data.named_files import check_named_files
from fl_dpbayes.data.simulation import plan_sites
from fl_dpbayes.run.simulate import simulate
from fl_dpbayes.run.stored_posterior import predict_records

PUBLIC = "aggregation.public={kind='file', path='PATH', statement='made up for a test'}"
BODY = ["model={kind='mlp', hidden=[5], frozen_body={weights='DIGEST'}}", "aggregation={rule='mixture'}"]
SHORT = ["training={rounds=1, steps_per_round=2, thinning=1}"]


def check(assignments: list[str], data_dir: Path | None = None) -> None:
    scenario = load_scenario("quickstart", assignments)
    check_named_files(scenario, plan_sites(scenario, data_dir))


def weights(folder: Path) -> str:
    from fl_dpbayes.models.backbone import _sha256

    (folder / "backbones").mkdir(parents=True)
    path = folder / "backbones" / "body.safetensors"
    safetensors.torch.save_file({"1.weight": torch.ones(5, 64), "1.bias": torch.zeros(5)}, path)
    return _sha256(path)


@pytest.mark.parametrize("made", [True, False])
def test_missing_public_file_or_label_is_said_before_a_folder_is_made(made: bool, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "public.npz"
    said = r"aggregation\.public\.path .* does not exist"
    if made:
        np.savez(path, features=np.zeros((3, 64), np.float32))
        said = "add an array 'labels', or set aggregation.beta to a number"
    scenario = load_scenario(
        "quickstart", ["aggregation.rule=predbayes", "aggregation.beta=fitted", PUBLIC.replace("PATH", str(path))]
    )
    with pytest.raises(UserError, match=said):
        simulate(scenario, "inline", None, None, Console())
    assert not (tmp_path / "runs").exists()
    if made:
        check(["aggregation.rule=predbayes", PUBLIC.replace("PATH", str(path))])


def test_frozen_weights_are_found_by_sites_or_named_with_their_key(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    digest = weights(tmp_path)
    body = [text.replace("DIGEST", digest) for text in BODY]
    check(body, tmp_path)
    with pytest.raises(UserError, match="give --data-dir or set FL_DPBAYES_DATA"):
        check(body)
    with pytest.raises(UserError, match=r"put the file there, .* or correct model\.frozen_body\.weights"):
        check([text.replace("DIGEST", "0" * 64) for text in BODY], tmp_path)
    with pytest.raises(UserError, match="does not hold this body"):
        check([body[0].replace("[5]", "[6]"), body[1]], tmp_path)


def test_server_needs_the_weights_too_where_it_compares_predictions(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    body = BODY[0].replace("DIGEST", weights(tmp_path))
    rule = "aggregation={rule='distillation', public={kind='synthetic', count=5}}"
    with pytest.raises(UserError, match="set FL_DPBAYES_DATA"):
        check([body, rule], tmp_path)
    monkeypatch.setenv("FL_DPBAYES_DATA", str(tmp_path))
    check([body, rule])


@pytest.mark.slow
def test_prediction_finds_frozen_weights_in_the_given_folder(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    data_dir, records, out = tmp_path / "data", tmp_path / "new.npz", tmp_path / "out.csv"
    scenario = load_scenario("quickstart", [BODY[0].replace("DIGEST", weights(data_dir)), BODY[1], *SHORT])
    run = simulate(scenario, "inline", tmp_path / "run", data_dir, Console())
    np.savez(records, features=np.zeros((2, 1, 8, 8), np.float32))
    with pytest.raises(UserError, match=r"model\.frozen_body\.weights.*--data-dir"):
        predict_records(run, records, out, Console())
    predict_records(run, records, out, Console(), data_dir)
    assert len(out.read_text().splitlines()) == 3
    with pytest.raises(UserError, match=r"create the folder .*gone first"):
        predict_records(run, records, tmp_path / "gone" / "x.csv", Console(), data_dir)
