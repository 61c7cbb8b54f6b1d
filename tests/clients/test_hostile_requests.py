"""A server that wants more than it pays for: extreme numbers, oracles, averages, names, sizes."""

import resource

import numpy as np
import pytest

from fl_dpbayes.config.recalibration import ISOTONIC_BINS
from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.protocol.arrays import prefixed
from fl_dpbayes.protocol.wire import arrays_digest
from tests.asking import ROWS, evaluate, refusal_of, rows_of

PLACE = {"path": "ledger/north.sqlite", "witness": "witness/north.json"}


@pytest.mark.slow
def test_more_samples_than_a_reply_may_hold_are_refused_before_anything_is_spent(site) -> None:
    reply = site.train(plan={"rounds": 1, "steps_per_round": 1001}, steps=1001)
    assert refusal_of(reply) == ("BAD_REQUEST", "TrainRequest")
    assert rows_of(site.ledger()) == []
    assert (
        refusal_of(
            site.train(plan={"rounds": 1, "steps_per_round": 1001, "thinning": 2}, steps=1001)
        )
        is None
    )


def test_cost_too_long_to_state_is_refused_before_anything_is_spent(site, monkeypatch) -> None:
    falling = {
        "kind": "dp-sgld",
        "step_size": {"kind": "exponential", "initial": 0.25, "decay": 0.9},
    }
    asked = {
        "plan": {"sampler": falling},
        "privacy": {"coupling": "temperature", "temperature": 100.0},
    }
    monkeypatch.setattr("clients.train.MAX_HISTORY", 7)
    assert refusal_of(site.train(**asked)) == ("BAD_REQUEST", "plan.privacy.coupling")
    assert rows_of(site.ledger()) == []
    monkeypatch.setattr("clients.train.MAX_HISTORY", 8)
    assert refusal_of(site.train(**asked)) is None


def steep() -> dict:
    """Knots with an infinite slope between them, and one patient who is predicted there."""
    knots = [0.0] * (ISOTONIC_BINS - 1)
    weight = np.array([[[0.0, 0.0], [-2.372, 0.0]]], np.float32)
    arrays = prefixed("posterior", {"1.weight": weight, "1.bias": np.zeros((1, 2), np.float32)})
    recalibration = {"method": "isotonic", "parameters": [*knots, 1e-309, *knots, 1.0]}
    stated = {
        "predictors": {"posterior": [1.0]},
        "arrays": arrays_digest(arrays),
        "recalibration": recalibration,
    }
    return {"sent": arrays, **stated}


# Finite weights whose products overflow for one patient only, or that map.
@pytest.mark.parametrize(
    ("asked", "far"), [({"weight": 1e30}, 1e30), (steep(), 300.0)], ids=["predictor", "map"]
)
def test_what_fails_on_one_record_tells_nothing_of_it(table_site, asked: dict, far: float) -> None:
    # An error would say, without noise, that this patient is here.
    for name, x in (("with", far), ("without", 1.0)):
        site, split = table_site(name), {"test_fraction": 1.0, "key": "5e" * 16}
        site.write([*ROWS, ("far", x, 1.0, 1)], split=split, role="held_out", units=50)
        reply = evaluate(site, **asked)
        assert refusal_of(reply) is None
        assert all(np.isfinite(array.numpy()).all() for array in reply.content["arrays"].values())


@pytest.mark.parametrize("multiplier", [1e101, 1.7e308])
def test_noise_without_bound_is_refused_before_anything_is_spent(site, multiplier: float) -> None:
    assert refusal_of(evaluate(site, noise_multiplier=multiplier)) == (
        "POLICY_DENIED",
        "noise_multiplier",
    )
    assert rows_of(site.ledger()) == []


def test_evaluations_cannot_be_averaged_for_free(site) -> None:
    answers = [
        refusal_of(evaluate(site, round=number, noise_multiplier=1.0)) for number in range(1, 9)
    ]
    paid = answers.index(("BUDGET_EXHAUSTED", ""))
    assert answers == [None] * paid + [("BUDGET_EXHAUSTED", "")] * (8 - paid)
    assert [row.steps for row in rows_of(site.ledger())] == [1] * paid
    with site.ledger() as ledger:
        assert 6 < ledger.spent("test").epsilon <= 8
        assert ledger.spent("train").steps == 0


def test_evaluation_of_the_same_round_with_other_weights_is_refused(site) -> None:
    assert refusal_of(evaluate(site)) is None
    assert refusal_of(evaluate(site, weight=1.0)) == ("PLAN_CHANGED", "plan")


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ({"kind": "mlp", "hidden": [8192] * 8}, [2]),
        ({"kind": "logistic"}, [4096] * 3),
        ({"kind": "cnn", "channels": [8192] * 4, "kernel_size": 5, "hidden": 8192}, [4096] * 3),
    ],
)
def test_huge_model_costs_no_step_and_no_memory(site, model: dict, shape: list[int]) -> None:
    site.train()
    rows, before = rows_of(site.ledger()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reply = site.train(model=model, task={"input_shape": shape, "classes": 1000})
    assert refusal_of(reply) in (("BAD_REQUEST", "arrays"), ("POLICY_DENIED", "model"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    assert rows_of(site.ledger()) == rows


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"run": "../../../etc/passwd"}, "run"),
        ({"run": "ab" * 16 + "\n"}, "run"),
        *(({"round": number}, "round") for number in (0, 10**6 + 1)),
        ({"first_step": -1}, "first_step"),
        ({"steps": 2, "first_step": 7}, "TrainRequest"),
        # Across two chains.
        (
            {"plan": {"chains": 2, "rounds": 2, "steps_per_round": 2}, "first_step": 3, "steps": 2},
            "TrainRequest",
        ),
        ({"cohort": "a new one"}, "cohort"),
        ({"units": 10**9}, "units"),
        ({"plan": {"units": 10**9}}, "plan.units"),
        ({"plan": {"rounds": 10**6, "steps_per_round": 10**6}}, "plan"),
        (
            {"plan": {"sampler": {"kind": "dp-sgld", "step_size": 1e31}}},
            "plan.sampler.step_size.initial",
        ),
        ({"privacy": {"epsilon": float("inf")}}, "plan.privacy.epsilon"),
        ({"privacy": {"noise_multiplier": float("nan")}}, "plan.privacy.noise_multiplier"),
        ({"privacy": {"sampling_rate": 1.5}}, "plan.privacy.sampling_rate"),
        # Gradients of 1e-23 have squares of zero, and noise of 1e-46 is zero: neither bound nor
        # noise would be left.
        *(
            ({"privacy": {"clip_norm": clip_norm}}, "plan.privacy.clip_norm")
            for clip_norm in (1e-7, 1e-30, 1e-45)
        ),
    ],
)
def test_request_outside_the_protocol_is_refused_by_field(site, changes: dict, field: str) -> None:
    assert refusal_of(site.train(**changes)) == ("BAD_REQUEST", field)
    assert rows_of(site.ledger()) == []


def test_delta_is_below_one_over_every_number_of_units_that_the_declared_one_admits(
    table_site,
) -> None:
    # 40 are declared, so up to 50 may be there; and a test part is not as large as the training
    # part.
    rows = [
        (f"p{number:03d}", float(number % 7), float(number % 5), number % 2)
        for number in range(400)
    ]
    ledger = PLACE | {"cohort": "north", "epsilon": 8.0}
    site, small = table_site(), table_site("small")
    site.write(rows[:62], ledger=ledger | {"delta": 0.022})
    assert refusal_of(site.train(privacy={"delta": 0.022})) == (
        "POLICY_DENIED",
        "plan.privacy.delta",
    )
    split = {"test_fraction": 0.9, "key": "5e" * 16}
    small.write(rows, units=40, split=split, ledger=ledger | {"delta": 0.01})
    assert refusal_of(evaluate(small, delta=0.01)) == ("POLICY_DENIED", "delta")


ESCAPES = "\x1b]0;mine\x07\x1b[2J\u202e"


def test_name_of_an_unknown_key_reaches_neither_log_nor_reply_as_it_came(site, caplog) -> None:
    caplog.set_level("INFO", "fl_dpbayes.site")
    code, field = refusal_of(site.train(**{ESCAPES + "x" * 5_000_000: 1})) or ("", "")
    assert code == "BAD_REQUEST"
    code, field = refusal_of(site.train(**{ESCAPES: 1})) or ("", "")
    assert (code, field) == ("BAD_REQUEST", "?]0;mine??[2J?")
    assert len(caplog.messages) == 2
    assert all(text.isprintable() and len(text) <= 100 for text in caplog.messages)


@pytest.mark.parametrize(
    ("clip_norm", "largest_eta"),
    [(1e150, 1e-3), (5.0, 0.0)],
    ids=["clip norm", "more units than rounding allows"],
)
def test_a_fit_that_no_bound_holds_for_is_refused_before_anything_is_spent(
    table_site, monkeypatch, clip_norm: float, largest_eta: float
) -> None:
    site, split = (
        table_site("fit"),
        {"test_fraction": 0.0, "recalibration_fraction": 0.5, "key": "5e" * 16},
    )
    policy = {"max_run_epsilon": 4.0, "max_clip_norm": 1e200}
    site.write(ROWS, split=split, units=25, policy=policy)
    monkeypatch.setattr("fl_dpbayes.calibration.recalibration.descent.LARGEST_ETA", largest_eta)
    task = Task(input_shape=(2,), classes=2)
    shapes = model_shapes(LogisticModel(), task)
    samples = prefixed(
        "posterior", {name: np.zeros((1, *shape), np.float32) for name, shape in shapes.items()}
    )
    plan = {
        "method": "temperature",
        "clip_norm": clip_norm,
        "steps": 1,
        "rounds": 1,
        "step_size": 1.0,
        "epsilon": 4.0,
        "delta": 1e-3,
        "adjacency": "add_or_remove_one",
    }
    request = {
        "run": "cd" * 16,
        "round": 1,
        "task": task.model_dump(),
        "model": {"kind": "logistic"},
        "weights": [1.0],
        "arrays": arrays_digest(samples),
        "plan": plan,
        "start": [0.0],
        "first_step": 0,
        "steps": 1,
    }
    reply = site.answer("train.recalibrate", request, samples)
    assert refusal_of(reply) == ("BAD_REQUEST", "plan.clip_norm")
    assert rows_of(site.ledger()) == []
