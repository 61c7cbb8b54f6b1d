"""Which records a recalibration reads: those that the keyed hash keeps for it, and no other."""

from unittest.mock import Mock

import numpy as np
import pytest

import clients.recalibrate
from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.privacy.splits import unit_scores
from fl_dpbayes.protocol.wire import arrays_digest

KEY = "5e" * 16
PATIENTS = 60
PLAN = {"epsilon": 2.0, "delta": 1e-3, "adjacency": "add_or_remove_one"}
DESCENT = PLAN | {"method": "temperature", "clip_norm": 1.0, "steps": 2, "rounds": 1, "step_size": 0.5}
COUNT = PLAN | {"method": "isotonic"}


def patients_kept_for(low: float, high: float) -> set[int]:
    scores = unit_scores([f"p{number}" for number in range(PATIENTS)], bytes.fromhex(KEY))
    return {number for number, score in enumerate(scores) if low <= score < high}


@pytest.mark.parametrize(("plan", "steps", "start"), [(DESCENT, 2, [0.0]), (COUNT, 1, None)])
def test_recalibration_reads_the_units_that_are_kept_for_it(table_site, monkeypatch, plan, steps, start) -> None:
    site = table_site()
    rows = [(f"p{number}", float(number), 0.5, number % 2) for number in range(PATIENTS) for _ in range(2)]
    split = {"test_fraction": 0.25, "recalibration_fraction": 0.25, "key": KEY}
    site.write(rows, units=len(patients_kept_for(0.5, 1.0)), split=split)
    watched = Mock(wraps=clients.recalibrate.predictive_probabilities)
    monkeypatch.setattr(clients.recalibrate, "predictive_probabilities", watched)
    task = Task(input_shape=(2,), classes=2)
    shapes = model_shapes(LogisticModel(), task)
    arrays = {f"posterior/{name}": np.zeros((1, *shape), np.float32) for name, shape in shapes.items()}
    request = {
        "run": "ab" * 16, "round": 1, "task": task.model_dump(), "model": {"kind": "logistic"}, "weights": [1.0],
        "arrays": arrays_digest(arrays), "plan": plan, "first_step": 0, "steps": steps, "start": start,
    }  # fmt: skip
    reply = site.answer("train.recalibrate", request, arrays)
    assert "record" in reply.content["config"]
    watched.assert_called_once()
    assert set(watched.call_args.args[3][:, 0].astype(int)) == patients_kept_for(0.25, 0.5)
