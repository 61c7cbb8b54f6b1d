import math

import pytest
import torch
from torch import nn

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.samplers.gradients import book_keeping, vmap
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from tests.samplers.gradients.layers_used_otherwise import ReadElsewhere, Twice

ENGINES = [book_keeping, vmap]
NAMES, KINDS = ["book_keeping", "vmap"], ["logistic", "mlp", "cnn"]
TASK = Task(input_shape=(1, 8, 8), classes=3)
MODELS = [LogisticModel(), MLPModel(hidden=(9,)), CNNModel(channels=(3, 40), hidden=5)]


class Tied(Twice):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(4, 4)
        self.other.weight = self.layer.weight

    def forward(self, features):
        return self.head(self.other(torch.tanh(self.layer(features))))


def batch(module, count=6):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, *TASK.input_shape, generator=generator), torch.arange(count) % 3


@pytest.mark.parametrize("model", MODELS, ids=KINDS)
def test_shipped_models_use_book_keeping_and_both_engines_agree(one_by_one, model):
    module = build_model(model, TASK, seed=0)
    assert gradient_engine(module, TASK.input_shape).name == "book_keeping"
    one_by_one.randomise(module)
    features, labels = batch(module)
    for engine in ENGINES:
        one_by_one.check(engine, module, features, labels, 0.2)


@pytest.mark.parametrize("kind", [Twice, ReadElsewhere, Tied])
def test_shared_weights_fall_back_to_vmap_and_are_right(one_by_one, kind):
    module = one_by_one.randomise(kind())
    engine = gradient_engine(module, (4,))
    assert engine.name == "vmap"
    features = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(5) % 3
    one_by_one.check(engine, module, features, labels, 0.2)


@pytest.mark.parametrize(
    "layer",
    [nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")],
    ids=["group_norm", "same_padding", "circular_padding"],
)
def test_other_layers_fall_back_to_vmap_and_are_right(one_by_one, layer):
    module = one_by_one.randomise(nn.Sequential(nn.Conv2d(1, 4, 3), layer, nn.Flatten(), nn.Linear(144, 3)))
    engine = gradient_engine(module, TASK.input_shape)
    assert engine.name == "vmap"
    features, labels = batch(module)
    one_by_one.check(engine, module, features, labels, 0.2)


def test_probe_leaves_the_module_as_it_was():
    module = build_model(MODELS[1], TASK, seed=0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    gradient_engine(module, TASK.input_shape)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(value.grad is None for value in module.parameters())


def test_batch_norm_is_refused():
    with pytest.raises(UserError, match="GroupNorm"):
        gradient_engine(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), (1, 8, 8))


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("model", MODELS, ids=KINDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip_norm", [0.2, math.inf])
def test_record_that_is_not_finite_contributes_zero(one_by_one, engine, model, value, clip_norm):
    module = one_by_one.randomise(build_model(model, TASK, seed=0))
    features, labels = batch(module)
    spoilt = features.clone()
    spoilt[2, 0, 3, 3] = value
    found = engine.clipped_sum(module, spoilt, labels, clip_norm=clip_norm).total
    rest = torch.arange(6) != 2
    expected = engine.clipped_sum(module, features[rest], labels[rest], clip_norm=clip_norm).total
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("model", MODELS, ids=KINDS)
def test_batch_of_bad_records_only_gives_zero(one_by_one, engine, model):
    module = one_by_one.randomise(build_model(model, TASK, seed=0))
    features = torch.full((3, 1, 8, 8), math.nan)
    found = engine.clipped_sum(module, features, torch.zeros(3, dtype=torch.int64), clip_norm=1.0).total
    assert not found.any()


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("model", MODELS, ids=KINDS)
def test_empty_batch_gives_zero(engine, model):
    module = build_model(model, TASK, seed=0)
    found = engine.clipped_sum(
        module, torch.zeros(0, *TASK.input_shape), torch.zeros(0, dtype=torch.int64), clip_norm=1.0
    )
    assert found.total.shape == (sum(value.numel() for value in module.parameters()),)
    assert not found.total.any()
    assert (found.clipped, found.units) == (0, 0)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_module_is_clipped_in_float64(one_by_one, engine, dtype):
    module = one_by_one.randomise(build_model(MODELS[1], TASK, seed=0)).to(dtype)
    features, labels = batch(module, 40)
    for record, label in zip(10 * features, labels, strict=True):
        found = engine.clipped_sum(module, record[None].to(dtype), label[None], clip_norm=0.1).total
        assert found.dtype == torch.float64
        norm = found.double().norm().item()
        assert norm <= 0.1 * (1 + 1e-6)
    exact = one_by_one.gradient_of(module.float(), features[:1], labels[:1])
    module.to(dtype)
    found = engine.clipped_sum(module, features[:1].to(dtype), labels[:1], clip_norm=math.inf).total
    assert float((found - exact).norm()) <= 0.05 * float(exact.norm())
