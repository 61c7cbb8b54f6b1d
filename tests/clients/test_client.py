"""A site's side: what it answers to repeated, changed and hostile requests."""

import json
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients.app import app
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.site_ledger import ledger_place
from fl_dpbayes.privacy.ledger.ledger import Ledger
from fl_dpbayes.protocol.refusal import Refusal

CANARY = "patient 4711 has a negative age"


def context(**node_config) -> Context:
    return Context(run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config={})


def captured_requests(run) -> list[Message]:
    run.run()
    return [message for message in run.grid.requests if message.metadata.message_type == "train"]


def ask(message: Message, run, number: int = 0, **node_config) -> Message:
    node_config = node_config or {"partition-id": number, "num-partitions": 7}
    return app(message, context(**node_config))


def refusal_of(reply: Message) -> Refusal:
    return Refusal.model_validate_json(reply.content["config"]["refusal"])


def copy_of(message: Message, change=lambda config, arrays: None) -> Message:
    config = ConfigRecord(dict(message.content["config"]))
    arrays = ArrayRecord(dict(message.content["arrays"]))
    change(config, arrays)
    copied = Message(
        RecordDict({"config": config, "arrays": arrays}),
        dst_node_id=message.metadata.dst_node_id,
        message_type=message.metadata.message_type,
        group_id="1",
    )
    copied.metadata.__dict__["_message_id"] = "copied"
    return copied


def change_record(**changes):
    def change(config, arrays) -> None:
        record = json.loads(config["record"])
        for path, value in changes.items():
            *tables, name = path.split("__")
            table = record
            for key in tables:
                table = table[key]
            table[name] = value
        config["record"] = json.dumps(record)

    return change


def ledger_rows(run, number: int = 0) -> list:
    site_file = read_site_file(sorted((run.folder / "sites").glob("*.toml"))[number])
    with Ledger.open_existing(ledger_place(site_file.ledger), site_file.ledger.cohort) as ledger:
        assert ledger.verify() == []
        return ledger.rows()


def test_repeated_request_gets_the_stored_reply_and_costs_nothing(federation) -> None:
    run = federation("simulation.insecure_seed=")
    first = captured_requests(run)[0]
    before = ledger_rows(run)
    replies = [ask(copy_of(first), run) for _ in range(2)]
    assert ledger_rows(run) == before
    one, two = (reply.content["arrays"]["last/parameters/1.weight"].numpy() for reply in replies)
    np.testing.assert_array_equal(one, two)
    stored = np.asarray(one)
    assert np.isfinite(stored).all()


def test_request_with_the_same_round_but_other_content_is_refused(federation) -> None:
    run = federation()
    first = captured_requests(run)[0]

    def other_start(config, arrays) -> None:
        from fl_dpbayes.protocol.wire import arrays_digest

        weight = arrays["start/parameters/1.weight"].numpy() + np.float32(1)
        arrays["start/parameters/1.weight"] = Array(weight)
        start = {name.removeprefix("start/"): array.numpy() for name, array in arrays.items()}
        change_record(start=arrays_digest(start))(config, arrays)

    assert refusal_of(ask(copy_of(first, other_start), run)).code == "REQUEST_CHANGED"


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        (change_record(plan__thinning=1), "PLAN_CHANGED", "plan"),
        (change_record(plan__privacy__delta=0.004), "POLICY_DENIED", "plan.privacy.delta"),
        (change_record(plan__privacy__epsilon=400.0), "POLICY_DENIED", "plan.privacy.epsilon"),
        (change_record(plan__privacy__adjacency="replace_one"), "POLICY_DENIED", "plan.privacy.adjacency"),
        (change_record(plan__privacy__clip_norm=1e9), "POLICY_DENIED", "plan.privacy.clip_norm"),
        (change_record(insecure_seed=3), "BAD_REQUEST", "insecure_seed"),
        (change_record(first_step=10**9), "BAD_REQUEST", None),
        (change_record(task__classes=7), "BAD_REQUEST", "arrays"),
        (change_record(start="0" * 64), "BAD_REQUEST", "start"),
        (change_record(ledger_head="0" * 64, round=3), "LEDGER_ROLLED_BACK", "ledger_head"),
        (lambda config, arrays: config.update({"record": "{"}), "BAD_REQUEST", None),
        (lambda config, arrays: arrays.pop("start/parameters/1.bias"), "BAD_REQUEST", "arrays"),
        (
            lambda config, arrays: arrays.update({"start/parameters/1.bias": Array(np.full(10, np.nan, np.float32))}),
            "BAD_REQUEST",
            "arrays",
        ),
    ],
)
def test_request_that_does_not_fit_is_refused_by_field(federation, change, code: str, field: str | None) -> None:
    run = federation()
    first = captured_requests(run)[0]
    before = ledger_rows(run)
    refusal = refusal_of(ask(copy_of(first, change), run))
    assert refusal.code == code
    if field is not None:
        assert refusal.field == field
    assert ledger_rows(run) == before


def test_held_out_site_never_trains(federation) -> None:
    run = federation()
    first = captured_requests(run)[0]
    assert refusal_of(ask(copy_of(first), run, number=4)).code == "ROLE_DENIED"


def test_text_of_an_exception_never_leaves_the_site(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    run = federation()
    first = captured_requests(run)[0]
    for error in (RuntimeError(CANARY), SystemExit(CANARY), MemoryError(CANARY)):
        monkeypatch.setattr("clients.train.load_site", _raiser(error))
        reply = ask(copy_of(first), run)
        assert refusal_of(reply).code == "INTERNAL"
        assert CANARY not in str(dict(reply.content["config"]))


def _raiser(error: BaseException):
    def fail(*arguments):
        raise error

    return fail


def test_failed_training_counts_as_spent(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    run = federation("simulation.cohort_epsilon=20")
    first = captured_requests(run)[0]
    monkeypatch.setattr("clients.train.run_chain", _raiser(RuntimeError(CANARY)))
    reply = ask(copy_of(first, change_record(run="ab" * 16)), run)
    assert refusal_of(reply).code == "INTERNAL"
    assert [row.state for row in ledger_rows(run)] == ["done", "done", "failed"]


def test_site_file_of_the_node_wins_over_the_folder_in_the_message(federation, tmp_path: Path) -> None:
    run = federation()
    first = captured_requests(run)[0]
    south = sorted((run.folder / "sites").glob("*.toml"))[1]
    reply = app(
        Message(RecordDict({"config": first.content["config"]}), dst_node_id=1, message_type="query"),
        context(**{"site-file": str(south), "partition-id": 0}),
    )
    assert json.loads(reply.content["config"]["record"])["name"] == "south"


def test_node_without_a_site_file_refuses_whatever_folder_the_message_names(federation) -> None:
    run = federation()
    first = captured_requests(run)[0]
    assert refusal_of(app(copy_of(first), context())).code == "SITE_NOT_CONFIGURED"


def test_noised_evaluation_is_paid_for_and_the_same_request_is_free(federation) -> None:
    run = federation("evaluation={release='noised', noise_multiplier=2.0}", "simulation.cohort_epsilon=8")
    run.run()
    rows = ledger_rows(run)
    assert [(row.part, row.purpose, row.steps) for row in rows][-1] == ("test", "evaluate 2", 2)
    request = next(message for message in run.grid.requests if message.metadata.message_type == "evaluate")
    ask(copy_of(request), run)
    assert ledger_rows(run) == rows
    summary = json.loads((run.folder / "summary.json").read_text())
    assert {"item": "sums over test records (calibration statistics)", "how": "paid in ledger"} in summary["releases"]
    paid = {row["site"]: row["epsilon"] for row in summary["evaluation_privacy"]}
    assert paid.keys() == set(run.scenario.sites)
    assert all(0 < epsilon <= 8 for epsilon in paid.values())
    assert any(row["item"].startswith("test records of held-out: epsilon") for row in summary["releases"])
    pooled = [row for row in summary["calibration"] if row["site"] == "pooled:held_out"]
    assert all(row["accuracy"] is not None and row["nll"] is None for row in pooled)


def test_noised_evaluation_below_the_policy_is_refused(federation) -> None:
    run = federation("evaluation={release='noised', noise_multiplier=2.0}", "simulation.cohort_epsilon=8")
    run.run()
    request = next(message for message in run.grid.requests if message.metadata.message_type == "evaluate")
    refusal = refusal_of(ask(copy_of(request, change_record(noise_multiplier=0.5)), run))
    assert (refusal.code, refusal.field) == ("POLICY_DENIED", "noise_multiplier")
