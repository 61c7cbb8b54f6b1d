import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.task import CNNModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import (
    arrays_to_vector,
    parameter_shapes,
    to_vector,
    vector_loader,
    vector_to_arrays,
    vector_views,
)


@pytest.fixture
def module():
    return build_model(
        CNNModel(channels=(2,), hidden=3), Task(input_shape=(1, 4, 4), classes=2), seed=0
    )


def test_round_trip_of_one_vector_in_any_order_and_of_a_stack(module):
    size = to_vector(module).numel()
    stack = torch.arange(3.0 * size).reshape(3, size)
    arrays = vector_to_arrays(stack[1], module)
    stacked = vector_to_arrays(stack, module)
    assert {name: array.shape for name, array in arrays.items()} == parameter_shapes(module)
    assert {name: array.shape[1:] for name, array in stacked.items()} == parameter_shapes(module)
    for index in range(3):
        part = {name: array[index] for name, array in reversed(stacked.items())}
        assert torch.equal(arrays_to_vector(part, module), stack[index])
    assert vector_to_arrays(stack[:0], module)["0.weight"].shape == (0, 2, 1, 3, 3)
    arrays["0.weight"][:] = -7  # they own their memory
    assert not (stack == -7).any()


def test_loaded_vector_is_what_the_module_computes_with(module):
    vector = torch.randn(to_vector(module).numel(), generator=torch.Generator().manual_seed(0))
    vector_loader(module)(vector)
    assert torch.equal(to_vector(module), vector)
    views = vector_views(vector, parameter_shapes(module))
    records = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(module(records), torch.func.functional_call(module, views, (records,)))


def test_buffers_and_frozen_parameters_are_left_out_and_a_scalar_keeps_its_shape():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    module[1].requires_grad_(False)
    module[2].scale = nn.Parameter(torch.tensor(3.0))
    assert list(parameter_shapes(module)) == ["0.weight", "0.bias", "2.weight", "2.bias", "2.scale"]
    assert vector_to_arrays(to_vector(module), module)["2.scale"].shape == ()


def test_wrong_length_name_or_shape_is_refused(module):
    size = to_vector(module).numel()
    with pytest.raises(ValueError, match=f"has {size + 1} entries"):
        vector_loader(module)(torch.zeros(size + 1))
    arrays = vector_to_arrays(torch.zeros(size), module)
    with pytest.raises(ValueError, match=r"'0.bias' has shape \(3,\)"):
        arrays_to_vector(arrays | {"0.bias": np.zeros(3, np.float32)}, module)
    with pytest.raises(ValueError, match="'extra'"):
        arrays_to_vector(arrays | {"extra": np.zeros(3, np.float32)}, module)
