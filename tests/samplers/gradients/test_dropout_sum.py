import math

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.plan import AutomaticClipping, FlatClipping, PerLayerClipping
from fl_dpbayes.config.task import CNNModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.dropout import DropoutModule
from fl_dpbayes.samplers.gradients import book_keeping, vmap
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from fl_dpbayes.samplers.gradients.stochastic import resampled

TASK = Task(input_shape=(1, 8, 8), classes=3)
MODELS = [MLPModel(hidden=(9, 7)), CNNModel(channels=(4, 40), hidden=5)]
ENGINES = [book_keeping, vmap]


def masked(one_by_one, model, count=7):
    module = one_by_one.randomise(DropoutModule(build_model(model, TASK, seed=0), rate=0.5))
    features = torch.randn(count, *TASK.input_shape, generator=torch.Generator().manual_seed(1))
    return module, *resampled(module, features, np.random.default_rng(0)), torch.arange(count) % 3


@pytest.mark.parametrize("clipping", [FlatClipping(), PerLayerClipping(), AutomaticClipping()], ids=lambda r: r.kind)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__.rsplit(".")[-1])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_sum_equals_one_by_one_with_a_mask_per_record(one_by_one, model, engine, clipping):
    _, joined, inputs, labels = masked(one_by_one, model)
    one_by_one.check(engine, joined, inputs, labels, 0.4, clipping)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_pieces_keep_each_mask_with_its_record(one_by_one, model):
    _, joined, inputs, labels = masked(one_by_one, model)
    for engine in ENGINES:
        one_by_one.check(engine, joined, inputs, labels, 0.4, rows=3)


def test_joined_gradient_is_that_of_the_masked_module(one_by_one):
    module, joined, inputs, labels = masked(one_by_one, MODELS[0])
    features = inputs[:, -64:].unflatten(1, TASK.input_shape)
    found = book_keeping.clipped_sum(joined, inputs, labels, clip_norm=math.inf).total
    torch.testing.assert_close(found.double(), one_by_one.gradient_of(module, features, labels), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_book_keeping_is_chosen(one_by_one, model):
    assert gradient_engine(masked(one_by_one, model)[0], TASK.input_shape).name == "book_keeping"


def test_normalisation_falls_back_to_vmap_and_is_right(one_by_one):
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))
    module = one_by_one.randomise(DropoutModule(base, rate=0.5))
    engine = gradient_engine(module, TASK.input_shape)
    assert engine.name == "vmap"
    features = torch.randn(5, *TASK.input_shape, generator=torch.Generator().manual_seed(1))
    joined, inputs = resampled(module, features, np.random.default_rng(0))
    labels = torch.arange(5) % 3
    one_by_one.check(engine, joined, inputs, labels, 0.4)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__.rsplit(".")[-1])
def test_empty_batch_gives_zero(one_by_one, engine):
    _, joined, inputs, labels = masked(one_by_one, MODELS[0], count=0)
    found = engine.clipped_sum(joined, inputs, labels, clip_norm=0.4)
    assert not found.total.any()
    assert found.units == 0


def test_vanishing_rate_gives_the_gradient_of_the_plain_model_limit(one_by_one):
    base = one_by_one.randomise(build_model(MODELS[1], TASK, seed=0))
    features = torch.randn(5, *TASK.input_shape, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(5) % 3
    joined, inputs = resampled(DropoutModule(base, rate=1e-9), features, np.random.default_rng(0))
    found = book_keeping.clipped_sum(joined, inputs, labels, clip_norm=0.4)
    expected = book_keeping.clipped_sum(base, features, labels, clip_norm=0.4)
    torch.testing.assert_close(found.total, expected.total)
