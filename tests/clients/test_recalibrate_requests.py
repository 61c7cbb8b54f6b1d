"""A site's answer to recalibration requests: repeated, changed, refused, failed."""

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients.app import app
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.site_ledger import ledger_place
from fl_dpbayes.privacy.ledger.ledger import Ledger
from fl_dpbayes.protocol.refusal import Refusal

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow


@pytest.fixture
def asked(federation):
    """A finished run and the recalibration request that its first site got."""
    run = federation(
        "recalibration={fraction=0.2, steps=12}", "simulation.cohort_epsilon=9", "simulation.insecure_seed="
    )
    run.run()
    return run, next(m for m in run.grid.requests if m.metadata.message_type == "train.recalibrate")


def send(federation, message: Message, node: int = 0, filled: float | None = None, **changes) -> Message:
    config = ConfigRecord(dict(message.content["config"]))
    record = json.loads(config["record"])
    for path, value in changes.items():
        *tables, name = path.split("__")
        table = record
        for key in tables:
            table = table[key]
        table[name] = value
    config["record"] = json.dumps(record)
    arrays = ArrayRecord(dict(message.content["arrays"]))
    if filled is not None:
        arrays["posterior/1.bias"] = Array(np.full_like(arrays["posterior/1.bias"].numpy(), filled))
    content = {"config": config, "arrays": arrays}
    copied = Message(RecordDict(content), dst_node_id=node + 1, message_type="train.recalibrate", group_id="1")
    copied.metadata.__dict__["_message_id"] = "copied"
    keys = {"partition-id": node, "num-partitions": 7}
    return app(copied, Context(run_id=1, node_id=1, node_config=keys, state=RecordDict(), run_config={}))


def refusal_of(reply: Message) -> Refusal:
    return Refusal.model_validate_json(reply.content["config"]["refusal"])


def reply_of(reply: Message) -> dict:
    return json.loads(reply.content["config"]["record"])


def ledger_rows(run, number: int = 0) -> list:
    settings = read_site_file(sorted((run.folder / "sites").glob("*.toml"))[number]).ledger
    with Ledger.open_existing(ledger_place(settings), settings.cohort) as ledger:
        assert ledger.verify() == []
        return ledger.rows()


def test_repeated_request_gets_the_stored_parameters_and_costs_nothing(asked) -> None:
    run, message = asked
    before = ledger_rows(run)
    assert (before[-1].part, before[-1].purpose, before[-1].steps) == ("recalibration", "recalibrate", 12)
    first, again = reply_of(send(run, message)), reply_of(send(run, message, ledger_head=None))
    assert first["parameters"] == again["parameters"]
    assert ledger_rows(run) == before


def test_noise_is_drawn_afresh_for_another_run(asked) -> None:
    run, message = asked
    one, two = (reply_of(send(run, message, run=name * 16, plan__epsilon=2.0)) for name in ("ab", "cd"))
    assert one["parameters"] != two["parameters"]


MISFITS = [
    ({"plan__step_size": 0.5}, "PLAN_CHANGED", "plan"),
    ({"start": [0.5]}, "REQUEST_CHANGED", "round"),
    ({"round": 2}, "POLICY_DENIED", "first_step"),
    ({"plan__delta": 0.004}, "POLICY_DENIED", "plan.delta"),
    ({"plan__epsilon": 400.0}, "POLICY_DENIED", "plan.epsilon"),
    ({"plan__epsilon": None}, "POLICY_DENIED", "plan.epsilon"),
    ({"plan__adjacency": "replace_one"}, "POLICY_DENIED", "plan.adjacency"),
    ({"plan__clip_norm": 1e9}, "POLICY_DENIED", "plan.clip_norm"),
    ({"plan__steps": 9000}, "POLICY_DENIED", "plan.steps"),
    ({"start": [0.0, 0.0]}, "BAD_REQUEST", None),
    ({"start": [11.0]}, "BAD_REQUEST", "start.0"),
    ({"steps": 13}, "BAD_REQUEST", None),
    ({"insecure_seed": 3}, "BAD_REQUEST", "insecure_seed"),
    ({"filled": float("nan")}, "BAD_REQUEST", "arrays"),
    ({"filled": 1.0}, "BAD_REQUEST", "arrays"),
    ({"ledger_head": "0" * 64}, "LEDGER_ROLLED_BACK", "ledger_head"),
    ({"node": 4}, "ROLE_DENIED", ""),
]


def test_requests_that_do_not_fit_are_refused_by_field(asked) -> None:
    run, message = asked
    before = ledger_rows(run)
    for change, code, field in MISFITS:
        refusal = refusal_of(send(run, message, **change))
        assert refusal.code == code, change
        assert field is None or refusal.field == field, change
    assert ledger_rows(run) == before


def test_site_that_keeps_no_share_for_it_refuses(federation, asked) -> None:
    _, message = asked
    plain = federation(name="plain")
    folder = ConfigRecord({**message.content["config"], "simulation-folder": str(plain.folder / "sites")})
    message.content["config"] = folder
    assert refusal_of(send(plain, message)).code == "ROLE_DENIED"


def test_failed_fit_counts_as_spent_and_its_text_stays_at_the_site(asked, monkeypatch: pytest.MonkeyPatch) -> None:
    run, message = asked

    def fail(*arguments, **more):
        raise RuntimeError("patient 4711")

    monkeypatch.setattr("clients.recalibrate.private_fit", fail)
    reply = send(run, message, run="ab" * 16)
    assert refusal_of(reply).code == "INTERNAL"
    assert "4711" not in str(dict(reply.content["config"]))
    assert [row.state for row in ledger_rows(run)][-1] == "failed"


def test_its_own_budget_ends_without_touching_that_of_training(asked) -> None:
    run, message = asked
    codes = []
    for number in range(1, 9):
        reply = send(run, message, run=f"{number:02x}" * 16)
        config = reply.content["config"]
        codes.append(refusal_of(reply).code if "refusal" in config else reply_of(reply)["status"])
    assert codes[-1] == "BUDGET_EXHAUSTED"
    settings = read_site_file(min((run.folder / "sites").glob("*.toml"))).ledger
    with Ledger.open_existing(ledger_place(settings), settings.cohort) as ledger:
        assert ledger.spent("recalibration").epsilon <= 9
        assert ledger.spent("train").epsilon <= 4
