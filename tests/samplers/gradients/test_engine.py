"""Whole models, plain, with masks or draws: every engine against a backward pass per record."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.plan import FLAT, AutomaticClipping, GlobalClipping, PerLayerClipping
from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.kept import Kept
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.dropout import DropoutModule
from fl_dpbayes.models.variational import VariationalModule
from fl_dpbayes.samplers.gradients import book_keeping, vmap
from fl_dpbayes.samplers.gradients import engine as engines
from fl_dpbayes.samplers.gradients.dense_chain import dense_chain
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from fl_dpbayes.samplers.gradients.loss import mean_over_draws, summed_cross_entropy
from fl_dpbayes.samplers.gradients.stochastic import resampled
from tests.samplers.gradients import one_by_one
from tests.samplers.gradients.one_by_one import ReadElsewhere, Twice

RULES = [FLAT, PerLayerClipping(), AutomaticClipping(), GlobalClipping(bound=0.9)]
TASK = Task(input_shape=(1, 8, 8), classes=3)
MODELS = {
    "logistic": LogisticModel(),
    "mlp": MLPModel(hidden=(9, 5)),
    "cnn": CNNModel(channels=(3, 40), hidden=5),
}
KINDS = {
    "plain": lambda base: base,
    "masks": lambda base: DropoutModule(base, rate=0.5),
    "draws": lambda base: VariationalModule(base, 3),
}
ALL = [
    (kind, model) for kind in KINDS for model in MODELS if (kind, model) != ("masks", "logistic")
]
EVERY = pytest.mark.parametrize(("kind", "model"), ALL)


class TwoNames(Twice):
    def __init__(self):
        super().__init__()
        self.again = self.layer


class Tied(Twice):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(4, 4)
        self.other.weight = self.layer.weight

    def forward(self, features):
        return self.head(self.other(torch.tanh(self.layer(features))))


class ReadALittle(Twice):
    def forward(self, features):
        return self.head(self.layer(features)) + 0.02 * (features @ self.layer.weight)[:, :3]


class Unused(Twice):
    def forward(self, features):
        return self.head(torch.tanh(features))


class OwnScale(nn.Module):
    """A parameter of its own beside a layer below it."""

    def __init__(self, width=4):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.layer = nn.Linear(width, width)

    def forward(self, features):
        return self.layer(features * self.scale).tanh() + features


def batch(count, *shape):
    shape = shape or TASK.input_shape
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(
        count
    ) % 3


def of_kind(kind, base):
    """Make a module with random parameters, and what its loss is called in options."""
    base = build_model(MODELS[base], TASK, seed=0) if isinstance(base, str) else base
    loss = {"loss": mean_over_draws(summed_cross_entropy)} if kind == "draws" else {}
    return one_by_one.randomise(KINDS[kind](base)), loss


def with_draws(module, features):
    return resampled(module, features, np.random.default_rng(0))


@pytest.mark.slow
@EVERY
def test_book_keeping_is_chosen_and_all_engines_equal_one_by_one_under_every_rule_in_pieces_too(
    kind, model
):
    module, loss = of_kind(kind, model)
    features, labels = batch(6)
    chosen = gradient_engine(module, TASK.input_shape)
    assert chosen.name == "book_keeping"
    joined, inputs = with_draws(module, features)
    for clipping, (engine, rows) in itertools.product(
        RULES, itertools.product((chosen, vmap), (64, 4))
    ):
        one_by_one.check(engine, joined, inputs, labels, 0.6, clipping, rows=rows, **loss)
    found = chosen.clipped_sum(joined, inputs, labels, clip_norm=math.inf, **loss)
    expected = one_by_one.gradient_of(joined, inputs, labels, *loss.values())
    torch.testing.assert_close(found.total, expected, rtol=1e-4, atol=1e-5)
    assert found.clipped == 0


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("marked", [False, True])
def test_record_that_is_not_finite_contributes_zero_and_a_batch_of_them_or_of_none_gives_zero(
    monkeypatch, kind, model, marked
):
    if marked:
        # As on a GPU.
        monkeypatch.setattr(
            "fl_dpbayes.samplers.gradients.clipping.used_rows", lambda factors: factors > 0
        )
    module, loss = of_kind(kind, model)
    features, labels = batch(6)
    rest = torch.arange(6) != 2
    for engine in (gradient_engine(module, TASK.input_shape), vmap):
        joined, inputs = with_draws(module, features)
        for clip_norm in (0.2, math.inf):
            options = {"clip_norm": clip_norm, **loss}
            expected = engine.clipped_sum(joined, inputs[rest], labels[rest], **options).total
            for value in (math.nan, math.inf, -math.inf):
                spoilt = features.clone()
                spoilt[2, 0, 3, 3] = value
                found = engine.clipped_sum(*with_draws(module, spoilt), labels, **options).total
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        bad = with_draws(module, torch.full_like(features, math.nan))
        assert not engine.clipped_sum(*bad, labels, clip_norm=1.0, **loss).total.any()
        empty = engine.clipped_sum(
            *with_draws(module, features[:0]), labels[:0], clip_norm=1.0, **loss
        )
        assert empty.total.shape == (sum(value.numel() for value in module.parameters()),)
        assert not empty.total.any()
        assert (empty.clipped, empty.units) == (0, 0)


@pytest.mark.parametrize("model", MODELS)
def test_vanishing_rate_or_spread_gives_the_sum_of_the_plain_model_limit(model):
    base, _ = of_kind("plain", model)
    features, labels = batch(6)
    expected = book_keeping.clipped_sum(base, features, labels, clip_norm=0.4)
    if model != "logistic":
        masked = with_draws(DropoutModule(base, rate=1e-9), features)
        torch.testing.assert_close(
            book_keeping.clipped_sum(*masked, labels, clip_norm=0.4).total, expected.total
        )
    for draws in (1, 3):
        module = VariationalModule(base, draws)
        loss = mean_over_draws(summed_cross_entropy)
        for parameter in module.spread.parameters():
            parameter.data.fill_(-200.0)
        found = book_keeping.clipped_sum(
            *with_draws(module, features), labels, clip_norm=0.4, loss=loss
        )
        by_mean, by_spread = found.total.chunk(2)
        torch.testing.assert_close(by_mean, expected.total, rtol=2e-5, atol=1e-6)
        assert not by_spread.any()
        assert found.clipped == expected.clipped


def convolutions(*layers):
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.Flatten(), nn.Linear(144, 3))


@pytest.mark.parametrize(
    ("kind", "base", "shape"),
    [
        *(("plain", kind, (4,)) for kind in (Twice, TwoNames, ReadElsewhere, ReadALittle, Tied)),
        *(("draws", kind, (4,)) for kind in (Twice, TwoNames, ReadElsewhere, Unused)),
        ("draws", lambda: convolutions(nn.GroupNorm(2, 4)), (1, 8, 8)),
        ("plain", OwnScale, (4,)),
        (
            "plain",
            lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()),
            (4,),
        ),
    ],
)
def test_shared_weights_and_modules_without_shortcuts_fall_back_to_vmap_and_are_right(
    kind, base, shape
):
    module, loss = of_kind(kind, base())
    engine = gradient_engine(module, shape)
    assert engine.name == "vmap"
    assert not any("forward" in vars(layer) for layer in module.modules())
    features, labels = batch(5, *shape)
    parameters = list(module.parameters())
    joined, inputs = with_draws(module, features)
    # A second step, as a chain takes it, from other parameters.
    engine.clipped_sum(joined, inputs, labels, clip_norm=0.2, **loss)
    for parameter in parameters:
        parameter.data = parameter.data * 0.5
    if base is Unused:
        assert engine.clipped_sum(joined, inputs, labels, clip_norm=0.2, **loss).units == 5
    else:
        one_by_one.check(engine, joined, inputs, labels, 0.2, **loss)


class Branches(nn.Module):
    """Two ways through, one with layers that have no shortcut, joined in place.

    One layer trained in part.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3)
        self.mirrored = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.same = nn.Conv2d(4, 4, 3, padding="same")
        self.norm = nn.GroupNorm(2, 4)
        self.own = OwnScale(36)
        self.head = nn.Linear(36, 3)
        self.same.bias.requires_grad_(False)

    def forward(self, images):
        features = self.first(images)
        joined = self.norm(self.same(features))
        joined += self.mirrored(features)
        return self.head(self.own(nn.functional.avg_pool2d(joined.relu(), 2).flatten(1)))


def test_book_keeping_maps_over_records_only_the_layers_that_need_it():
    module, _ = of_kind("plain", Branches())
    engine = gradient_engine(module, (1, 8, 8))
    assert engine.name == "book_keeping"
    features, labels = batch(5, 1, 8, 8)
    for clipping in RULES:
        one_by_one.check(engine, module, features, labels, 0.6, clipping)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("spoilt", [False, True])
def test_chain_in_closed_form_equals_autograd_with_hooks(bias, spoilt):
    layers = (
        nn.Linear(64, 9, bias),
        nn.ReLU(True),
        nn.Linear(9, 5, bias),
        nn.Linear(5, 7, bias),
        nn.ReLU(),
    )
    module = one_by_one.randomise(nn.Sequential(nn.Flatten(), *layers, nn.Linear(7, 3, bias)))
    features, labels = batch(70)
    if spoilt:
        features[3] = math.nan
        features[40, 0, 0, 0] = math.inf
        features[69] = 1e30
    found = book_keeping.clipped_sum(module, features, labels, clip_norm=0.3)
    assert dense_chain(module) is not None
    calls = []
    # Nobody else's code may be left out.
    module[2].register_forward_hook(lambda *_: calls.append(1))
    hooked = book_keeping.clipped_sum(module, features, labels, clip_norm=0.3)
    assert dense_chain(module) is None
    assert calls
    torch.testing.assert_close(found.total, hooked.total, rtol=1e-5, atol=1e-7)
    assert (found.clipped, found.units) == (hooked.clipped, 70)


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        (nn.Linear(4, 3), nn.ReLU()),
        (nn.ReLU(), nn.Linear(4, 3)),
        (nn.Linear(4, 4), nn.Flatten(), nn.Linear(4, 4)),
        (nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 3)),
        [nn.Linear(4, 4)] * 2,
        (nn.Linear(4, 3).bfloat16(),),
        (),
    ],
)
def test_what_is_more_than_a_chain_is_none(layers):
    assert dense_chain(nn.Sequential(*layers)) is None


@pytest.mark.parametrize(("kind", "size"), [("plain", 15), ("draws", 30)])
def test_frozen_layer_has_no_part_in_norm_or_sum(kind, size):
    base = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    base[0].requires_grad_(False)
    module, loss = of_kind(kind, base)
    features, labels = batch(6, 5)
    engine = gradient_engine(module, (5,))
    joined, inputs = with_draws(module, features)
    assert engine.clipped_sum(joined, inputs, labels, clip_norm=0.3, **loss).total.shape == (size,)
    one_by_one.check(engine, joined, inputs, labels, 0.3, **loss)


def test_probe_leaves_the_module_as_it_was():
    module = build_model(MODELS["mlp"], TASK, seed=0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    gradient_engine(module, TASK.input_shape)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(value.grad is None for value in module.parameters())


def test_batch_norm_is_refused():
    with pytest.raises(UserError, match="GroupNorm"):
        gradient_engine(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
            (1, 8, 8),
        )


@pytest.mark.parametrize("engine", [book_keeping, vmap], ids=["book_keeping", "vmap"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_module_is_clipped_in_float64(engine, dtype):
    module = of_kind("plain", "mlp")[0].to(dtype)
    features, labels = batch(40)
    for record, label in zip(10 * features, labels, strict=True):
        found = engine.clipped_sum(module, record[None].to(dtype), label[None], clip_norm=0.1).total
        assert found.dtype == torch.float64
        assert found.norm().item() <= 0.1 * (1 + 1e-6)
    exact = one_by_one.gradient_of(module.float(), features[:1], labels[:1])
    module.to(dtype)
    found = engine.clipped_sum(module, features[:1].to(dtype), labels[:1], clip_norm=math.inf).total
    assert float((found - exact).norm()) <= 0.05 * float(exact.norm())


def test_an_engine_is_probed_once_for_a_structure_whatever_the_parameters(monkeypatch):
    probes = []
    plain = engines._agrees_with_autograd
    monkeypatch.setattr(engines, "KEPT", Kept())
    monkeypatch.setattr(
        engines, "_agrees_with_autograd", lambda *asked: probes.append(asked) or plain(*asked)
    )
    asked = [(2, nn.Tanh), (2, nn.Tanh), (4, nn.Tanh), (4, nn.ReLU), (4, nn.ReLU)]
    chosen = [
        gradient_engine(nn.Sequential(nn.Linear(3, size), kind()), (3,)).name
        for size, kind in asked
    ]
    assert (chosen, len(probes)) == (["book_keeping"] * 5, 3)
