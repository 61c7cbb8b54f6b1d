"""A site's side: what it answers to repeated, changed and hostile requests."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fl_dpbayes.data.site import recalibration_units
from fl_dpbayes.protocol.arrays import without_prefix
from fl_dpbayes.protocol.wire import arrays_digest
from tests.asking import ask, changed, record_of, refusal_of, rows_of

CANARY = "patient 4711 has a negative age"
KINDS = ("train", "train.recalibrate", "evaluate")


@pytest.fixture(scope="module")
def run(federations):
    """A finished run without a seed, in which every kind of request is paid for."""
    paid = [
        "recalibration={fraction=0.2, steps=12}",
        "evaluation={release='noised', noise_multiplier=2.0}",
    ]
    return federations(
        "simulation.insecure_seed=", "simulation.cohort_epsilon=9", *paid, name="paid"
    ).run()


@pytest.fixture
def first(run) -> dict[str, Message]:
    """The first request of each kind to the run's first site."""
    return {kind: run.requests(kind)[0] for kind in KINDS}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_repeated_request_gets_the_stored_reply_and_costs_nothing(run, first, kind: str) -> None:
    before = rows_of(run.ledger("north"))
    again = [changed(first[kind]), changed(first[kind], ledger_head=None)]
    one, two = map(ask, again)
    assert rows_of(run.ledger("north")) == before
    if kind == "train":
        assert refusal_of(one) == refusal_of(two) == ("LEDGER_ERROR", ""), (
            "the bank of the simulation has it"
        )
    else:
        assert record_of(one) | sent_by(one) == record_of(two) | sent_by(two)


def sent_by(reply: Message) -> dict[str, list]:
    return {name: array.numpy().tolist() for name, array in reply.content.get("arrays", {}).items()}


def test_noise_is_drawn_afresh_for_another_run(first) -> None:
    requests = [
        changed(first["train.recalibrate"], run=name * 16, plan__epsilon=1.0)
        for name in ("ab", "cd")
    ]
    one, two = (record_of(ask(request))["parameters"] for request in requests)
    assert one != two


def test_request_with_the_same_round_but_other_content_is_refused(first) -> None:
    start = {name: array.numpy() for name, array in first["train"].content["arrays"].items()}
    other = {name: array + np.float32(1) for name, array in start.items()}
    other = changed(first["train"], other, start=arrays_digest(without_prefix("start", other)))
    assert refusal_of(ask(other)) == ("REQUEST_CHANGED", "round")


MISFITS = {
    "train": [
        ({"plan__thinning": 1}, "PLAN_CHANGED", "plan"),
        ({"start": "0" * 64}, "BAD_REQUEST", "start"),
        ({"plan__privacy__delta": 0.004}, "POLICY_DENIED", "plan.privacy.delta"),
        ({"plan__privacy__epsilon": 400.0}, "POLICY_DENIED", "plan.privacy.epsilon"),
        ({"plan__privacy__adjacency": "replace_one"}, "POLICY_DENIED", "plan.privacy.adjacency"),
        ({"plan__privacy__clip_norm": 1e9}, "POLICY_DENIED", "plan.privacy.clip_norm"),
        # No site trains without privacy unless its policy says so, however a request puts it.
        ({"plan__sampler__kind": "sgld"}, "BAD_REQUEST", "plan.privacy"),
        ({"plan__privacy__kind": "none"}, "BAD_REQUEST", "plan.privacy"),
        (
            {"plan__sampler__kind": "sgld", "plan__privacy": {"delta": 1e-3}},
            "POLICY_DENIED",
            "plan.sampler.kind",
        ),
        ({"insecure_seed": 3}, "BAD_REQUEST", "insecure_seed"),
        ({"task__classes": 7}, "BAD_REQUEST", "arrays"),
        ({"ledger_head": "0" * 64, "round": 3}, "LEDGER_ROLLED_BACK", "ledger_head"),
        ({"record": "{"}, "BAD_REQUEST", None),
        ({"number": 4}, "ROLE_DENIED", ""),
        *(
            ({"arrays": {"start/parameters/1.bias": value}}, "BAD_REQUEST", "arrays")
            for value in (None, np.nan)
        ),
    ],
    "train.recalibrate": [
        ({"plan__step_size": 0.5}, "PLAN_CHANGED", "plan"),
        ({"start": [0.5]}, "REQUEST_CHANGED", "round"),
        ({"round": 2}, "POLICY_DENIED", "first_step"),
        ({"plan__delta": 0.004}, "POLICY_DENIED", "plan.delta"),
        *(
            ({"plan__epsilon": epsilon}, "POLICY_DENIED", "plan.epsilon")
            for epsilon in (400.0, None)
        ),
        ({"plan__adjacency": "replace_one"}, "POLICY_DENIED", "plan.adjacency"),
        ({"plan__clip_norm": 1e9}, "POLICY_DENIED", "plan.clip_norm"),
        ({"plan__steps": 9000}, "POLICY_DENIED", "plan.steps"),
        ({"start": [0.0, 0.0]}, "BAD_REQUEST", None),
        ({"start": [11.0]}, "BAD_REQUEST", "start.0"),
        ({"steps": 13}, "BAD_REQUEST", None),
        *(
            ({"arrays": {"posterior/1.bias": value}}, "BAD_REQUEST", "arrays")
            for value in (np.nan, 1.0)
        ),
        ({"ledger_head": "0" * 64}, "LEDGER_ROLLED_BACK", "ledger_head"),
        ({"number": 4}, "ROLE_DENIED", ""),
    ],
    "evaluate": [({"noise_multiplier": 0.5}, "POLICY_DENIED", "noise_multiplier")],
}


@pytest.mark.parametrize("kind", KINDS)
def test_request_that_does_not_fit_is_refused_by_field(run, first, kind: str) -> None:
    before, sent = rows_of(run.ledger("north")), first[kind].content["arrays"]
    for change, code, field in MISFITS[kind]:
        keys = dict(change)
        number, given = keys.pop("number", 0), keys.pop("arrays", {})
        new = ((name, value, sent[name].numpy()) for name, value in given.items())
        arrays = {
            name: None if value is None else np.full_like(old, value) for name, value, old in new
        }
        found = refusal_of(ask(changed(first[kind], arrays, **keys), number)) or ("answered", "")
        assert found == (code, found[1] if field is None else field), change
    assert rows_of(run.ledger("north")) == before


@pytest.mark.parametrize(
    ("kind", "work", "changes"),
    [
        ("train", "clients.train.run_chain", {}),
        ("train.recalibrate", "clients.recalibrate.private_fit", {"plan__epsilon": 1.0}),
    ],
)
def test_failed_work_counts_as_spent(
    run, first, monkeypatch: pytest.MonkeyPatch, kind, work, changes
) -> None:
    monkeypatch.setattr(work, Mock(side_effect=RuntimeError(CANARY)))
    reply = ask(changed(first[kind], run="ef" * 16, **changes))
    assert refusal_of(reply) == ("INTERNAL", "")
    assert CANARY not in str(dict(reply.content["config"]))
    assert rows_of(run.ledger("north"))[-1].state == "failed"


def test_budget_of_recalibration_ends_without_touching_that_of_training(run, first) -> None:
    with run.ledger("north") as ledger:
        before = ledger.spent("train")
    replies = [
        ask(changed(first["train.recalibrate"], run=f"{number:02x}" * 16)) for number in range(1, 9)
    ]
    assert refusal_of(replies[-1]) == ("BUDGET_EXHAUSTED", "")
    with run.ledger("north") as ledger:
        assert ledger.spent("recalibration").epsilon <= 9
        assert ledger.spent("train") == before


def test_site_that_keeps_no_share_for_recalibration_refuses(federation, first) -> None:
    copied = changed(first["train.recalibrate"])
    copied.content["config"]["simulation-folder"] = str(federation(name="plain").folder / "sites")
    assert refusal_of(ask(copied)) == ("ROLE_DENIED", "")


def test_site_file_of_the_node_wins_over_the_folder_in_the_message(run, first) -> None:
    south = sorted((run.folder / "sites").glob("*.toml"))[1]
    query = Message(
        RecordDict({"config": first["train"].content["config"]}),
        dst_node_id=1,
        message_type="query",
    )
    reply = ask(query, **{"site-file": str(south), "partition-id": 0})
    assert json.loads(reply.content["config"]["record"])["name"] == "south"
    # A node without one refuses, whatever folder the message names.
    assert refusal_of(ask(changed(first["train"]), other=0)) == ("SITE_NOT_CONFIGURED", "")


def test_what_a_run_paid_for_is_listed(run, first) -> None:
    rows = [(row.part, row.purpose, row.steps) for row in rows_of(run.ledger("north"))]
    assert ("test", "evaluate 2", 3) in rows
    assert ("recalibration", "recalibrate", 12) in rows
    stated = record_of(ask(changed(first["train.recalibrate"])))["privacy"]["units"]
    assert stated == recalibration_units(run.site_file("north")) < run.site_file("north").units
    summary = run.summary()
    assert {
        "item": "sums over test records (calibration statistics)",
        "how": "paid in ledger",
    } in summary["releases"]
    paid = {row["site"]: row["epsilon"] for row in summary["evaluation_privacy"]}
    assert paid.keys() == set(run.scenario.sites)
    assert all(0 < epsilon <= 9 for epsilon in paid.values())
    assert any(
        row["item"].startswith("test records of held-out: epsilon") for row in summary["releases"]
    )
    pooled = [row for row in summary["calibration"] if row["site"] == "pooled:held_out"]
    assert all(row["accuracy"] is not None and row["nll"] is None for row in pooled)


def test_a_hospital_refuses_constants_that_were_taken_from_its_records(site) -> None:
    assert "refusal" not in site.train().content["config"]
    text = site.path.read_text()
    site.path.write_text(
        text.replace('kind = "table"', 'kind = "table"\nconstants = "from_records"')
    )
    for reply in (site.answer("query"), site.train(round=2)):
        assert refusal_of(reply) == ("SITE_FILE_INVALID", "")
