"""From a model's record to a torch module whose output is logits."""

import itertools
import math

import torch
from torch import nn

from fl_dpbayes.errors import UserError
from fl_dpbayes.models.feature_map import feature_shape
from fl_dpbayes.models.parameters import parameter_shapes
from fl_dpbayes.protocol.task import CNNModel, LogisticModel, MLPModel, Model, Task


def build_model(model: Model, task: Task, seed: int) -> nn.Module:
    """Build a module (N, *model_input_shape) -> logits (N, classes) with repeatable initial parameters.

    Hidden weights are uniform on [-b, b], b = sqrt(6 / fan_in) (He et al. 2015, eq. 10); biases and the output layer
    are zero, so every model starts at the uniform prediction. torch's global generator is neither read nor moved.

    Args:
        model: which architecture.
        task: shape of a record and number of classes.
        seed: seed of the initial parameters, any integer that torch accepts.

    Returns:
        The module, on the CPU, in float32, in training mode.

    Raises:
        UserError: if the architecture cannot take records of this shape.
    """
    module = _architecture(model, task).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    with torch.no_grad():
        for layer in layers[:-1]:
            bound = math.sqrt(6 / layer.weight[0].numel())
            layer.weight.uniform_(-bound, bound, generator=generator)
        layers[-1].weight.zero_()
        for layer in layers:
            if layer.bias is not None:
                layer.bias.zero_()
    return module


def model_shapes(model: Model, task: Task) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a model's parameters without allocating them.

    Args:
        model: which architecture.
        task: shape of a record and number of classes.

    Returns:
        Parameter name -> shape, in the order of the flat parameter vector.

    Raises:
        UserError: if the architecture cannot take records of this shape.
    """
    return parameter_shapes(_architecture(model, task))


def model_input_shape(model: Model, task: Task) -> tuple[int, ...]:
    """Return the shape of what a model sees of one record: the record's own, or that of its features.

    Args:
        model: its features, if it has any.
        task: shape of a record.

    Returns:
        (D,) with features, else the task's shape.

    Raises:
        UserError: if records of this shape have no such features.
    """
    return task.input_shape if model.features is None else feature_shape(model.features, task.input_shape)


def _architecture(model: Model, task: Task) -> nn.Module:
    # The meta device draws no initial values: constructors would otherwise advance torch's global generator.
    with torch.device("meta"):
        match model:
            case LogisticModel():
                return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(model_input_shape(model, task)), task.classes))
            case MLPModel():
                return _mlp(model, task)
            case CNNModel():
                return _cnn(model, task)


def _mlp(model: MLPModel, task: Task) -> nn.Module:
    widths = [math.prod(model_input_shape(model, task)), *model.hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], task.classes))


def _cnn(model: CNNModel, task: Task) -> nn.Module:
    if len(task.input_shape) != 3:
        raise UserError(
            f"model kind 'cnn' needs records of shape (channels, height, width), not {task.input_shape}: "
            "choose model kind 'mlp' or 'logistic'"
        )
    channels, height, width = task.input_shape
    blocks = len(model.channels)
    if min(height, width) < 2**blocks:
        raise UserError(
            f"model kind 'cnn' with {blocks} blocks halves each side {blocks} times, so it needs records of at least "
            f"{2**blocks} x {2**blocks}, not {height} x {width}: list fewer channels or choose model kind 'mlp'"
        )
    layers: list[nn.Module] = []
    for outputs in model.channels:
        layers += [
            nn.Conv2d(channels, outputs, model.kernel_size, padding=model.kernel_size // 2),
            nn.ReLU(),
            nn.AvgPool2d(2),
        ]
        channels = outputs
    flat = channels * (height // 2**blocks) * (width // 2**blocks)
    dense = [nn.Flatten(), nn.Linear(flat, model.hidden), nn.ReLU(), nn.Linear(model.hidden, task.classes)]
    return nn.Sequential(*layers, *dense)
