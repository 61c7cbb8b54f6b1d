"""A model's logits at fixed inputs as a function of its parameters, with the vector-Jacobian product."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

INPUTS_PER_PASS = 2048

Pullback = Callable[[npt.NDArray[np.float64]], dict[str, npt.NDArray[np.float64]]]


def logits_at(
    module: nn.Module, inputs: npt.NDArray[np.float32]
) -> Callable[[Mapping[str, npt.NDArray]], tuple[npt.NDArray[np.float64], Pullback]]:
    """Fix a model's inputs.

    Args:
        module: gives the architecture; its own parameters are not read.
        inputs: what the model sees of records, shape (N, *shape).

    Returns:
        Parameters -> logits f(x_i; w), shape (N, classes), and the map of a cotangent v (N, classes) to gradients
        sum_i v_i^T df(x_i; w)/dw by parameter name. Activations of one pass over a part of the inputs are held at a
        time: the map computes them again. All in float64, since a line search compares nearly equal losses.
    """
    parts = torch.from_numpy(np.ascontiguousarray(inputs)).split(INPUTS_PER_PASS)

    def function(parameters: Mapping[str, npt.NDArray]) -> tuple[npt.NDArray[np.float64], Pullback]:
        values = {name: torch.tensor(array, dtype=torch.float64) for name, array in parameters.items()}
        with torch.no_grad():
            logits = np.concatenate([functional_call(module, values, (part.double(),)).numpy() for part in parts])

        def pullback(cotangent: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
            leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
            totals = {name: torch.zeros_like(value) for name, value in values.items()}
            for part, weights in zip(parts, torch.from_numpy(cotangent).split(INPUTS_PER_PASS), strict=True):
                output: Tensor = functional_call(module, leaves, (part.double(),))
                gradients = torch.autograd.grad(output, list(leaves.values()), weights)
                for total, gradient in zip(totals.values(), gradients, strict=True):
                    total += gradient
            return {name: total.numpy() for name, total in totals.items()}

        return logits, pullback

    return function
