"""One more unit moves the clipped sum by at most C, whatever start state a hostile server sends."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from clients.own_site import compute_device
from fl_dpbayes.audit import rounding
from fl_dpbayes.audit.rounding import worst_movement
from fl_dpbayes.config.outcome import Classification
from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.dropout import DropoutModule
from fl_dpbayes.models.variational import VariationalModule
from fl_dpbayes.samplers.gradients.loss import mean_over_draws, summed_cross_entropy

VECTOR, IMAGE = (784,), (1, 12, 12)


TWO = Classification(classes=2)


def built(model, shape):
    return build_model(model, Task(input_shape=shape, classes=2), seed=0)


def one_by_one_convolutions():
    layers = [
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(576, 2),
    ]
    return nn.Sequential(*layers)


# What each moved the sum by before passes had one shape, in clip norms: 4.8, 3.0, 5.0, 2.0, 2.0,
# 3.0 and below 1.
MODULES = {
    "logistic": lambda: (built(LogisticModel(), VECTOR), VECTOR),
    "mlp": lambda: (built(MLPModel(hidden=(3,)), VECTOR), VECTOR),
    "deep": lambda: (built(MLPModel(hidden=(8, 5)), VECTOR), VECTOR),
    "wide": lambda: (built(MLPModel(hidden=(3,)), (1280,)), (1280,)),
    "cnn": lambda: (built(CNNModel(channels=(4, 4), hidden=8), IMAGE), IMAGE),
    "1x1": lambda: (one_by_one_convolutions(), IMAGE),
    "layer norm by vmap": lambda: (
        nn.Sequential(nn.Linear(784, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)),
        VECTOR,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_small_batches(name) -> None:
    assert 0.5 < worst_movement(*MODULES[name](), TWO, [1, 2, 14, 15, 16, 17]) <= 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", MODULES)
def test_batches_on_a_gpu(name) -> None:
    device = compute_device(SimpleNamespace(device="cuda"))
    module, shape = MODULES[name]()
    assert (
        0.5
        < worst_movement(
            module.to(device), shape, TWO, [*range(1, 66), *range(1018, 1044), 4096, 4109]
        )
        <= 1
    )


FEW = [63, 64, 65, 1023, 1024, 1037, 1040], [4096, 4109]
MANY = [*range(1, 66), *range(1023, 1041)], range(4090, 4111)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODULES if "norm" not in name])
def test_large_batches(name, monkeypatch) -> None:
    sizes, large = MANY if name in ("logistic", "mlp") else FEW
    assert 0.5 < worst_movement(*MODULES[name](), TWO, sizes) <= 1
    monkeypatch.setattr(rounding, "START_STATES", 1)
    assert 0.5 < worst_movement(*MODULES[name](), TWO, large) <= 1


OTHERS = {
    "draws": (
        lambda mlp: VariationalModule(mlp, 2),
        [7, 8, 15, 16],
        {"loss": mean_over_draws(summed_cross_entropy)},
    ),
    "masks": (lambda mlp: DropoutModule(mlp, 0.1), [14, 15, 16], {}),
    "patients of several records": (lambda mlp: mlp, [1, 2, 4, 5, 21], {"records_per_unit": 3}),
    "noise before the clip": (lambda mlp: mlp, [14, 15, 16], {"pre_noise": 0.01}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("module", "sizes", "more"), OTHERS.values(), ids=OTHERS)
def test_other_gradients(module, sizes, more) -> None:
    assert (
        0.5
        < worst_movement(module(built(MLPModel(hidden=(3,)), VECTOR)), VECTOR, TWO, sizes, **more)
        <= 1
    )
