"""Chooses how the clipped sum of a module's gradients is computed."""

import copy
import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import nn

from fl_dpbayes.gradients import book_keeping, vmap
from fl_dpbayes.gradients.loss import summed_cross_entropy
from fl_dpbayes.models.parameters import trainable_parameters
from fl_dpbayes.models.validate import validate_module

# Half-precision modules round each gradient; a layer that is missed or counted twice differs by far more.
_PROBE_TOLERANCE = 0.05


class ClippedSum(Protocol):
    """A function that returns sum_i clip_C(gradient of record i's cross-entropy), shape (d,), float32."""

    def __call__(
        self, module: nn.Module, features: torch.Tensor, labels: torch.Tensor, *, clip_norm: float
    ) -> torch.Tensor:
        """Sum the clipped gradients of records (N, *shape) with labels (N,)."""
        ...


@dataclass(frozen=True)
class GradientEngine:
    """The chosen way of computing a clipped sum.

    Attributes:
        name: which way; goes into the run's record.
        clipped_sum: the function.
    """

    name: Literal["book_keeping", "vmap"]
    clipped_sum: ClippedSum


def gradient_engine(module: nn.Module, input_shape: tuple[int, ...]) -> GradientEngine:
    """Choose the book-keeping engine where it is exact for this module, else `torch.func.vmap`.

    Whether a layer is used twice, or its weight is read by other code, cannot be seen from the module's parts. Book-
    keeping is therefore chosen only if its sum over two made-up records equals the gradient that autograd gives.

    Args:
        module: features (N, *input_shape) -> logits (N, classes).
        input_shape: shape of one record.

    Returns:
        The engine.

    Raises:
        UserError: if the module mixes the records of a batch.
    """
    validate_module(module)
    if book_keeping.is_supported(module) and _agrees_with_autograd(module, input_shape):
        return GradientEngine("book_keeping", book_keeping.clipped_sum)
    return GradientEngine("vmap", vmap.clipped_sum)


def _agrees_with_autograd(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    # Random parameters: a zero output layer would hide every layer below it.
    probe = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    parameters = list(trainable_parameters(probe).values())
    for parameter in parameters:
        values = torch.randn(parameter.shape, generator=generator) / max(1, parameter[:1].numel()) ** 0.5
        parameter.data = values.to(parameter)
    records = torch.randn((2, *input_shape), generator=generator).to(parameters[0])
    labels = torch.zeros(2, dtype=torch.int64, device=records.device)
    try:
        found = book_keeping.clipped_sum(probe, records, labels, clip_norm=math.inf)
    except ValueError:
        return False
    gradients = torch.autograd.grad(summed_cross_entropy(probe(records), labels), parameters)
    expected = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
    return bool((found - expected).norm() <= _PROBE_TOLERANCE * expected.norm())
