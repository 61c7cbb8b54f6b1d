"""From a model's record to a torch module whose output is logits."""

import copy
import math
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from fl_dpbayes.config import (
    CNNModel,
    LogisticModel,
    MLPModel,
    Model,
    ModuleModel,
    StridedCNNModel,
    Task,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.feature_map import feature_shape
from fl_dpbayes.models.own_module import checked_shapes, given_object, own_module
from fl_dpbayes.models.parameters import parameter_shapes

STRIDED_HIDDEN = 32
_SMALLEST_STRIDED_SIDE = 16


def build_model(
    model: Model, task: Task, seed: int, weights_folder: Path | None = None
) -> nn.Module:
    """Build a module (N, *model_input_shape) -> outputs (N, K).

    Hidden weights are uniform on [-b, b], b = sqrt(6 / fan_in), and sqrt(1 / fan_in) for kind
    `strided-cnn`, as torch draws them. Biases and the output layer are zero, so every model starts
    at the uniform prediction. torch's global generator is neither read nor moved. Of a model with a
    frozen body only the last layer is built: it has the names that it has in the whole network. An
    own module starts at what its factory draws, or at the values of its file of weights.

    Args:
        model: The model's record.
        task: It tells the shape of records and the outcome.
        seed: The same seed gives the same initial parameters.
        weights_folder: Where the weights of an own module lie.

    Returns:
        The module, on the CPU, float32; its parameters are those that are trained.

    Raises:
        UserError: Records of this shape do not fit, or an own module cannot be made.

    Source:
        He et al. 2015, eq. 10.
    """
    if isinstance(model, ModuleModel):
        return own_module(model, seed=seed, weights_folder=weights_folder)
    # To copy a small module takes a third of the time of building it.
    return copy.deepcopy(_built(model, task, seed))


@lru_cache(maxsize=2)
def _built(model: Model, task: Task, seed: int) -> nn.Sequential:
    module = _allocated(_trained_layers(model, task))
    spread = 1 if isinstance(model, StridedCNNModel) else 6
    _draw_hidden_weights(module[:-1], seed, spread=spread)
    for parameter in module[-1].parameters():
        parameter.data.zero_()
    return module


def build_body(model: Model, input_shape: tuple[int, ...], seed: int) -> nn.Sequential:
    """Build all layers but the last, as `build_model` would at the same seed.

    Args:
        model: The model's record.
        input_shape: Of a record, or (D,) of its features.
        seed: The same seed gives the same values.

    Returns:
        (N, *input_shape) -> (N, width).
    """
    body = _allocated(body_layers(model, input_shape)[0])
    _draw_hidden_weights(body, seed, spread=6)
    return body


def model_shapes(model: Model, task: Task) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's trained parameters, in the order of the flat vector.

    None is allocated but for an own module, which is checked too.

    Args:
        model: The model's record.
        task: It tells the shape of records and the outcome.

    Returns:
        Shapes by name.

    Raises:
        UserError: As `build_model`.
    """
    return _shapes(model, task, given_object(model))


@lru_cache(maxsize=64)
def _shapes(model: Model, task: Task, _identity: object) -> dict[str, tuple[int, ...]]:
    if isinstance(model, ModuleModel):
        input_shape = _body_input_shape(model, task)
        return checked_shapes(model, input_shape=input_shape, outputs=task.outcome.outputs)
    return parameter_shapes(_trained_layers(model, task))


def model_input_shape(model: Model, task: Task) -> tuple[int, ...]:
    """Return the shape of what a model sees of one record.

    Args:
        model: The model's record.
        task: It tells the shape of records.

    Returns:
        (width,) of a frozen body, (D,) of features, or the record's own shape.

    Raises:
        UserError: Records of this shape have no such features.
    """
    shape = _body_input_shape(model, task)
    if model.frozen_body is None:
        return shape
    _, width = body_layers(model, shape)
    return (width,)


def body_layers(model: Model, input_shape: tuple[int, ...]) -> tuple[nn.Sequential, int]:
    """Return all layers but the last on the meta device, where they take no memory.

    Args:
        model: The model's record.
        input_shape: Of a record, or (D,) of its features.

    Returns:
        The layers, and how many outputs they have.

    Raises:
        UserError: As `build_model`.
    """
    # The meta device draws no initial values: constructors would otherwise advance torch's global
    # generator.
    with torch.device("meta"):
        match model:
            case LogisticModel():
                return nn.Sequential(nn.Flatten()), math.prod(input_shape)
            case MLPModel():
                layers: list[nn.Module] = [nn.Flatten()]
                for inputs, outputs in pairwise([math.prod(input_shape), *model.hidden]):
                    layers += [nn.Linear(inputs, outputs), nn.ReLU()]
                return nn.Sequential(*layers), model.hidden[-1]
            case CNNModel():
                return _cnn_body(model, input_shape), model.hidden
            case StridedCNNModel():
                return _strided_cnn_body(model, input_shape), STRIDED_HIDDEN
            case ModuleModel():
                raise UserError(
                    "model.kind 'module' has no frozen_body: name the trained part by "
                    "model.trainable"
                )


def _body_input_shape(model: Model, task: Task) -> tuple[int, ...]:
    if model.features is None:
        return task.input_shape
    return feature_shape(model.features, task.input_shape)


def _trained_layers(model: Model, task: Task) -> nn.Sequential:
    body, width = body_layers(model, _body_input_shape(model, task))
    with torch.device("meta"):
        network = nn.Sequential(*body, nn.Linear(width, task.outcome.outputs))
    return network if model.frozen_body is None else network[-1:]


def _allocated(layers: nn.Sequential) -> nn.Sequential:
    # `to_empty` would do it too, and import sympy: half a second.
    for layer in layers:
        for name, parameter in list(layer.named_parameters()):
            setattr(layer, name, nn.Parameter(torch.empty(parameter.shape)))
    return layers


def _draw_hidden_weights(layers: nn.Sequential, seed: int, *, spread: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in layers:
            if not isinstance(layer, nn.Linear | nn.Conv2d):
                continue
            fan_in = layer.weight[0].numel()
            bound = math.sqrt(spread / fan_in)
            layer.weight.uniform_(-bound, bound, generator=generator)
            if layer.bias is not None:
                layer.bias.zero_()


def _check_image(kind: str, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 3:
        raise UserError(
            f"model kind {kind!r} needs records of shape (channels, height, width), not "
            f"{input_shape}: choose model kind 'mlp' or 'logistic'"
        )


def _cnn_body(model: CNNModel, input_shape: tuple[int, ...]) -> nn.Sequential:
    _check_image(model.kind, input_shape)
    channels, height, width = input_shape
    blocks = len(model.channels)
    if min(height, width) < 2**blocks:
        raise UserError(
            f"model kind 'cnn' with {blocks} blocks halves each side {blocks} times, so it needs "
            f"records of at least {2**blocks} x {2**blocks}, not {height} x {width}: list fewer "
            "channels or choose model kind 'mlp'"
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


def _strided_cnn_body(model: StridedCNNModel, input_shape: tuple[int, ...]) -> nn.Sequential:
    _check_image(model.kind, input_shape)
    channels, height, width = input_shape
    if min(height, width) < _SMALLEST_STRIDED_SIDE:
        raise UserError(
            f"model kind {model.kind!r} needs records of at least {_SMALLEST_STRIDED_SIDE} x "
            f"{_SMALLEST_STRIDED_SIDE}, not {height} x {width}: choose model kind 'cnn' or 'mlp'"
        )
    activation = nn.Tanh if model.activation == "tanh" else nn.ReLU
    layers: list[nn.Module] = []
    for inputs, outputs, kernel, padding in ((channels, 16, 8, 3), (16, 32, 4, 0)):
        convolution = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=padding)
        layers += [convolution, activation(), nn.MaxPool2d(2, stride=1)]
        # One less for the pooling.
        height, width = ((side + 2 * padding - kernel) // 2 + 1 - 1 for side in (height, width))
    flat = nn.Linear(32 * height * width, STRIDED_HIDDEN)
    return nn.Sequential(*layers, nn.Flatten(), flat, activation())
