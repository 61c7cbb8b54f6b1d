"""The arrays that requests carry: where a chain goes on, the cavity that may be its prior, and posterior samples."""

from collections.abc import Mapping

import torch
from flwr.app import Message
from torch import nn

from clients.messages import RefusedError, read_arrays
from fl_dpbayes.config.task import Model, Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.models.parameters import Shapes, arrays_to_vector
from fl_dpbayes.models.priors import Cavity
from fl_dpbayes.protocol.arrays import CAVITY, Arrays, cavity_shapes, check_cavity, prefixed, without_prefix
from fl_dpbayes.protocol.evaluate import PredictorName, Weights
from fl_dpbayes.protocol.refusal import RefusalCode
from fl_dpbayes.protocol.train import TrainRequest
from fl_dpbayes.protocol.wire import arrays_digest


def read_start(request: TrainRequest, message: Message, shapes: Shapes) -> tuple[Arrays, Arrays]:
    """Decode and check a training request's arrays, `start/<name>` and, where the plan asks for it, `cavity/<name>`.

    Returns the start state `<vector>/<name>`, and the cavity `mean/<name>`, `precision/<name>`, empty where there
    is none. Raises RefusedError BAD_REQUEST with the field that does not fit.
    """
    expected = prefixed("start", request.plan.sampler.state_shapes(shapes))
    if request.cavity is not None:
        expected |= prefixed(CAVITY, cavity_shapes(shapes))
    arrays = read_arrays(message, expected)
    start, cavity = without_prefix("start", arrays), without_prefix(CAVITY, arrays)
    if arrays_digest(start) != request.start:
        raise RefusedError(RefusalCode.BAD_REQUEST, "start")
    if request.cavity is not None:
        try:
            check_cavity(cavity, shapes)
        except ValueError:
            raise RefusedError(RefusalCode.BAD_REQUEST, "cavity") from None
        if arrays_digest(cavity) != request.cavity:
            raise RefusedError(RefusalCode.BAD_REQUEST, "cavity")
    return start, cavity


def cavity_vectors(arrays: Arrays, module: nn.Module, device: torch.device) -> Cavity | None:
    """Turn a cavity's arrays into its vectors on the chain's device; None without arrays."""
    if not arrays:
        return None
    mean, precision = (arrays_to_vector(without_prefix(part, arrays), module) for part in ("mean", "precision"))
    return Cavity(mean.to(device), precision.to(device))


def read_predictors(
    message: Message, model: Model, task: Task, predictors: Mapping[PredictorName, Weights], digest: str
) -> Arrays:
    """Read the posterior samples of all predictors and check them against the request.

    `task`: shape of a record and number of classes. `predictors`: name -> one weight per sample. Returns arrays
    `<predictor>/<name>` of shape (M, *shape). Raises RefusedError BAD_REQUEST if names, shapes or digest differ.
    """
    parameter_shapes = model_shapes(model, task)
    shapes: dict[str, tuple[int, ...]] = {}
    for predictor, weights in predictors.items():
        shapes |= prefixed(predictor, {name: (len(weights), *shape) for name, shape in parameter_shapes.items()})
    arrays = read_arrays(message, shapes)
    if arrays_digest(arrays) != digest:
        raise RefusedError(RefusalCode.BAD_REQUEST, "arrays")
    return arrays
