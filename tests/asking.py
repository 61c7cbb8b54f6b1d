"""Requests to a site's app, as they are or changed, and what it answers."""

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol.arrays import prefixed
from fl_dpbayes.protocol.refusal import Refusal
from fl_dpbayes.protocol.wire import arrays_digest

# Patients with one row each: name, x, y, label.
ROWS = [
    (f"p{number:03d}", float(x), float(y), number % 2)
    for number, (x, y) in enumerate(np.random.default_rng(0).normal(size=(50, 2)))
]


SOURCE = {
    "kind": "table",
    "path": "patients.csv",
    "label": "sick",
    "classes": 2,
    "features": ["x", "y"],
    "unit_column": "patient",
}


def refused(said: str, call, *arguments, **keys) -> None:
    """Check that a call ends with a user's mistake, told with these words."""
    with pytest.raises(UserError, match=said):
        call(*arguments, **keys)


def record_of(reply: Message) -> dict:
    assert "refusal" not in reply.content["config"], reply.content["config"]["refusal"]
    found: dict = json.loads(str(reply.content["config"]["record"]))
    return found


def refusal_of(reply: Message) -> tuple[str, str] | None:
    """Code and field, or None for an answer."""
    text = reply.content["config"].get("refusal")
    if text is None:
        return None
    found = Refusal.model_validate_json(str(text))
    return found.code.value, found.field


def rows_of(ledger) -> list:
    """What the ledger holds, which is closed."""
    with ledger:
        assert ledger.verify() == []
        return ledger.rows()


def changed(
    message: Message, arrays: dict | None = None, record: str | None = None, **changes
) -> Message:
    """Copy a request with other keys (`plan__delta=0.1`), another record, or other arrays (None takes one away)."""
    config, sent = ConfigRecord(dict(message.content["config"])), dict(message.content["arrays"])
    content = json.loads(config["record"])
    for path, value in changes.items():
        *tables, name = path.split("__")
        table = content
        for key in tables:
            table = table[key]
        table[name] = value
    config["record"] = json.dumps(content) if record is None else record
    for name, array in (arrays or {}).items():
        sent.pop(name)
        if array is not None:
            sent[name] = Array(array)
    copied = Message(
        RecordDict({"config": config, "arrays": ArrayRecord(sent)}),
        dst_node_id=message.metadata.dst_node_id,
        message_type=message.metadata.message_type,
        group_id="1",
    )
    copied.metadata.__dict__["_message_id"] = "copied"
    return copied


def ask(message: Message, number: int = 0, **node_config) -> Message:
    """Send a request to the node of a simulation's site, or to a node with this config."""
    from clients.app import app

    config = node_config or {"partition-id": number, "num-partitions": 7}
    return app(
        message, Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})
    )


def evaluate(site, weight: float = 0.0, sent=None, **changes) -> Message:
    """Ask for the noised table of one predictor, whose weights are all `weight`, unless other arrays are sent."""
    sample = {
        "1.weight": np.full((1, 2, 2), weight, np.float32),
        "1.bias": np.zeros((1, 2), np.float32),
    }
    arrays = prefixed("last", sample)
    content = {
        "run": "cd" * 16,
        "round": 1,
        "task": {"input_shape": [2], "classes": 2},
        "model": {"kind": "logistic"},
        "predictors": {"last": [1.0]},
        "arrays": arrays_digest(arrays),
        "noise_multiplier": 2.0,
        "delta": 1e-3,
    }
    return site.answer("evaluate", content | changes, arrays if sent is None else sent)
