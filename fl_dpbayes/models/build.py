"""From a model's record to a torch module whose output is logits."""

import copy
import itertools
import math
from functools import lru_cache
from pathlib import Path

import torch
from torch import nn

from fl_dpbayes.config import CNNModel, LogisticModel, MLPModel, Model, ModuleModel, Task
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.feature_map import feature_shape
from fl_dpbayes.models.own_module import checked_shapes, given_object, own_module
from fl_dpbayes.models.parameters import parameter_shapes


def build_model(
    model: Model, task: Task, seed: int, weights_folder: Path | None = None
) -> nn.Module:
    """Build a module (N, *model_input_shape) -> logits (N, classes) with repeatable initial parameters.

    Hidden weights are uniform on [-b, b], b = sqrt(6 / fan_in) (He et al. 2015, eq. 10); biases and
    the output layer are zero, so every model starts at the uniform prediction. torch's global
    generator is neither read nor moved. Of a model with a frozen body only the last layer is built:
    it has the names that it has in the whole network.

    An own module starts at what its factory draws at the seed, or at the values of its file of
    weights. `weights_folder`: where the weights of an own module lie. Returns the module, on the
    CPU, in float32; its parameters are those that are trained. Raises UserError if records of this
    shape do not fit, or an own module cannot be made.
    """
    if isinstance(model, ModuleModel):
        return own_module(model, seed, weights_folder)
    # To copy a small module takes a third of the time of building it.
    return copy.deepcopy(_built(model, task, seed))


@lru_cache(maxsize=2)
def _built(model: Model, task: Task, seed: int) -> nn.Sequential:
    module = _allocated(_trained_layers(model, task))
    _draw_hidden_weights(module[:-1], seed)
    for parameter in module[-1].parameters():
        parameter.data.zero_()
    return module


def build_body(model: Model, input_shape: tuple[int, ...], seed: int) -> nn.Sequential:
    """Build all layers but the last, (N, *input_shape) -> (N, width), as `build_model` would at the same seed."""
    body = _allocated(body_layers(model, input_shape)[0])
    _draw_hidden_weights(body, seed)
    return body


def model_shapes(model: Model, task: Task) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's trained parameters by name, in the order of the flat vector.

    None is allocated but for an own module, which is checked too. Raises UserError as
    `build_model`.
    """
    return _shapes(model, task, given_object(model))


@lru_cache(maxsize=64)
def _shapes(model: Model, task: Task, _: object) -> dict[str, tuple[int, ...]]:
    if isinstance(model, ModuleModel):
        return checked_shapes(model, _body_input_shape(model, task), task.classes)
    return parameter_shapes(_trained_layers(model, task))


def model_input_shape(model: Model, task: Task) -> tuple[int, ...]:
    """Return the shape of what a model sees of one record: (width,) of a frozen body, (D,) of features, or its own.

    Raises UserError if records of this shape have no such features.
    """
    shape = _body_input_shape(model, task)
    return shape if model.frozen_body is None else (body_layers(model, shape)[1],)


def body_layers(model: Model, input_shape: tuple[int, ...]) -> tuple[nn.Sequential, int]:
    """Return all layers but the last on the meta device, where they take no memory, and how many outputs they have.

    `input_shape` is that of a record, or (D,) of its features. Raises UserError as `build_model`.
    """
    # The meta device draws no initial values: constructors would otherwise advance torch's global
    # generator.
    with torch.device("meta"):
        match model:
            case LogisticModel():
                return nn.Sequential(nn.Flatten()), math.prod(input_shape)
            case MLPModel():
                widths = itertools.pairwise([math.prod(input_shape), *model.hidden])
                dense = [layer for pair in widths for layer in (nn.Linear(*pair), nn.ReLU())]
                return nn.Sequential(nn.Flatten(), *dense), model.hidden[-1]
            case CNNModel():
                return _cnn_body(model, input_shape), model.hidden
            case ModuleModel():
                raise UserError(
                    "model.kind 'module' has no frozen_body: name the trained part by "
                    "model.trainable"
                )


def _body_input_shape(model: Model, task: Task) -> tuple[int, ...]:
    return (
        task.input_shape
        if model.features is None
        else feature_shape(model.features, task.input_shape)
    )


def _trained_layers(model: Model, task: Task) -> nn.Sequential:
    body, width = body_layers(model, _body_input_shape(model, task))
    with torch.device("meta"):
        whole = nn.Sequential(*body, nn.Linear(width, task.classes))
    return whole if model.frozen_body is None else whole[-1:]


def _allocated(layers: nn.Sequential) -> nn.Sequential:
    # `to_empty` would do it too, and import sympy: half a second.
    for layer in layers:
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(torch.empty(parameter.shape)))
    return layers


def _draw_hidden_weights(layers: nn.Sequential, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                bound = math.sqrt(6 / layer.weight[0].numel())
                layer.weight.uniform_(-bound, bound, generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()


def _cnn_body(model: CNNModel, input_shape: tuple[int, ...]) -> nn.Sequential:
    if len(input_shape) != 3:
        problem = (
            f"model kind 'cnn' needs records of shape (channels, height, width), not {input_shape}"
        )
        raise UserError(f"{problem}: choose model kind 'mlp' or 'logistic'")
    channels, height, width = input_shape
    blocks = len(model.channels)
    if min(height, width) < 2**blocks:
        said = (
            f"model kind 'cnn' with {blocks} blocks halves each side {blocks} times, so it "
            "needs records of"
        )
        remedy = "list fewer channels or choose model kind 'mlp'"
        raise UserError(
            f"{said} at least {2**blocks} x {2**blocks}, not {height} x {width}: {remedy}"
        )
    layers: list[nn.Module] = []
    for outputs in model.channels:
        convolution = nn.Conv2d(
            channels, outputs, model.kernel_size, padding=model.kernel_size // 2
        )
        layers += [convolution, nn.ReLU(), nn.AvgPool2d(2)]
        channels = outputs
    flat = channels * (height // 2**blocks) * (width // 2**blocks)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, model.hidden), nn.ReLU())
