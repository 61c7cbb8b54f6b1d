"""Federations in which sites train the last layer alone: what travels, what is refused."""

import hashlib
from pathlib import Path

import numpy as np
import pandas
import pytest
from flwr.app import Array
from rich.console import Console

from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.predict.stored_posterior import predict_records
from tests.server.conftest import table_of_patients

FOUR = ["sites.held-out=", "sites.noisy-scanner=", "sites.rotated="]
MLP = "model={kind='mlp', hidden=[16], frozen_body={seed=2}}"
SCATTERED = "model={kind='mlp', hidden=[16], features={kind='scattering'}, frozen_body={seed=2}}"
CNN = "model={kind='cnn', channels=[4], hidden=12, frozen_body={seed=2}}"


def array_names(message) -> set[str]:
    return {name.rpartition("/")[2] for name in message.content["arrays"]}


@pytest.mark.slow
@pytest.mark.parametrize("model", [MLP, SCATTERED, CNN], ids=["mlp", "mlp on features", "cnn"])
def test_only_the_last_layer_travels_and_predictions_are_those_of_the_whole_network(
    federation, model: str, tmp_path: Path
) -> None:
    run = federation(model, *FOUR)
    seen: set[str] = set()

    def watch(request, reply):
        nonlocal seen
        if "arrays" in reply.content and request.metadata.message_type == "train":
            seen |= array_names(request) | array_names(reply)
        return reply

    run.grid.change = watch
    run.run()
    stored = load_posterior(run.folder / "posterior.safetensors")
    assert seen == set(stored.samples.arrays)
    assert len(seen) == 2
    records = load_unscaled(BuiltIn(kind="digits"), "train").scaled()
    whole = build_model(
        stored.metadata.model.model_copy(update={"frozen_body": None}), records.task, seed=2
    )
    values = {name: array[None] for name, array in whole.state_dict().items()}
    everything = {
        name: stored.samples.arrays.get(name, np.repeat(np.asarray(value), len(stored.samples), 0))
        for name, value in values.items()
    }
    inputs = records.features
    if stored.metadata.model.features is not None:
        inputs = feature_map(stored.metadata.model.features, (1, 8, 8))(inputs)
    expected = predict(whole, everything, stored.samples.weights, inputs).probabilities
    np.savez(tmp_path / "digits.npz", features=records.features)
    predict_records(
        run.folder, tmp_path / "digits.npz", tmp_path / "predictions.csv", Console(quiet=True)
    )
    table = pandas.read_csv(tmp_path / "predictions.csv")
    found = table[[f"probability_{number}" for number in range(10)]].to_numpy()
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_site_that_sends_a_body_is_rejected(federation) -> None:
    run = federation(MLP, *FOUR)

    def with_body(reply):
        reply.content["arrays"]["last/parameters/1.weight"] = Array(np.ones((16, 64), np.float32))
        return reply

    run.spoil(with_body, sites=("east",))
    run.run()
    statuses = {site: set(found) for site, found in run.statuses().items()}
    assert statuses == {"east": {"REJECTED"}} | {key: {"OK"} for key in ("north", "south", "west")}


@pytest.mark.slow
def test_several_chains_on_one_body_are_aligned(federation) -> None:
    chains = "training={rounds=1, steps_per_round=4, burn_in=2, thinning=2, chains=2}"
    whole, said = (
        "model={kind='mlp', hidden=[16]}",
        "averages weights over 2 chains that start from different weights",
    )
    for model, rule, warned in (
        (MLP, "fedavg", False),
        (whole, "fedavg", True),
        (whole, "mixture", False),
    ):
        run = federation(
            model, *FOUR, chains, f"aggregation.rule={rule}", name=f"{rule} {warned}"
        ).run()
        assert any(said in text for text in run.warnings()) == warned


@pytest.mark.slow
def test_full_covariances_need_samples_of_the_last_layer_only_and_its_file_is_a_later_runs_body(
    federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patients, labels, table = table_of_patients(tmp_path)
    first = federation(
        "model={kind='mlp', hidden=[8]}", "aggregation.rule=fedavg", *table, name="first"
    ).run()
    folder = tmp_path / "data" / "backbones"
    folder.mkdir(parents=True)
    body = (first.folder / "posterior.safetensors").read_bytes()
    (folder / "body.safetensors").write_bytes(body)
    monkeypatch.setenv("FL_DPBAYES_DATA", str(folder.parent))
    # 18 of the 42 parameters are trained: product-full needs 22 samples of the 50 kept, and would
    # need 46 for all.
    run = federation(
        f"model={{kind='mlp', hidden=[8], "
        f"frozen_body={{weights='{hashlib.sha256(body).hexdigest()}'}}}}",
        "aggregation.rule=product-full",
        *table,
        name="second",
    ).run()
    assert run.posterior().arrays["3.weight"].shape == (100, 2, 8)
    predict_records(run.folder, patients, tmp_path / "predictions.csv", Console(quiet=True))
    assert (pandas.read_csv(tmp_path / "predictions.csv")["predicted"] == labels).mean() > 0.85
