"""The arrays that requests carry: where a chain goes on, and posterior samples."""

from collections.abc import Mapping

from flwr.app import Message

from clients.messages import RefusedError, read_arrays
from fl_dpbayes.config.task import Model, Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.models.parameters import Shapes
from fl_dpbayes.protocol.arrays import Arrays, prefixed, without_prefix
from fl_dpbayes.protocol.evaluate import PredictorName, Weights
from fl_dpbayes.protocol.refusal import RefusalCode
from fl_dpbayes.protocol.train import TrainRequest
from fl_dpbayes.protocol.wire import arrays_digest


def read_start(request: TrainRequest, message: Message, shapes: Shapes) -> Arrays:
    """Decode and check a training request's arrays `start/<name>`.

    Returns the start state `<vector>/<name>`. Raises RefusedError BAD_REQUEST with the field that does not fit.
    """
    arrays = read_arrays(message, prefixed("start", request.plan.sampler.state_shapes(shapes)))
    start = without_prefix("start", arrays)
    if arrays_digest(start) != request.start:
        raise RefusedError(RefusalCode.BAD_REQUEST, "start")
    return start


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
