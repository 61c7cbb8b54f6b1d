"""Logits as a function of parameters: the vector-Jacobian product is that of finite differences, in any passes."""

import numpy as np
import pytest

from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.models import parameters as pullback
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import logits_at, to_vector, vector_to_arrays

TASK = Task(input_shape=(1, 4, 4), classes=3)


@pytest.mark.parametrize(
    "model", [LogisticModel(), MLPModel(hidden=(5,)), CNNModel(channels=(2,), hidden=3)], ids=lambda model: model.kind
)
def test_gradient_is_that_of_finite_differences(model, monkeypatch):
    generator = np.random.default_rng(0)
    module = build_model(model, TASK, 0)
    inputs = generator.uniform(size=(7, 1, 4, 4)).astype(np.float32)
    start = {
        name: array + generator.normal(scale=0.3, size=array.shape)
        for name, array in vector_to_arrays(to_vector(module), module).items()
    }
    cotangent = generator.normal(size=(7, 3))
    function = logits_at(module, inputs)
    logits, gradients_of = function(start)
    gradients = gradients_of(cotangent)
    step, direction = 1e-6, {name: generator.normal(size=array.shape) for name, array in start.items()}
    ahead, behind = (
        function({name: array + sign * step * direction[name] for name, array in start.items()})[0] for sign in (1, -1)
    )
    numeric = (cotangent * (ahead - behind)).sum() / (2 * step)
    assert sum((gradients[name] * direction[name]).sum() for name in start) == pytest.approx(numeric, rel=1e-6)
    monkeypatch.setattr(pullback, "INPUTS_PER_PASS", 3)
    again, gradients_again = logits_at(module, inputs)(start)
    np.testing.assert_allclose(again, logits, atol=1e-12)
    for name, gradient in gradients_again(cotangent).items():
        np.testing.assert_allclose(gradient, gradients[name], atol=1e-12)
