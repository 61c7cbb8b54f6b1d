"""The network of rules that compare predictions: the inputs that the server owns, and the fit to a teacher there."""

import copy
import hashlib
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

Pullback = Callable[[npt.NDArray[np.float64]], Mapping[str, npt.NDArray]]
LogitFunction = Callable[[Mapping[str, npt.NDArray]], tuple[npt.NDArray, Pullback]]

INPUTS_PER_PASS = 2048


@dataclass(frozen=True)
class Student:
    """What a rule consumes beyond released samples.

    `features` is what the model sees of the inputs.
    """

    module: nn.Module
    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64] | None
    description: dict[str, Any]


def prepare_student(public: PublicInputs, task: Task, model: Model, *, labelled: bool) -> Student:
    """Make or read the server's inputs, with labels if asked for, and compute the model's fixed features of them.

    Raises UserError if a file is absent, too large, or does not fit the task; if strokes do not fit
    the task; or if the server lacks the weights of the model's features or frozen body.
    """
    labels: npt.NDArray[np.int64] | None = None
    if isinstance(public, PublicFile):
        records = read_public_records(public.path, task, most=public.count, labelled=labelled)
        inputs, labels = records.features, records.labels
        description: dict[str, Any] = {
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
    sha256 = hashlib.sha256(np.ascontiguousarray(inputs, "<f4").data).hexdigest()
    description |= {"count": len(inputs), "labelled": labels is not None, "sha256": sha256}
    if model.features is not None:
        _check_size(len(inputs), model_input_shape(model, task))
        inputs = feature_map(
            model.features, task.input_shape, backbone_folder=backbone_folder(None)
        )(inputs)
    if model.frozen_body is not None:
        body = frozen_body(
            model, model.frozen_body, inputs.shape[1:], weights_folder=backbone_folder(None)
        )
        inputs = body(inputs)
    return Student(build_model(model, task, 0, backbone_folder(None)), inputs, labels, description)


def _check_size(count: int, shape: tuple[int, ...]) -> None:
    each = int(np.prod(shape))
    if count * each > MAX_VALUES:
        said = f"aggregation.public.count is {count}: at {each} numbers for each input at most"
        raise UserError(f"{said} {MAX_VALUES // each} fit into the server's memory: lower it")


def logits_at(module: nn.Module, inputs: npt.NDArray[np.float32]) -> LogitFunction:
    """Fix a model's inputs.

    Returns parameters -> logits f(x_i; w), (N, classes), and the map of a cotangent v (N, classes)
    to gradients sum_i v_i^T df(x_i; w)/dw by name. Activations of a part of the inputs are held at
    a time: the map computes them again. All in float64, since a line search compares nearly equal
    losses.
    """
    compute = RowWise(copy.deepcopy(module).double())
    parts = torch.tensor(inputs).split(INPUTS_PER_PASS)

    def function(parameters: Mapping[str, npt.NDArray]) -> tuple[npt.NDArray[np.float64], Pullback]:
        values = {
            name: torch.tensor(array, dtype=torch.float64) for name, array in parameters.items()
        }
        with torch.no_grad():
            logits = np.concatenate([compute(values, part.double()).numpy() for part in parts])

        def pullback(cotangent: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
            leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
            totals = {name: torch.zeros_like(value) for name, value in values.items()}
            for part, weights in zip(
                parts, torch.from_numpy(cotangent).split(INPUTS_PER_PASS), strict=True
            ):
                gradients = torch.autograd.grad(
                    compute(leaves, part.double()), list(leaves.values()), weights
                )
                for total, gradient in zip(totals.values(), gradients, strict=True):
                    total += gradient
            return {name: total.numpy() for name, total in totals.items()}

        return logits, pullback

    return function


@dataclass(frozen=True)
class Distilled:
    """A student's parameters, and its mean Kullback-Leibler divergence from the teacher at the inputs, >= 0, in nats.

    `converged`: the fit ended by itself, not at the bound on iterations.
    """

    parameters: Arrays
    divergence: float
    converged: bool


def distil(
    function: LogitFunction,
    start: Mapping[str, npt.NDArray],
    teacher_probabilities: npt.NDArray[np.float64],
    *,
    max_iterations: int,
) -> Distilled:
    """Fit a student to a teacher's probabilities by L-BFGS.

    min_w (1/N) sum_i sum_y p(y|x_i) log(p(y|x_i) / softmax(f(x_i; w))_y), whose gradient with
    respect to the logits is (softmax(f) - p) / N. Source: Hinton et al. 2015; Bhatt et al. 2024,
    "Federated learning with uncertainty via distilled predictive distributions".

    `function`: as `logits_at` returns it, at the inputs. `start`: parameter name -> initial value,
    in the order of the model. `teacher_probabilities`: p(y|x_i), (N, classes), N >= 1.
    """
    shapes = {name: tuple(array.shape) for name, array in start.items()}
    entropy = -xlogy(teacher_probabilities, teacher_probabilities).sum(axis=1).mean()

    def loss(vector: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        logits, pullback = function(state_of(vector, shapes))
        log_probabilities = log_softmax(np.asarray(logits, np.float64), axis=1)
        cross_entropy = -(teacher_probabilities * log_probabilities).sum(axis=1).mean()
        cotangent = (np.exp(log_probabilities) - teacher_probabilities) / len(teacher_probabilities)
        return float(cross_entropy - entropy), flatten_state(pullback(cotangent), shapes)

    initial = flatten_state(start, shapes)
    result = minimize(
        loss, initial, jac=True, method="L-BFGS-B", options={"maxiter": max_iterations}
    )
    # Status 1 is the bound; elsewhere the line search ends where float32 shows no descent any more.
    return Distilled(
        state_of(result.x, shapes), max(0.0, float(result.fun)), converged=result.status != 1
    )
