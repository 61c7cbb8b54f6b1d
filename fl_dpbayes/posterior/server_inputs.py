"""Inputs that the server owns, for the rules that compare predictions: made-up ones, or records declared public."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.data_folder import backbone_folder
from fl_dpbayes.config.distillation import PublicFile, PublicInputs
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.task import Model, Task
from fl_dpbayes.data.public_records import MAX_VALUES, read_public_records, synthetic_inputs
from fl_dpbayes.models.build import model_input_shape
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.models.frozen_body import frozen_body


@dataclass(frozen=True)
class ServerInputs:
    """What a rule consumes beyond released samples.

    Attributes:
        features: what the model sees of the inputs, float32, (N, *model_input_shape).
        labels: classes of public records, int64, (N,), where they were asked for.
        description: what the run's record says of them.
    """

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64] | None
    description: dict[str, Any]


def server_inputs(public: PublicInputs, task: Task, model: Model, *, labelled: bool) -> ServerInputs:
    """Make or read the server's inputs and compute the model's fixed features of them.

    Args:
        public: the scenario's section.
        task: shape of a record and number of classes.
        model: its features, if it has any.
        labelled: public records must have labels.

    Returns:
        The inputs.

    Raises:
        UserError: if a file is absent, too large, or does not fit the task; if strokes do not fit the task; or if the
            server lacks the weights of the model's features or frozen body.
    """
    labels: npt.NDArray[np.int64] | None = None
    if isinstance(public, PublicFile):
        records = read_public_records(public.path, task, most=public.count, labelled=labelled)
        inputs, labels = records.features, records.labels
        description: dict[str, Any] = {"kind": "file", "file": public.path.name, "statement": public.statement}
    else:
        _check_size(public.count, task.input_shape)
        inputs = synthetic_inputs(public.pattern, public.count, task.input_shape, np.random.default_rng(public.seed))
        description = {"kind": "synthetic", "pattern": public.pattern, "statement": ""}
    description |= {
        "count": len(inputs),
        "labelled": labels is not None,
        "sha256": hashlib.sha256(np.ascontiguousarray(inputs, "<f4").data).hexdigest(),
    }
    if model.features is not None:
        _check_size(len(inputs), model_input_shape(model, task))
        inputs = feature_map(model.features, task.input_shape, backbone_folder=backbone_folder(None))(inputs)
    if model.frozen_body is not None:
        body = frozen_body(model, model.frozen_body, inputs.shape[1:], weights_folder=backbone_folder(None))
        inputs = body(inputs)
    return ServerInputs(inputs, labels, description)


def _check_size(count: int, shape: tuple[int, ...]) -> None:
    each = int(np.prod(shape))
    if count * each > MAX_VALUES:
        raise UserError(
            f"aggregation.public.count is {count}: at {each} numbers for each input at most {MAX_VALUES // each} fit "
            "into the server's memory: lower it"
        )
