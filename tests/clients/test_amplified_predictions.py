"""One more unit moves noised tables and fits by their sensitivity, whatever samples are sent."""

import json
import math
from itertools import pairwise

import numpy as np
import pandas
import pytest
from flwr.app import Message

from fl_dpbayes.audit.rounding import amplify
from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector, vector_to_arrays
from fl_dpbayes.privacy.splits import parts_of_units
from fl_dpbayes.protocol.arrays import prefixed
from fl_dpbayes.protocol.wire import arrays_digest

# Each of the tables read here has 784 columns.
pytestmark = pytest.mark.slow
COLUMNS, HIDDEN = 784, 3
RECORDS = np.random.default_rng(0).random((17, COLUMNS)).astype(np.float32)
LABELS = np.arange(17) % 2
KEY = "5e" * 16
NAMES = [f"p{number:03d}" for number in range(100)]
IN_PART = parts_of_units(NAMES, KEY, 0.0, 0.5) == "recalibration"
# Those who may be in the measured part, and those who train and never change.
MEASURED = [name for name, inside in zip(NAMES, IN_PART, strict=True) if inside][:17]
TRAINING = [name for name, inside in zip(NAMES, IN_PART, strict=True) if not inside][:15]


@pytest.fixture
def hospital(table_site):
    """A node with the first `count` measured patients; its noise is the same whoever is there."""

    def written(name: str, count: int, others: int, **changes: object):
        site = table_site(name)
        site.write(
            [],
            source={
                "kind": "table",
                "path": "wide.csv",
                "label": "sick",
                "classes": 2,
                "unit_column": "patient",
                "features": [f"x{column}" for column in range(COLUMNS)],
            },
            units=15,
            **changes,
        )
        records, labels = (
            np.concatenate([values[:count], values[:others]]) for values in (RECORDS, LABELS)
        )
        frame = pandas.DataFrame(records, columns=[f"x{column}" for column in range(COLUMNS)])
        frame["patient"], frame["sick"] = [*MEASURED[:count], *TRAINING[:others]], labels
        frame.to_csv(site.folder / "wide.csv", index=False)
        return site

    return written


def hostile_samples(seed: int) -> dict[str, np.ndarray]:
    module = build_model(
        MLPModel(hidden=(HIDDEN,)), Task(input_shape=(COLUMNS,), classes=2), seed=0
    )
    amplify(module, np.random.default_rng(seed))
    arrays = vector_to_arrays(to_vector(module), module)
    return prefixed("posterior", {name: value[None] for name, value in arrays.items()})


def asked(samples: dict, **more: object) -> dict:
    return {
        "run": "cd" * 16,
        "round": 1,
        "task": {"input_shape": [COLUMNS], "classes": 2},
        "model": {"kind": "mlp", "hidden": [HIDDEN]},
        "arrays": arrays_digest(samples),
    } | more


def noised(reply: Message, name: str = "noised") -> np.ndarray:
    assert "refusal" not in reply.content["config"], dict(reply.content["config"])
    return reply.content["arrays"][name].numpy()


def evaluated(site, samples: dict) -> np.ndarray:
    request = asked(samples, predictors={"posterior": [1.0]}, noise_multiplier=2.0, delta=1e-3)
    return noised(site.answer("evaluate", request, samples), "posterior/noised")


def recalibrated(site, samples: dict, plan: dict, **more: object) -> Message:
    plan = {"epsilon": 4.0, "delta": 1e-3, "adjacency": "add_or_remove_one"} | plan
    request = asked(samples, weights=[1.0], plan=plan, first_step=0, steps=1, **more)
    return site.answer("train.recalibrate", request, samples)


def counted(site, samples: dict) -> np.ndarray:
    return noised(recalibrated(site, samples, {"method": "isotonic"}))


HELD_OUT = {"others": 0, "role": "held_out", "split": {"test_fraction": 1.0, "key": KEY}}
FOR_RECALIBRATION = {
    "others": 15,
    "split": {"test_fraction": 0.0, "recalibration_fraction": 0.5, "key": KEY},
}


@pytest.mark.parametrize(
    ("answered", "part", "sensitivity"),
    [(evaluated, HELD_OUT, 1.0), (counted, FOR_RECALIBRATION, math.sqrt(3))],
    ids=["evaluation", "isotonic counts"],
)
def test_one_unit_moves_a_table_by_its_sensitivity(
    hospital, answered, part, sensitivity: float
) -> None:
    moves = []
    for seed in range(3):
        samples = hostile_samples(seed)
        tables = [
            answered(hospital(f"{seed}-{count}", count, **part), samples)
            for count in (14, 15, 16, 17)
        ]
        moves += [float(np.linalg.norm(more - fewer)) for fewer, more in pairwise(tables)]
    assert 0 < max(moves) <= sensitivity * (1 + 1e-12)


def fitted(site, samples: dict) -> np.ndarray:
    plan = {"method": "vector", "clip_norm": 0.5, "steps": 1, "rounds": 1, "step_size": 1.0}
    reply = recalibrated(site, samples, plan, start=[0.0] * 4)
    return np.array(json.loads(reply.content["config"]["record"])["parameters"])


def test_one_unit_moves_a_fit_by_the_clip_norm(hospital) -> None:
    moves = []
    for seed in range(3):
        samples = hostile_samples(seed)
        steps = [
            fitted(hospital(f"{seed}-{count}", count, **FOR_RECALIBRATION), samples)
            for count in (14, 15, 16)
        ]
        moves += [float(np.linalg.norm(more - fewer)) * 15 for fewer, more in pairwise(steps)]
    assert 0.01 < max(moves) <= 0.5 * (1 + 1e-12)
