"""Posterior samples that a request carries, as `<predictor>/<name>` arrays."""

from collections.abc import Mapping

from flwr.app import Message

from clients.messages import read_arrays
from clients.refused import RefusedError
from fl_dpbayes.config.task import Model, Task
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.protocol.arrays import Arrays, prefixed
from fl_dpbayes.protocol.evaluate import PredictorName, Weights
from fl_dpbayes.protocol.refusal import RefusalCode
from fl_dpbayes.protocol.wire import arrays_digest


def read_predictors(
    message: Message, model: Model, task: Task, predictors: Mapping[PredictorName, Weights], digest: str
) -> Arrays:
    """Read the arrays of all predictors and check them against the request.

    Args:
        message: the request.
        model: architecture of the samples.
        task: shape of a record and number of classes.
        predictors: name -> one weight per sample.
        digest: of the arrays, as the request states it.

    Returns:
        Arrays `<predictor>/<name>` of shape (M, *shape).

    Raises:
        RefusedError: BAD_REQUEST if names, shapes or digest differ.
    """
    parameter_shapes = model_shapes(model, task)
    shapes: dict[str, tuple[int, ...]] = {}
    for predictor, weights in predictors.items():
        shapes |= prefixed(predictor, {name: (len(weights), *shape) for name, shape in parameter_shapes.items()})
    arrays = read_arrays(message, shapes)
    if arrays_digest(arrays) != digest:
        raise RefusedError(RefusalCode.BAD_REQUEST, "arrays")
    return arrays
