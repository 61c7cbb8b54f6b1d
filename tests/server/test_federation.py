"""A whole run in this process: roles, records, budgets, and replies that must not spoil it."""

import csv
import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.report.html import write_report
from server.grid import OrderedGrid

SUMMARY_KEYS = {
    "scenario", "seed", "versions", "adjacency", "sites", "privacy", "calibration", "bytes", "seconds",
    "configurations_tried",
}  # fmt: skip
PRIVACY_KEYS = {
    "site", "delta", "epsilon", "epsilon_method", "mu", "mu_kind", "steps", "rounds", "budget", "temperature",
}  # fmt: skip
CALIBRATION_KEYS = {
    "site", "role", "predictor", "n", "accuracy", "nll", "brier", "ece", "ece_if_calibrated", "rms_debiased", "mce",
    "ace", "sce", "auroc", "intervals",
}  # fmt: skip


def summary_of(federation) -> dict:
    return json.loads((federation.folder / "summary.json").read_text())


def rows_of(federation, name: str) -> list[dict[str, str]]:
    with (federation.folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def spoil(reply: Message, change) -> Message:
    change(reply.content["config"], reply.content["arrays"])
    return reply


@pytest.mark.parametrize("rule", ["mixture", "fald"])
def test_run_directory_holds_what_the_contract_names(federation, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.federation.write_report", write_report)
    run = federation(f"aggregation.rule={rule}")
    run.run()
    summary = summary_of(run)
    assert summary.keys() >= SUMMARY_KEYS
    assert all(row.keys() >= PRIVACY_KEYS for row in summary["privacy"])
    assert all(row.keys() >= CALIBRATION_KEYS for row in summary["calibration"])
    assert {(row["name"], row["role"]) for row in summary["sites"]} == {
        (name, site.role) for name, site in run.scenario.sites.items()
    }
    assert {row["site"] for row in summary["calibration"]} == {
        "mean:train", "mean:shifted", "pooled:train", "pooled:held_out", "pooled:shifted", *run.scenario.sites,
    }  # fmt: skip
    assert {row["predictor"] for row in summary["calibration"]} == {"last", "posterior"}
    assert summary["seeded"] is True
    for name in ("report.html", "privacy.csv", "calibration.csv", "rounds.csv", "scenario.toml"):
        assert (run.folder / name).stat().st_size > 0
    stored = load_posterior(run.folder / "posterior.safetensors")
    assert np.isclose(stored.samples.weights.sum() if rule == "mixture" else 1.0, 1.0)
    assert len(stored.samples) == (12 if rule == "mixture" else 2)


def test_epsilon_grows_with_rounds_and_the_last_planned_step_meets_the_budget(federation) -> None:
    run = federation()
    run.run()
    rows = [row for row in rows_of(run, "privacy.csv") if row["site"] == "north"]
    epsilons = [float(row["epsilon"]) for row in rows]
    assert epsilons == sorted(epsilons)
    assert run.scenario.privacy.epsilon * 0.999 <= epsilons[-1] <= run.scenario.privacy.epsilon
    assert [row["mu_kind"] for row in rows] == ["exact", "exact"]
    assert [int(row["steps"]) for row in rows] == [4, 8]


def test_only_training_sites_get_training_requests(federation) -> None:
    run = federation()
    run.run()
    asked = {run.site_of(message) for message in run.grid.requests if message.metadata.message_type == "train"}
    assert asked == {name for name, site in run.scenario.sites.items() if site.role == "train"}
    evaluated = {run.site_of(message) for message in run.grid.requests if message.metadata.message_type == "evaluate"}
    assert evaluated == set(run.scenario.sites)


def test_site_with_a_small_budget_runs_a_prefix_and_the_others_go_on(federation) -> None:
    run = federation("sites.north.epsilon=2.5")
    run.run()
    rows = {row["site"]: row for row in rows_of(run, "privacy.csv") if row["round"] == "2"}
    north = [row for row in rows_of(run, "privacy.csv") if row["site"] == "north"]
    assert [row["status"] for row in north][-1] in ("PARTIAL", "REFUSED")
    assert max(float(row["epsilon"]) for row in north if row["epsilon"]) <= 2.5
    assert {rows[name]["status"] for name in ("south", "east", "west")} == {"OK"}


def test_run_ends_well_when_every_budget_is_spent_early(federation) -> None:
    run = federation("simulation.cohort_epsilon=2.5", "training.rounds=6")
    run.run()
    summary = summary_of(run)
    assert all(row["epsilon"] <= 2.5 for row in summary["privacy"])
    assert all("BUDGET_EXHAUSTED" in row["status"] or "PARTIAL" in row["status"] for row in summary["privacy"])
    assert summary["calibration"]


def test_policy_refuses_by_field_and_the_run_says_so(federation) -> None:
    run = federation("resources.min_sites=1")
    path = sorted((run.folder / "sites").glob("*.toml"))[0]
    path.write_text(path.read_text().replace("max_run_epsilon = 4.0", "max_run_epsilon = 1.0"))
    run.run()
    assert any("POLICY_DENIED plan.privacy.epsilon" in warning for warning in summary_of(run)["warnings"])


BAD_REPLIES = {
    "not finite": lambda config, arrays: arrays.update(
        {"last/parameters/1.weight": Array(np.full(arrays["last/parameters/1.weight"].shape, np.nan, np.float32))}
    ),
    "shape": lambda config, arrays: arrays.update({"last/parameters/1.weight": Array(np.zeros((3, 3), np.float32))}),
    "another type": lambda config, arrays: arrays.update(
        {"last/parameters/1.weight": Array(np.zeros(arrays["last/parameters/1.weight"].shape, np.float64))}
    ),
    "names differ": lambda config, arrays: arrays.update({"surprise": Array(np.zeros(1, np.float32))}),
    "another request": lambda config, arrays: config.update(
        {"record": config["record"].replace('"round":', '"round":1')}
    ),
    "status": lambda config, arrays: config.update({"record": config["record"].replace('"OK"', '"FINE"')}),
    "privacy statement": lambda config, arrays: config.update(
        {"record": config["record"].replace('"delta":0.001', '"delta":0.002')}
    ),
    "sample_weights": lambda config, arrays: config.update(
        {"record": config["record"].replace('"steps":', '"sample_weights":[200.0],"steps":', 1)}
    ),
    "header is not text": lambda config, arrays: config.update({"record": 5}),
}


@pytest.mark.parametrize("expected", BAD_REPLIES)
def test_bad_reply_is_rejected_and_the_round_goes_on(federation, expected: str) -> None:
    run = federation("aggregation.rule=mixture")
    run.grid.change = lambda request, reply: (
        spoil(reply, BAD_REPLIES[expected])
        if request.metadata.message_type == "train" and run.site_of(request) == "south"
        else reply
    )
    run.run()
    rows = [row for row in rows_of(run, "privacy.csv") if row["site"] == "south"]
    assert {row["status"] for row in rows} == {"REJECTED"}
    assert any("south" in warning and expected in warning for warning in summary_of(run)["warnings"])
    stored = load_posterior(run.folder / "posterior.safetensors").samples
    assert all(np.isfinite(array).all() for array in stored.arrays.values())


def test_oversized_array_is_not_decoded(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    run = federation()
    huge = Array("float32", (10, 64), "numpy.ndarray", b"x" * 10_000_000)
    run.grid.change = lambda request, reply: (
        spoil(reply, lambda config, arrays: arrays.update({"last/parameters/1.weight": huge}))
        if request.metadata.message_type == "train" and run.site_of(request) == "south"
        else reply
    )
    monkeypatch.setattr(huge.__class__, "numpy", _numpy_of_small_arrays(huge.__class__.numpy))
    run.run()
    assert any("south" in warning and "bytes of its shape" in warning for warning in summary_of(run)["warnings"])


def _numpy_of_small_arrays(original):
    def numpy(array):
        assert len(array.data) < 10_000_000
        return original(array)

    return numpy


def test_silent_site_and_error_reply_are_passed_over(federation) -> None:
    run = federation("resources.round_timeout=0.2")

    def change(request: Message, reply: Message) -> Message | None:
        if request.metadata.message_type == "train" and run.site_of(request) == "south":
            return None
        if request.metadata.message_type == "train" and run.site_of(request) == "east":
            return Message(Error(5, "secret"), reply_to=request)
        return reply

    run.grid.change = change
    run.run()
    warnings = summary_of(run)["warnings"]
    assert any("south" in warning and "no reply in time" in warning for warning in warnings)
    assert any("east" in warning and "error code 5" in warning for warning in warnings)
    assert not any("secret" in warning for warning in warnings)


def test_too_few_usable_replies_stop_the_run_and_keep_what_there_is(federation) -> None:
    run = federation("resources.min_sites=4")
    run.grid.change = lambda request, reply: (
        Message(Error(5, ""), reply_to=request)
        if request.metadata.message_type == "train"
        and request.metadata.group_id == "2"
        and run.site_of(request) == "south"
        else reply
    )
    with pytest.raises(UserError, match="round 2: 3 training sites"):
        run.run()
    assert len(rows_of(run, "rounds.csv")) == 2
    assert (run.folder / "posterior.safetensors").is_file()
    assert summary_of(run)["privacy"]


def test_site_that_sends_no_evaluation_is_named(federation) -> None:
    run = federation("evaluation.release=none")
    run.run()
    summary = summary_of(run)
    assert summary["calibration"] == []
    assert any("NOT_SENT" in warning for warning in summary["warnings"])
    assert {"item": "sums over test records (calibration statistics)", "how": "not sent"} in summary["releases"]


def test_replies_are_folded_in_the_order_of_requests(federation) -> None:
    run = federation()
    grid = OrderedGrid(run.grid)
    requests = [Message(ConfigRecordContent(number), dst_node_id=number, message_type="query") for number in (3, 1, 2)]
    replies = list(grid.send_and_receive(requests, timeout=5))
    assert [reply.metadata.src_node_id for reply in replies] == [3, 1, 2]


def ConfigRecordContent(number: int):  # noqa: N802
    from flwr.app import RecordDict

    return RecordDict({"config": ConfigRecord({"simulation-folder": ""}), "arrays": ArrayRecord({})})


def test_fewer_nodes_than_sites_gives_the_right_command(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    from clients.app import app
    from fl_dpbayes.run.inline_grid import InlineGrid

    monkeypatch.setattr("server.federation.SETTLED_SECONDS", 0.1)
    with pytest.raises(UserError, match='--federation-config "num-supernodes=7"'):
        federation().run(InlineGrid(app, 2))


def test_run_whose_posterior_cannot_be_formed_ends_with_the_reason_and_its_tables(federation, monkeypatch) -> None:
    def failing(strategy):
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr("server.strategies.fald.FALDStrategy.posterior", failing)
    run = federation()
    with pytest.raises(ZeroDivisionError):
        run.run()
    assert any("nothing to divide by" in text for text in summary_of(run)["warnings"])
    assert {row["status"] for row in rows_of(run, "privacy.csv")} == {"OK"}
