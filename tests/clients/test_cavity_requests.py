"""A server that sends a cavity: the site uses it as its prior, refuses what is none, and pays for steps alone."""

import math

import numpy as np
import pytest
from flwr.app import Message

from fl_dpbayes.protocol.arrays import prefixed, without_prefix
from fl_dpbayes.protocol.train import TrainReply
from fl_dpbayes.protocol.wire import arrays_digest
from tests.asking import ROWS, refusal_of, rows_of

SHAPES = {"1.weight": (2, 2), "1.bias": (2,)}


def cavity(mean: float = 0.0, precision: float = 1.0) -> dict[str, np.ndarray]:
    values = {"mean": mean, "precision": precision}
    return {
        f"{part}/{name}": np.full(shape, value, np.float32)
        for part, value in values.items()
        for name, shape in SHAPES.items()
    }


def ask(site, arrays: dict | None, *, stated: str | None = None, source: str = "cavity", **changes) -> Message:
    """Ask for a round with a cavity; `stated` is its digest where that is not the true one."""
    sent = {} if arrays is None else prefixed("cavity", arrays)
    if arrays is not None:
        changes["cavity"] = stated or arrays_digest(arrays)
    return site.train(arrays=sent, plan={"prior_source": source} | changes.pop("plan", {}), **changes)


def changed(name: str, value: float) -> dict[str, np.ndarray]:
    arrays = cavity()
    arrays[name].flat[0] = value
    return arrays


@pytest.mark.parametrize(
    ("arrays", "field"),
    [
        (changed("precision/1.bias", 0.0), "cavity"),
        (changed("precision/1.bias", -1.0), "cavity"),
        (changed("precision/1.weight", 1e13), "cavity"),
        (changed("precision/1.weight", 1e-13), "cavity"),
        (changed("mean/1.weight", 1e7), "cavity"),
        (changed("mean/1.weight", math.nan), "arrays"),
        (changed("precision/1.weight", math.inf), "arrays"),
        ({name: array for name, array in cavity().items() if name != "mean/1.bias"}, "arrays"),
        (cavity() | {"mean/2.bias": np.zeros(2, np.float32)}, "arrays"),
        (cavity() | {"mean/1.bias": np.zeros(3, np.float32)}, "arrays"),
        ({name: array.astype(np.float64) for name, array in cavity().items()}, "arrays"),
    ],
    ids=["zero", "negative", "sharp", "wide", "far", "nan", "infinite", "missing", "unexpected", "shape", "type"],
)
def test_what_is_no_cavity_is_refused_before_anything_is_spent(site, arrays: dict, field: str) -> None:
    assert refusal_of(ask(site, arrays)) == ("BAD_REQUEST", field)
    assert rows_of(site.ledger()) == []


def test_cavity_under_another_digest_is_refused(site) -> None:
    assert refusal_of(ask(site, cavity(), stated="0" * 64)) == ("BAD_REQUEST", "cavity")


@pytest.mark.parametrize(("arrays", "source"), [(None, "cavity"), (cavity(), "sampler")])
def test_cavity_comes_exactly_where_the_plan_asks_for_it(site, arrays: dict | None, source: str) -> None:
    assert refusal_of(ask(site, arrays, source=source)) == ("BAD_REQUEST", "TrainRequest")


@pytest.mark.parametrize("plan", [{"prior_share": 0.5}, {"sampler": {
    "kind": "dp-bbp", "step_size": {"kind": "constant", "initial": 0.1}}}])  # fmt: skip
def test_cavity_with_a_share_or_a_sampler_of_spreads_is_refused(site, plan: dict) -> None:
    assert refusal_of(ask(site, cavity(), plan=plan)) == ("BAD_REQUEST", "plan")


def released(reply: Message) -> tuple[TrainReply, np.ndarray]:
    record = TrainReply.model_validate_json(str(reply.content["config"]["record"]))
    arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
    return record, without_prefix("last/parameters", arrays)["1.weight"]


def test_cavity_pulls_the_chain_and_costs_nothing(table_site) -> None:
    replies = {}
    for name, arrays in {"flat": None, "near": cavity(5.0, 3.0), "weak": cavity(5.0, 1e-12)}.items():
        site = table_site(name)
        site.write(ROWS)
        replies[name] = released(ask(site, arrays, source="cavity" if arrays else "sampler"))
    flat, near, weak = (replies[name][1] for name in ("flat", "near", "weak"))
    # One step from 0 with the noise of the same seed: a (1 / n) precision (mean - 0) is all the difference.
    np.testing.assert_allclose(near - flat, 0.25 / 40 * 3.0 * 5.0, rtol=1e-4)
    np.testing.assert_array_equal(weak, flat)
    assert len({record.privacy.model_dump_json() for record, _ in replies.values()}) == 1


def test_second_cavity_for_the_same_steps_is_refused(site) -> None:
    assert refusal_of(ask(site, cavity())) is None
    with site.ledger() as ledger:
        spent = ledger.spent("train").steps
    assert refusal_of(ask(site, cavity())) is None
    assert refusal_of(ask(site, cavity(mean=1.0))) is not None
    with site.ledger() as ledger:
        assert ledger.spent("train").steps == spent == 1
