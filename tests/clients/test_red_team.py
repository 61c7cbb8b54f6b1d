"""Faults that a red team found, each of which one bad message caused."""

import json

import numpy as np
import pytest
from flwr.app import Array

from clients.messages import RefusedError
from clients.model_inputs import model_inputs
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.site_file import Policy, SiteFile, Split
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.config.task import BackboneFeatures, LogisticModel, ScatteringFeatures, StrokeProjection
from fl_dpbayes.data.feature_cache import cached_features
from fl_dpbayes.data.site import SiteSplit
from fl_dpbayes.models.feature_map import feature_shape
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.protocol.train import TrainReply
from fl_dpbayes.protocol.wire import read_header

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow

ROWS = [(f"p{number}", float(number % 7), 1.0, number % 2) for number in range(52)]
LONG = "training={rounds=2, steps_per_round=6, burn_in=0, thinning=1}"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"privacy": {"history": [[1.0, 0.1]]}}', "[1]", '"text"'])
def test_no_header_makes_its_reader_fail_otherwise_than_by_refusing_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_header(TrainReply, text)


def spoil_one_site(run, spoil) -> None:
    def change(request, reply):
        if request.metadata.message_type == "train" and run.site_of(request) == "east":
            spoil(reply.content["config"], reply.content["arrays"])
        return reply

    run.grid.change = change


def crafted_temperatures(config, arrays) -> None:
    record = json.loads(config["record"])
    record["sample_temperatures"] = [1e-300]
    config["record"] = json.dumps(record)


def constant_samples(config, arrays) -> None:
    for name, array in list(arrays.items()):
        if name.startswith("samples/"):
            values = array.numpy()
            arrays[name] = Array(np.repeat(values[:1], len(values), axis=0))


@pytest.mark.parametrize("spoil", [crafted_temperatures, constant_samples])
@pytest.mark.parametrize("rule", ["consensus-diagonal", "product-diagonal", "fedpa"])
def test_crafted_samples_of_one_site_leave_the_others_their_posterior(federation, rule: str, spoil) -> None:
    run = federation(LONG, "sampler.prior.kind=gaussian", f"aggregation.rule={rule}")
    spoil_one_site(run, spoil)
    run.run()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert {row["predictor"] for row in summary["calibration"]} == {"last", "posterior"}
    if spoil is crafted_temperatures:
        assert next(row for row in summary["privacy"] if row["site"] == "east")["status"].startswith("REJECTED")


@pytest.mark.parametrize(("changes", "code", "field"), [
    ({"model": {"kind": "mlp", "hidden": [8192] * 4}}, "POLICY_DENIED", "model"),
    (
        {"plan": {"chains": 2, "rounds": 2, "steps_per_round": 2}, "first_step": 3, "steps": 2},
        "BAD_REQUEST",
        "TrainRequest",
    ),
], ids=["model too large", "across two chains"])  # fmt: skip
def test_request_that_cannot_run_is_refused_before_a_step_is_reserved(table_site, changes, code, field) -> None:
    site = table_site()
    site.write(ROWS)
    refusal = json.loads(site.train(**changes).content["config"]["refusal"])
    assert (refusal["code"], refusal["field"]) == (code, field)
    with site.ledger() as ledger:
        assert ledger.rows() == []


def test_weights_from_the_internet_are_fetched_only_where_the_policy_says_so(tmp_path) -> None:
    site_file = SiteFile(
        name="north", role="held_out", source=BuiltIn(kind="digits"), units=10, split=Split(key="0" * 32),
        policy=Policy(max_run_epsilon=1.0),
    )  # fmt: skip
    part = SiteSplit(np.zeros((1, 3, 32, 32), np.float32), np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
    with pytest.raises(RefusedError) as refused:
        model_inputs(site_file, LogisticModel(features=BackboneFeatures()), part)
    assert refused.value.refusal == Refusal(code=RefusalCode.POLICY_DENIED, field="model.features.weights")


def test_projection_that_would_fill_memory_is_refused() -> None:
    large = ScatteringFeatures(projection=StrokeProjection(characters=5000, copies=8))
    with pytest.raises(UserError, match="too much memory"):
        feature_shape(large, (1, 64, 64))
    assert feature_shape(ScatteringFeatures(projection=StrokeProjection()), (1, 28, 28)) == (200,)


def test_feature_cache_makes_room_by_deleting_its_oldest_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fl_dpbayes.data.feature_cache.MAX_BYTES", 3000)
    records = np.zeros((10, 4), np.float32)
    for scales in (1, 2, 3, 4):
        cached_features(
            tmp_path, ScatteringFeatures(scales=scales), records, lambda rows: np.ones((10, 25), np.float32)
        )
    assert sum(file.stat().st_size for file in tmp_path.glob("*.npy")) <= 3000
    assert len(list(tmp_path.glob("*.npy"))) == 2
