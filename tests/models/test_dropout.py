import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.dropout import DropoutModule
from fl_dpbayes.models.parameters import parameter_shapes, to_vector, vector_views
from tests.asking import refused
from tests.samplers.gradients.one_by_one import randomise

TASK = Task(input_shape=(1, 8, 8), classes=3)
MODELS = [MLPModel(hidden=(9, 7)), CNNModel(channels=(4, 6), hidden=5)]


def dropped(model, rate=0.5, rows=5):
    """Give a model random weights, and masks for some rows of records."""
    module = DropoutModule(randomise(build_model(model, TASK, seed=0)), rate=rate)
    module.resample(np.random.default_rng(0), rows)
    return module


def records(count=5):
    return torch.randn(count, *TASK.input_shape, generator=torch.Generator().manual_seed(1))


def run(module, vector, features):
    return functional_call(module, vector_views(vector, parameter_shapes(module)), (features,))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_only_inputs_behind_the_first_layer_and_of_trained_layers_are_dropped(model):
    module = dropped(model, rows=6)
    assert module.masks.shape == (6, 9 + 7 if model.kind == "mlp" else 4 + 24 + 5)
    assert set(module.masks.unique().tolist()) == {0.0, 2.0}
    assert to_vector(module).equal(to_vector(module.base))
    module.base[3].requires_grad_(False)
    assert DropoutModule(module.base, rate=0.5).masks.shape[1] == (
        7 if model.kind == "mlp" else 24 + 5
    )


def test_each_rate_is_the_share_dropped_and_the_mean_is_kept():
    module = dropped(MODELS[0], 0.3, 2000)
    standard_error = math.sqrt(0.3 / 0.7 / 2000)
    assert (module.masks.mean(0) - 1).abs().max().item() <= 4.5 * standard_error


def test_a_model_without_a_hidden_layer_and_masks_for_other_records_are_refused():
    refused("hidden", dropped, LogisticModel())
    module = dropped(MODELS[0])
    for use in (module, module.with_masks_as_inputs):
        with pytest.raises(ValueError, match="resample"):
            use(records(4))


def test_mask_multiplies_what_the_next_layer_reads():
    module = dropped(MODELS[0])
    first, _, second, _, third = (
        layer for layer in module.base if not isinstance(layer, nn.Flatten)
    )
    one, two = module.masks.split([9, 7], dim=1)
    hidden = torch.relu(second(torch.relu(first(records().flatten(1))) * one)) * two
    torch.testing.assert_close(module(records()), third(hidden))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_joined_inputs_give_the_same_outputs_and_may_be_cut(model):
    module = dropped(model)
    outputs = module(records())
    joined, inputs = module.with_masks_as_inputs(records())
    torch.testing.assert_close(torch.cat([joined(part) for part in inputs.split(2)]), outputs)
    assert to_vector(joined).equal(to_vector(module))
    assert module.base(records()).shape == outputs.shape


GROUPED = [
    nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Conv2d(6, 12, 3, groups=n), nn.Flatten())
    for n in (1, 2, 3)
]


@pytest.mark.parametrize(
    "base", [*(build_model(model, TASK, seed=0) for model in MODELS), *GROUPED]
)
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_draw_is_the_plain_model_with_one_mask_folded_into_its_weights(base, seed):
    module = DropoutModule(randomise(base), rate=0.5)
    vector = to_vector(module)
    source = np.random.default_rng(seed)
    before = vector.clone()
    drawn = module.draw(vector, source)
    assert vector.equal(before)
    assert not module.draw(vector, source).equal(drawn)
    module.resample(np.random.default_rng(seed), 1)
    module.masks = module.masks.expand(5, -1)
    assert 0 < module.masks.count_nonzero() < module.masks.numel()
    torch.testing.assert_close(run(module.base, drawn, records()), module(records()))
