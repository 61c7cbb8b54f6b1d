"""The network of rules that compare predictions.

The inputs that the server has, and the fit to a teacher there.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, xlogy
from torch import nn

from fl_dpbayes.config import Model, PublicFile, PublicInputs, Task, backbone_folder
from fl_dpbayes.data import MAX_VALUES, read_public_records, synthetic_inputs
from fl_dpbayes.errors import UserError
from fl_dpbayes.models import RowWise, build_model, model_input_shape
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.models.frozen_body import frozen_body
from fl_dpbayes.posterior.chains import flatten_state, state_of
from fl_dpbayes.protocol import Arrays

Floats = npt.NDArray[np.float64]
Pullback = Callable[[Floats], Mapping[str, npt.NDArray]]
LogitFunction = Callable[[Mapping[str, npt.NDArray]], tuple[npt.NDArray, Pullback]]

INPUTS_PER_PASS = 2048
# What SciPy's minimiser ends with at the bound on iterations.
_STATUS_OF_BOUND = 1


@dataclass(frozen=True)
class Student:
    """What a rule consumes beyond released samples.

    Attributes:
        module: The network.
        features: What it sees of the inputs, shape (N, ...).
        labels: Of the inputs, shape (N,), if they were asked for.
        description: Of the inputs, for the summary.
    """

    module: nn.Module
    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64] | None
    description: dict[str, Any]


def prepare_student(public: PublicInputs, task: Task, model: Model, *, labelled: bool) -> Student:
    """Make or read the server's inputs, and compute the model's fixed features of them.

    Args:
        public: The scenario's section.
        task: Of the scenario.
        model: Of the scenario.
        labelled: Whether labels are needed.

    Returns:
        The network with its inputs.

    Raises:
        UserError: If a file is absent, too large, or does not fit the task; if strokes do not fit
            the task; or if the server lacks the weights of the model's features or frozen body.
    """
    labels: npt.NDArray[np.int64] | None = None
    description: dict[str, Any]
    if isinstance(public, PublicFile):
        records = read_public_records(public.path, task, most=public.count, labelled=labelled)
        inputs = records.features
        labels = records.labels
        description = {
            "kind": "file",
            "file": public.path.name,
            "statement": public.statement,
        }
    else:
        _check_size(public.count, task.input_shape)
        inputs = synthetic_inputs(
            public.pattern, public.count, task.input_shape, np.random.default_rng(public.seed)
        )
        description = {"kind": "synthetic", "pattern": public.pattern, "statement": ""}
    description |= {"count": len(inputs), "labelled": labels is not None}
    features = _fixed_features(inputs, task, model)
    return Student(
        module=build_model(model, task, 0, backbone_folder(None)),
        features=features,
        labels=labels,
        description=description,
    )


def _fixed_features(
    inputs: npt.NDArray[np.float32], task: Task, model: Model
) -> npt.NDArray[np.float32]:
    """Apply the parts of a model that are not trained."""
    weights_folder = backbone_folder(None)
    if model.features is not None:
        _check_size(len(inputs), model_input_shape(model, task))
        features = feature_map(model.features, task.input_shape, backbone_folder=weights_folder)
        inputs = features(inputs)
    if model.frozen_body is not None:
        body = frozen_body(
            model, model.frozen_body, inputs.shape[1:], weights_folder=weights_folder
        )
        inputs = body(inputs)
    return inputs


def _check_size(count: int, shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    if count * size > MAX_VALUES:
        raise UserError(
            f"aggregation.public.count is {count}: at {size} numbers for each input at most "
            f"{MAX_VALUES // size} fit into the server's memory: lower it"
        )


def logits_at(module: nn.Module, inputs: npt.NDArray[np.float32]) -> LogitFunction:
    """Fix a model's inputs.

    Activations of a part of the inputs are held at a time: the map of cotangents computes them
    again. All in float64, since a line search compares nearly equal losses.

    Args:
        module: f.
        inputs: x_i, shape (N, ...).

    Returns:
        Parameters w -> logits f(x_i; w), (N, classes), and the map of a cotangent v (N, classes) to
        gradients sum_i v_i^T df(x_i; w)/dw by name.
    """
    compute = RowWise(copy.deepcopy(module).double())
    parts = torch.tensor(inputs).split(INPUTS_PER_PASS)

    def function(parameters: Mapping[str, npt.NDArray]) -> tuple[Floats, Pullback]:
        values = {
            name: torch.tensor(array, dtype=torch.float64) for name, array in parameters.items()
        }
        with torch.no_grad():
            logits = np.concatenate([compute(values, part.double()).numpy() for part in parts])

        def pullback(cotangent: Floats) -> dict[str, Floats]:
            leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
            totals = {name: torch.zeros_like(value) for name, value in values.items()}
            cotangents = torch.from_numpy(cotangent).split(INPUTS_PER_PASS)
            for part, part_cotangent in zip(parts, cotangents, strict=True):
                part_logits = compute(leaves, part.double())
                gradients = torch.autograd.grad(part_logits, list(leaves.values()), part_cotangent)
                for total, gradient in zip(totals.values(), gradients, strict=True):
                    total += gradient
            return {name: total.numpy() for name, total in totals.items()}

        return logits, pullback

    return function


@dataclass(frozen=True)
class Distilled:
    """A student that was fitted to a teacher.

    Attributes:
        parameters: The student's.
        divergence: Its mean Kullback-Leibler divergence from the teacher at the inputs, >= 0, in
            nats.
        converged: Whether the fit ended by itself, not at the bound on iterations.
    """

    parameters: Arrays
    divergence: float
    converged: bool


def distil(
    function: LogitFunction,
    start: Mapping[str, npt.NDArray],
    teacher_probabilities: Floats,
    *,
    max_iterations: int,
) -> Distilled:
    """Fit a student to a teacher's probabilities by L-BFGS.

        min_w (1/N) sum_i sum_y p(y|x_i) log(p(y|x_i) / softmax(f(x_i; w))_y)

    Its gradient with respect to the logits is (softmax(f) - p) / N.

    Args:
        function: As `logits_at` returns it, at the inputs.
        start: Parameter name -> initial value, in the order of the model.
        teacher_probabilities: p(y|x_i), shape (N, classes), N >= 1.
        max_iterations: Bound on the iterations.

    Returns:
        The student.

    Source: Hinton et al. 2015; Bhatt et al. 2024, "Federated learning with uncertainty via
    distilled predictive distributions".
    """
    shapes = {name: tuple(array.shape) for name, array in start.items()}
    entropy = -xlogy(teacher_probabilities, teacher_probabilities).sum(axis=1).mean()

    def loss(vector: Floats) -> tuple[float, Floats]:
        logits, pullback = function(state_of(vector, shapes))
        log_probabilities = log_softmax(np.asarray(logits, np.float64), axis=1)
        cross_entropy = -(teacher_probabilities * log_probabilities).sum(axis=1).mean()
        cotangent = (np.exp(log_probabilities) - teacher_probabilities) / len(teacher_probabilities)
        return float(cross_entropy - entropy), flatten_state(pullback(cotangent), shapes)

    result = minimize(
        loss,
        flatten_state(start, shapes),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iterations},
    )
    # Elsewhere than at the bound the line search ends where float32 shows no descent any more.
    return Distilled(
        parameters=state_of(result.x, shapes),
        divergence=max(0.0, float(result.fun)),
        converged=result.status != _STATUS_OF_BOUND,
    )
