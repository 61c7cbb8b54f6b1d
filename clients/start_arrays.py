"""What a training request's arrays hold: where the chain goes on, and the cavity that may be its prior."""

import torch
from flwr.app import Message
from torch import nn

from clients.messages import read_arrays
from clients.refused import RefusedError
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.models.parameters import arrays_to_vector
from fl_dpbayes.models.priors import Cavity
from fl_dpbayes.protocol.arrays import CAVITY, Arrays, cavity_shapes, check_cavity, prefixed, without_prefix
from fl_dpbayes.protocol.refusal import RefusalCode
from fl_dpbayes.protocol.train import TrainRequest
from fl_dpbayes.protocol.wire import arrays_digest


def read_start(request: TrainRequest, message: Message) -> tuple[Arrays, Arrays]:
    """Decode and check a training request's arrays.

    Args:
        request: what is asked.
        message: the Flower message that carries `start/<name>`, and `cavity/<name>` where the plan asks for it.

    Returns:
        The start state `<slot>/<name>`, and the cavity `mean/<name>`, `precision/<name>`, empty where there is none.

    Raises:
        RefusedError: BAD_REQUEST with the field that does not fit.
    """
    shapes = model_shapes(request.model, request.task)
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
    """Turn a cavity's arrays into its vectors.

    Args:
        arrays: `mean/<name>` and `precision/<name>`, or nothing.
        module: the plain model.
        device: where the chain's arithmetic runs.

    Returns:
        The cavity, or None without arrays.
    """
    if not arrays:
        return None
    mean, precision = (arrays_to_vector(without_prefix(part, arrays), module) for part in ("mean", "precision"))
    return Cavity(mean.to(device), precision.to(device))
