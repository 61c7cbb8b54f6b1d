"""A site's side: what it answers to repeated, changed and hostile requests."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fl_dpbayes.protocol.wire import arrays_digest
from tests.asking import ask, changed, refusal_of, rows_of

CANARY = "patient 4711 has a negative age"
WEIGHT, BIAS = "start/parameters/1.weight", "start/parameters/1.bias"


@pytest.fixture(scope="module")
def run(federations):
    """A finished run whose noise follows from no seed."""
    finished = federations("simulation.insecure_seed=", "simulation.cohort_epsilon=20", name="training")
    finished.run()
    return finished


@pytest.fixture
def first(run) -> Message:
    return run.requests("train")[0]


def test_repeated_request_gets_the_stored_reply_and_costs_nothing(run, first) -> None:
    before = rows_of(run.ledger("north"))
    one, two = (ask(changed(first)).content["arrays"]["last/parameters/1.weight"].numpy() for _ in range(2))
    assert rows_of(run.ledger("north")) == before
    np.testing.assert_array_equal(one, two)
    assert np.isfinite(one).all()


def test_request_with_the_same_round_but_other_content_is_refused(first) -> None:
    start = {name.removeprefix("start/"): array.numpy() for name, array in first.content["arrays"].items()}
    start["parameters/1.weight"] = start["parameters/1.weight"] + np.float32(1)
    other = changed(first, {WEIGHT: start["parameters/1.weight"]}, start=arrays_digest(start))
    assert refusal_of(ask(other)) == ("REQUEST_CHANGED", "round")


@pytest.mark.parametrize(("changes", "code", "field"), [
    ({"plan__thinning": 1}, "PLAN_CHANGED", "plan"),
    ({"plan__privacy__delta": 0.004}, "POLICY_DENIED", "plan.privacy.delta"),
    ({"plan__privacy__epsilon": 400.0}, "POLICY_DENIED", "plan.privacy.epsilon"),
    ({"plan__privacy__adjacency": "replace_one"}, "POLICY_DENIED", "plan.privacy.adjacency"),
    ({"plan__privacy__clip_norm": 1e9}, "POLICY_DENIED", "plan.privacy.clip_norm"),
    ({"insecure_seed": 3}, "BAD_REQUEST", "insecure_seed"),
    ({"first_step": 10**9}, "BAD_REQUEST", None),
    ({"task__classes": 7}, "BAD_REQUEST", "arrays"),
    ({"start": "0" * 64}, "BAD_REQUEST", "start"),
    ({"ledger_head": "0" * 64, "round": 3}, "LEDGER_ROLLED_BACK", "ledger_head"),
    ({"record": "{"}, "BAD_REQUEST", None),
    ({"arrays": {BIAS: None}}, "BAD_REQUEST", "arrays"),
    ({"arrays": {BIAS: np.full(10, np.nan, np.float32)}}, "BAD_REQUEST", "arrays"),
    ({"number": 4}, "ROLE_DENIED", ""),
], ids=str)  # fmt: skip
def test_request_that_does_not_fit_is_refused_by_field(run, first, changes: dict, code: str, field: str | None) -> None:
    before, changes = rows_of(run.ledger("north")), dict(changes)
    number = changes.pop("number", 0)
    found = refusal_of(ask(changed(first, **changes), number))
    assert found is not None
    assert found == (code, found[1] if field is None else field)
    assert rows_of(run.ledger("north")) == before


def test_text_of_an_exception_never_leaves_the_site(first, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError(CANARY), SystemExit(CANARY), MemoryError(CANARY)):
        monkeypatch.setattr("clients.train.load_site", Mock(side_effect=error))
        reply = ask(changed(first))
        assert refusal_of(reply) == ("INTERNAL", "")
        assert CANARY not in str(dict(reply.content["config"]))


def test_failed_training_counts_as_spent(run, first, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.train.run_chain", Mock(side_effect=RuntimeError(CANARY)))
    assert refusal_of(ask(changed(first, run="ab" * 16))) == ("INTERNAL", "")
    assert [row.state for row in rows_of(run.ledger("north"))] == ["done", "done", "failed"]


def test_site_file_of_the_node_wins_over_the_folder_in_the_message(run, first) -> None:
    south = sorted((run.folder / "sites").glob("*.toml"))[1]
    query = Message(RecordDict({"config": first.content["config"]}), dst_node_id=1, message_type="query")
    reply = ask(query, **{"site-file": str(south), "partition-id": 0})
    assert json.loads(reply.content["config"]["record"])["name"] == "south"


def test_node_without_a_site_file_refuses_whatever_folder_the_message_names(first) -> None:
    assert refusal_of(ask(changed(first), other=0)) == ("SITE_NOT_CONFIGURED", "")


@pytest.fixture(scope="module")
def noised(federations):
    evaluation = "evaluation={release='noised', noise_multiplier=2.0}"
    finished = federations(evaluation, "simulation.cohort_epsilon=8", name="noised")
    finished.run()
    return finished


def test_noised_evaluation_is_paid_for_again_free_and_refused_below_the_policy(noised) -> None:
    rows = rows_of(noised.ledger("north"))
    assert [(row.part, row.purpose, row.steps) for row in rows][-1] == ("test", "evaluate 2", 2)
    request = noised.requests("evaluate")[0]
    ask(changed(request))
    assert refusal_of(ask(changed(request, noise_multiplier=0.5))) == ("POLICY_DENIED", "noise_multiplier")
    assert rows_of(noised.ledger("north")) == rows
    summary = noised.summary()
    assert {"item": "sums over test records (calibration statistics)", "how": "paid in ledger"} in summary["releases"]
    paid = {row["site"]: row["epsilon"] for row in summary["evaluation_privacy"]}
    assert paid.keys() == set(noised.scenario.sites)
    assert all(0 < epsilon <= 8 for epsilon in paid.values())
    assert any(row["item"].startswith("test records of held-out: epsilon") for row in summary["releases"])
    pooled = [row for row in summary["calibration"] if row["site"] == "pooled:held_out"]
    assert all(row["accuracy"] is not None and row["nll"] is None for row in pooled)
