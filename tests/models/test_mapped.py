"""Code that could reach around `torch.func.vmap`: rules of its own, other doors, what it keeps."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.mapped import mapped
from fl_dpbayes.models.row_wise import RowWise, is_chain_of_known_layers
from fl_dpbayes.samplers.gradients.dense_chain import dense_chain
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords
from fl_dpbayes.schedules.planned import ChainStreams

WIDTH = 6


class WithItsOwnRule(torch.autograd.Function):
    """Of one record the identity; its rule bounds all records together once one is large."""

    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, values):
        return values * (1e4 / values.abs().max()).clamp(max=1), 0


class Filling(torch.autograd.Function):
    """Fills beyond its record where that record is large."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values):
        return torch.index_fill(values, 0, place(values), 0.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@torch.library.custom_op("fl_dpbayes_tests::bounded", mutates_args=())
def bounded(values: Tensor) -> Tensor:
    return values * (1e4 / values.abs().max()).clamp(max=1)


@torch.library.register_vmap("fl_dpbayes_tests::bounded")
def bounded_together(info, in_dims, values):
    return bounded(values), 0


class Bounding(nn.Parameter):
    """A weight whose class bounds all rows together."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if func is not functional.linear:
                return result
            return result * (1e4 / result.detach().abs().max()).clamp(max=1)


class Keeping(nn.Module):
    """Keeps the largest value that it saw, which does nothing before one is large."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 3)
        self.largest = torch.tensor(1e4)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.first(rows)
        self.largest = torch.maximum(self.largest, hidden.detach().abs().max())
        return self.last(hidden * (1e4 / self.largest))


class CalledThroughAHook(nn.Module):
    """Its gradient goes through a function of before torch 2, which cannot be mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 3)
        self.first.register_full_backward_hook(lambda layer, inputs, outputs: None)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(self.first(rows).tanh())


def place(values: Tensor) -> Tensor:
    """Return an index that lies beyond a record that is large."""
    return torch.where(values.detach().abs().max() > 1e9, WIDTH + 1, 0)[None]


def records(count: int = 8) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(0))


def passes_of(module: nn.Module) -> BatchGradient:
    arrays = np.ascontiguousarray(records().numpy())
    training = TrainingRecords(arrays, np.zeros(8, np.int64), np.arange(8))
    streams = ChainStreams(*map(np.random.default_rng, range(4)))
    privacy = PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=1.0)
    return BatchGradient(module, training, privacy, 8, streams)


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (WithItsOwnRule.apply, "generate_vmap_rule"),
        (torch.ops.fl_dpbayes_tests.bounded.default, "register_vmap"),
        (torch.ops.fl_dpbayes_tests.bounded, "register_vmap"),
        (bounded, "register_vmap"),
        (lambda row: torch.ops.aten.index_fill(row, 0, place(row), 0.0), "index_fill"),
        (lambda row: torch.ops.aten.index_fill.int_Scalar(row, 0, place(row), 0.0), "index_fill"),
        (lambda row: torch.ops.aten.resize_(row.clone(), [3]), "resize_"),
        (Filling.apply, "index_fill"),
    ],
)
def test_what_would_reach_another_record_is_refused_with_the_remedy(function, remedy):
    with pytest.raises(UserError, match=remedy):
        mapped(function, records())


@pytest.mark.parametrize("look_up", [torch.ops.aten.embedding, torch.ops.aten.embedding.default])
def test_an_operator_looks_up_no_other_records_table(look_up):
    def looked_up(row: Tensor) -> Tensor:
        return look_up(row[:, None], 6 * (row[0].abs() > 1e9).long()[None])

    rows = records()
    rows[2] = 1e30
    result = mapped(looked_up, rows)
    assert result[2].isnan().all()
    assert torch.equal(result[[0, 1, 3]][:, 0, 0], rows[[0, 1, 3], 0])


@pytest.mark.parametrize("keep", [list.append, lambda kept, row: kept.append(row * 1)])
def test_what_is_kept_of_a_pass_is_not_read_in_the_next(keep):
    kept: list[Tensor] = []

    def summed(row: Tensor) -> Tensor:
        total = row + sum(kept[-1:])
        keep(kept, row)
        return total

    mapped(summed, records())
    with pytest.raises(UserError, match="keeps something"):
        mapped(summed, records())


@pytest.mark.parametrize("method", ["forward", "setup_context", "backward"])
def test_what_a_function_keeps_of_a_pass_is_not_read_in_the_next(method):
    kept: dict[str, Tensor] = {}

    def added(values: Tensor, name: str) -> Tensor:
        return values + kept.setdefault(name, values) if name == method else values

    class KeepingFunction(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(values):
            return 2 * added(values, "forward")

        @staticmethod
        def setup_context(ctx, inputs, output):
            added(inputs[0], "setup_context")
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient * added(ctx.saved_tensors[0], "backward")

    def gradient(record: Tensor) -> Tensor:
        return torch.func.grad(lambda values: KeepingFunction.apply(values).sum())(record)

    mapped(gradient, torch.randn(3, WIDTH))
    with pytest.raises(UserError, match="keeps something"):
        mapped(gradient, torch.zeros(3, WIDTH))


def test_constants_may_be_kept():
    kept: list[Tensor] = []

    def masked(row: Tensor) -> Tensor:
        kept.append(torch.arange(WIDTH) * 2)
        return row * kept[0]

    first, second = (
        mapped(torch.func.grad(lambda row: masked(row).sum()), records()) for _ in "12"
    )
    assert torch.equal(first, second)


def test_a_module_that_keeps_the_largest_value_of_earlier_passes_is_refused():
    with pytest.raises(UserError, match="keeps something"):
        passes_of(Keeping())
    compute = RowWise(Keeping()).features
    compute(records())
    with pytest.raises(UserError, match="keeps something"):
        compute(records())


def test_a_weight_of_another_class_is_no_known_layer():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))
    assert is_chain_of_known_layers(module, (WIDTH,))
    module[0].weight = Bounding(module[0].weight.data)
    assert not is_chain_of_known_layers(module, (WIDTH,))
    large = records()
    large[1::2] *= 1e9
    first, second = (RowWise(module).features(rows)[::2] for rows in (records(), large))
    assert torch.equal(first, second)


def test_a_chain_has_no_hook_of_any_kind():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))
    assert dense_chain(module) is not None
    module[2].register_full_backward_pre_hook(lambda layer, gradients: gradients)
    assert dense_chain(module) is None


def test_a_gradient_that_cannot_be_mapped_is_refused_in_a_sentence():
    with pytest.raises(UserError, match="cannot be computed record by record"):
        passes_of(CalledThroughAHook())
