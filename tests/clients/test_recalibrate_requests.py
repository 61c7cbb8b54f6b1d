"""A site's answer to recalibration requests: repeated, changed, refused, failed."""

from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from tests.asking import ask, changed, record_of, refusal_of, rows_of

# They share a whole run.
pytestmark = pytest.mark.slow
BIAS = "posterior/1.bias"


@pytest.fixture(scope="module")
def run(federations):
    finished = federations(
        "recalibration={fraction=0.2, steps=12}", "simulation.cohort_epsilon=9", "simulation.insecure_seed="
    )
    finished.run()
    return finished


@pytest.fixture
def message(run) -> Message:
    """The recalibration request that the run's first site got."""
    return run.requests("train.recalibrate")[0]


def test_repeated_request_gets_the_stored_parameters_and_costs_nothing(run, message) -> None:
    before = rows_of(run.ledger("north"))
    assert (before[-1].part, before[-1].purpose, before[-1].steps) == ("recalibration", "recalibrate", 12)
    first, again = (record_of(ask(request)) for request in (message, changed(message, ledger_head=None)))
    assert first["parameters"] == again["parameters"]
    assert rows_of(run.ledger("north")) == before


def test_noise_is_drawn_afresh_for_another_run(message) -> None:
    one, two = (record_of(ask(changed(message, run=name * 16, plan__epsilon=1.0))) for name in ("ab", "cd"))
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
    ({"arrays": float("nan")}, "BAD_REQUEST", "arrays"),
    ({"arrays": 1.0}, "BAD_REQUEST", "arrays"),
    ({"ledger_head": "0" * 64}, "LEDGER_ROLLED_BACK", "ledger_head"),
    ({"number": 4}, "ROLE_DENIED", ""),
]


def test_requests_that_do_not_fit_are_refused_by_field(run, message) -> None:
    before, bias = rows_of(run.ledger("north")), message.content["arrays"][BIAS].numpy()
    for change, code, field in MISFITS:
        keys = dict(change)
        number = keys.pop("number", 0)
        if "arrays" in keys:
            keys["arrays"] = {BIAS: np.full_like(bias, keys["arrays"])}
        found = refusal_of(ask(changed(message, **keys), number))
        assert found is not None, change
        assert found == (code, found[1] if field is None else field), change
    assert rows_of(run.ledger("north")) == before


def test_site_that_keeps_no_share_for_it_refuses(federation, message) -> None:
    folder = {"simulation-folder": str(federation(name="plain").folder / "sites")}
    copied = changed(message)
    copied.content["config"] = ConfigRecord({**copied.content["config"], **folder})
    assert refusal_of(ask(copied)) == ("ROLE_DENIED", "")


def test_failed_fit_counts_as_spent_and_its_text_stays_at_the_site(run, message, monkeypatch) -> None:
    monkeypatch.setattr("clients.recalibrate.private_fit", Mock(side_effect=RuntimeError("patient 4711")))
    reply = ask(changed(message, run="ef" * 16, plan__epsilon=1.0))
    assert refusal_of(reply) == ("INTERNAL", "")
    assert "4711" not in str(dict(reply.content["config"]))
    assert [row.state for row in rows_of(run.ledger("north"))][-1] == "failed"


def test_its_own_budget_ends_without_touching_that_of_training(run, message) -> None:
    replies = [ask(changed(message, run=f"{number:02x}" * 16)) for number in range(1, 9)]
    assert refusal_of(replies[-1]) == ("BUDGET_EXHAUSTED", "")
    with run.ledger("north") as ledger:
        assert ledger.spent("recalibration").epsilon <= 9
        assert ledger.spent("train").epsilon <= 4
