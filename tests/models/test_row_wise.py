"""Rows that could meet are mapped: no record changes another's prediction or gradient."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import clip
from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, StridedCNNModel, Task
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.dropout import DropoutModule
from fl_dpbayes.models.mapped import mapped
from fl_dpbayes.models.row_wise import RowWise, is_chain_of_known_layers
from fl_dpbayes.models.rows import structure
from fl_dpbayes.samplers.gradients import book_keeping, layer_passes, vmap
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from fl_dpbayes.samplers.gradients.loss import summed_cross_entropy
from tests.samplers.gradients import one_by_one

ROOT = Path(__file__).parents[2]
ROWS = 64


class Of(nn.Module):
    """A function of records and of layers."""

    def __init__(self, function, *layers) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers or [nn.Linear(8, 3)])

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(rows, *self.layers)


class Backwards(torch.autograd.Function):
    """Mixes records on the way back alone."""

    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient / gradient.abs().max()


def recurrent(x, step, head):
    hidden = x.new_zeros(len(x), 8)
    for part in x.unbind(1):
        hidden = step(torch.cat([part, hidden], 1)).tanh()
    return head(hidden)


def written(x, head):
    x = x.clone()
    x[:, 0] = x[:, 1]
    x[:, 2:4] *= 2
    return head(x)


def shifted_in_place(x, head):
    x = x.clone()
    x[1:] -= x[:-1]
    return head(x)


def attention():
    return nn.MultiheadAttention(8, 2, batch_first=True)


def encoder():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def frozen(layer):
    return layer.eval().requires_grad_(False)


def causal():
    return torch.full((5, 5), -torch.inf).triu(1)


def where_it_may_be_read(x, head):
    try:
        scale = float(x.abs().max())
    except Exception:
        scale = 1.0
    return head(x) / max(scale, 1e3)


def other_data(x, head):
    x = x * 1
    x.data = x.data.roll(1, 1)
    return head(x)


USUAL = {
    "pictures": (
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
            nn.GroupNorm(2, 4),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.LocalResponseNorm(2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        (2, 8, 8),
    ),
    "stored statistics": (
        nn.Sequential(frozen(nn.BatchNorm2d(2)), nn.Flatten(), nn.Linear(32, 3)),
        (2, 4, 4),
    ),
    "encoder": (nn.Sequential(encoder(), nn.Flatten(), nn.Linear(40, 3)), (5, 8)),
    "first token": (
        Of(
            lambda x, a, b, c: b(a(torch.cat([c.weight[:1].expand(len(x), 1, 8), x], 1))[:, 0]),
            encoder(),
            nn.Linear(8, 3),
            nn.Embedding(2, 8),
        ),
        (5, 8),
    ),
    "causal": (
        Of(
            lambda x, a, b: b(a(x, x, x, attn_mask=causal())[0].mean(1)),
            attention(),
            nn.Linear(8, 3),
        ),
        (5, 8),
    ),
    "words and places": (
        Of(
            lambda x, a, p, b: b((a(x.long().clamp(0, 4)) + p(torch.arange(6))).mean(1)),
            nn.Embedding(5, 8),
            nn.Embedding(6, 8),
            nn.Linear(8, 3),
        ),
        (6,),
    ),
    "recurrent": (Of(recurrent, nn.Linear(16, 8), nn.Linear(8, 3)), (5, 8)),
    "written in place": (Of(written), (8,)),
    "own products": (
        Of(lambda x, a: a(torch.einsum("nti,nsi->nts", x, x).mean(1)), nn.Linear(5, 3)),
        (5, 8),
    ),
    "spectrum": (Of(lambda x, a: a(torch.fft.rfft(x).abs()), nn.Linear(5, 3)), (8,)),
    "gated": (
        nn.Sequential(nn.Linear(8, 16), nn.GLU(), nn.PReLU(), nn.LogSigmoid(), nn.Linear(8, 3)),
        (8,),
    ),
}

MET = {
    "maximum": Of(lambda x, a: a(x) / x.abs().max()),
    "deviation where large": Of(
        lambda x, a: a(torch.where(x.std(0, correction=0) > 1e9, x - x.mean(0), x))
    ),
    "masked by others": Of(lambda x, a: a(x.masked_fill((x > 9).any(0), 0.0))),
    "running maximum": Of(lambda x, a: a(x.cummax(0).values)),
    "rolled flat": Of(lambda x, a: a(x + x.roll(1))),
    "softmax of all": Of(lambda x, a: a(x * x.view(-1).softmax(0).view(-1, 8))),
    "each other": Of(lambda x, a: a((x @ x.mT).softmax(1) @ x)),
    "attention over records": Of(
        lambda x, m, a: a(m(x[None], x[None], x[None])[0][0]), attention(), nn.Linear(8, 3)
    ),
    "one picture of all": Of(
        lambda x, a: a(
            functional.conv1d(x.mT[None], torch.ones(8, 1, 3), padding=1, groups=8)[0].mT
        )
    ),
    "gathered": Of(lambda x, a: a(x.gather(0, torch.zeros_like(x).long()))),
    "looked up in others": Of(lambda x, a: a(functional.embedding(torch.zeros(len(x)).long(), x))),
    "added by index": Of(lambda x, a: a(x.index_add(0, torch.zeros(len(x)).long(), x))),
    "its number": Of(lambda x, a: a(x + torch.arange(len(x))[:, None])),
    "in place": Of(shifted_in_place),
    "statistics of a batch": nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)),
    "value": Of(lambda x, a: a(x) * float(x.abs().max())),
    "value, else none": Of(where_it_may_be_read),
    "other data": Of(other_data),
    "weights' values": Of(
        lambda x, a: a(x) if a.weight.data.numpy().max() < 1e3 else a(x - x.mean(0))
    ),
    "mapped over columns": Of(lambda x, a: a(torch.func.vmap(lambda c: c / c.norm(), 1, 1)(x))),
    "noise": Of(lambda x, a: a(x + torch.rand(8))),
}

BACKWARDS = {
    "function": Of(lambda x, a, b: b(Backwards.apply(a(x))), nn.Linear(8, 8), nn.Linear(8, 3)),
    "function at the end": Of(
        lambda x, a, b: Backwards.apply(b(a(x))), nn.Linear(8, 8), nn.Linear(8, 3)
    ),
    "hook": Of(lambda x, a, b: b(hooked(a(x))), nn.Linear(8, 8), nn.Linear(8, 3)),
}


def hooked(values):
    if values.requires_grad:
        values.register_hook(lambda gradient: gradient / gradient.norm())
    return values


def gradients_of(module, features):
    """Return all that book-keeping reads of each record."""
    labels = torch.zeros(len(features), dtype=torch.int64)
    layers = book_keeping.per_layer_gradients(module, features, labels, summed_cross_entropy)
    return [values for layer in layers for values in layer.rows]


@pytest.mark.parametrize("name", USUAL)
def test_modules_of_usual_layers_are_mapped_and_exact(name):
    module, shape = USUAL[name]
    module = one_by_one.randomise(module)
    features = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([module(record[None]) for record in features])
    torch.testing.assert_close(RowWise(module).features(features), expected, rtol=1e-4, atol=1e-5)
    if any(isinstance(layer, nn.MultiheadAttention) for layer in module.modules()):
        # It may be frozen, and is not trained.
        return
    for engine in (gradient_engine(module, shape), vmap):
        one_by_one.check(engine, module, features, torch.arange(5) % 3, 0.3)


@pytest.mark.parametrize("name", MET)
def test_no_record_meets_another_in_predictions_or_gradients(name):
    records = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(0))
    compute = RowWise(MET[name]).features
    for function in (lambda rows: [compute(rows)], lambda rows: gradients_of(MET[name], rows)):
        results = []
        for scale in (1.0, 1e30):
            others = records.clone()
            others[1::2] *= scale
            try:
                values = function(others)
            except (RuntimeError, ValueError, TypeError):
                # What vmap cannot take is refused before, whatever records hold.
                values = []
            results.append([value.detach()[::2].nan_to_num() for value in values])
        assert len(results[0]) == len(results[1])
        assert all(map(torch.equal, *results))


@pytest.mark.parametrize("name", BACKWARDS)
def test_no_record_meets_another_on_the_way_back(name):
    module = one_by_one.randomise(BACKWARDS[name])
    records = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(0))
    others = records.clone()
    others[1::2] *= 1e3
    try:
        first, second = (gradients_of(module, rows) for rows in (records, others))
    except RuntimeError:
        # An autograd.Function of before torch 2 cannot be mapped: it is refused before.
        return
    for values, other_values in zip(first, second, strict=True):
        assert torch.equal(values[::2], other_values[::2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["transformer block", "CNN with GroupNorm", "ResNet-18 with GroupNorm"]
)
def test_benched_modules_stay_with_book_keeping(name):
    case = clip.CASES[name]
    assert gradient_engine(case.build(), case.shape).name == "book_keeping"


@pytest.mark.parametrize(
    "model",
    [LogisticModel(), MLPModel(hidden=(5,)), CNNModel(channels=(2,), hidden=3), StridedCNNModel()],
)
@pytest.mark.parametrize("masked", [False, True])
def test_shipped_models_are_computed_at_once(model, masked, monkeypatch):
    module = build_model(model, Task(input_shape=(1, 16, 16), classes=3), seed=0)
    features = torch.randn(6, 1, 16, 16)
    if masked and len(list(module.parameters())) > 2:
        module, features = with_masks(module, features)
    monkeypatch.setattr(layer_passes, "mapped", lambda *_: pytest.fail("mapped"))
    monkeypatch.setattr("fl_dpbayes.models.row_wise.mapped", lambda *_: pytest.fail("mapped"))
    assert RowWise(module).features(features).shape == (6, 3)
    assert gradients_of(module, features)


def with_masks(module, features):
    masked = DropoutModule(module, rate=0.5)
    masked.resample(np.random.default_rng(0), len(features))
    return masked.with_masks_as_inputs(features)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Sequential(nn.Flatten(0), nn.Linear(8, 3)), (8,)),
        (nn.Sequential(nn.Flatten(1, 2), nn.Linear(8, 3)), (2, 2, 8)),
        (nn.Sequential(nn.Conv2d(ROWS, 2, 1)), (4, 4)),
        (nn.Sequential(nn.Linear(8, 3), nn.Softmax(0)), (8,)),
        (nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)), (8,)),
    ],
)
def test_chain_is_known_only_where_no_layer_of_it_can_mix(module, shape):
    assert not is_chain_of_known_layers(module, shape)


def test_a_hook_or_another_forward_makes_a_layer_unknown():
    for change in (
        lambda layer: layer.register_forward_hook(lambda *_: None),
        lambda layer: setattr(layer, "forward", lambda rows: rows / rows.max()),
    ):
        module = nn.Sequential(nn.Linear(8, 3))
        assert is_chain_of_known_layers(module, (8,))
        change(module[0])
        assert not is_chain_of_known_layers(module, (8,))


def test_an_index_beyond_a_record_s_own_table_reads_no_other_record():
    records = torch.arange(12.0).view(4, 3)
    indices = torch.tensor([[3], [-1], [0], [2]])

    def looked_up(values):
        return mapped(
            lambda index, table: functional.embedding(index, table[:, None]), indices, values
        )[..., 0, 0]

    for values in (records, records + torch.tensor([[0.0], [0.0], [100.0], [100.0]])):
        assert looked_up(values)[:2].isnan().all()
    assert looked_up(records)[2:].tolist() == [6.0, 11.0]


@pytest.mark.parametrize("fill", [torch.index_fill, Tensor.index_fill, Tensor.index_fill_])
def test_filling_by_index_which_is_shifted_into_other_records_is_refused(fill):
    with pytest.raises(UserError, match=r"torch\.where"):
        mapped(
            lambda row, index: fill(row.clone(), 0, index, 5.0),
            torch.zeros(4, 3),
            torch.full((4, 1), -1),
        )


def written_at(index, value):
    """Return a function of a record that writes a value into it, at an index that is negative."""

    def write(row):
        row = row * 1
        row[index(row)] = value
        return (row * torch.arange(1.0, 4.0)).sum()

    return write


def last_if_large(row):
    return -(row[:1] > 9).long()


@pytest.mark.parametrize("value", [0.0, 0, torch.tensor(0.0), torch.zeros(1)], ids=str)
@pytest.mark.parametrize(
    "index", [last_if_large, lambda row: (..., last_if_large(row))], ids=["index", "behind dots"]
)
def test_writing_at_a_record_s_own_index_leaves_gradients_of_others(index, value):
    records = torch.tensor([1.0, 1.0, 10.0, 1.0])[:, None].expand(4, 3)
    gradients = mapped(torch.func.grad(written_at(index, value)), records)
    small = [0.0, 2.0, 3.0]
    large = [1.0, 2.0, 0.0]
    assert gradients.tolist() == [small, small, large, small]


@pytest.mark.parametrize(
    "resize", [Tensor.resize_, lambda row, size: row.resize_as_(torch.zeros(size))]
)
def test_resizing_which_cuts_memory_across_records_is_refused(resize):
    with pytest.raises(UserError, match="resize"):
        mapped(lambda row: resize(row.clone(), 2), torch.zeros(4, 3))


def steady(values):
    return values.tanh()


def guarded(values):
    return values * (1e3 / values.abs().max()).clamp(max=1)


class ByName(nn.Module):
    """Calls what a global name means now, as the code of a notebook does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(steady(rows))


class Method(ByName):
    """Calls a method of its own."""

    def bounded(self, rows: Tensor) -> Tensor:
        return rows.tanh()

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(self.bounded(rows))


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda patch: patch.setitem(globals(), "steady", guarded),
        lambda patch: patch.setattr(steady, "__code__", guarded.__code__),
        lambda patch: patch.setattr(Method, "bounded", lambda self, rows: guarded(rows)),
    ],
    ids=["other function", "other code", "other method"],
)
def test_code_that_is_written_anew_is_another_structure(rewrite, monkeypatch):
    def modules():
        with_attribute = ByName()
        with_attribute.layer.forward = steady
        return [ByName(), Method(), with_attribute]

    before = [structure(module) for module in modules()]
    assert before == [structure(module) for module in modules()]
    rewrite(monkeypatch)
    assert before != [structure(module) for module in modules()]


def test_modules_of_the_same_code_have_one_structure():
    assert structure(ByName()) == structure(ByName())
    assert structure(nn.Linear(2, 2)) == structure(nn.Linear(2, 2))


# Files that call modules themselves: on made-up records, on chains of known layers, or on one record.
CALLERS = {
    "fl_dpbayes/models/module_checks.py",
    "fl_dpbayes/models/parameters.py",
    "fl_dpbayes/models/row_wise.py",
    "fl_dpbayes/models/variational.py",
    "fl_dpbayes/audit/gradients.py",
    "benchmarks/clip.py",
    "benchmarks/end_to_end.py",
    "fl_dpbayes/samplers/gradients/layer_passes.py",
    "fl_dpbayes/samplers/gradients/engine.py",
    "fl_dpbayes/samplers/gradients/pass_shape.py",
    "fl_dpbayes/samplers/gradients/vmap.py",
}
CALLS = {"called", "functional_call", "module", "network", "probe", "scaled"}


@pytest.mark.slow
def test_nobody_else_calls_a_module_on_records():
    found = set()
    for folder in ("fl_dpbayes", "clients", "server"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in CALLS
                ):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found <= CALLERS, found - CALLERS
