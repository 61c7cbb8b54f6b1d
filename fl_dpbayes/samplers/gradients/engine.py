"""Chooses how the clipped sum of a module's gradients is computed."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import nn

from fl_dpbayes.files import KEPT
from fl_dpbayes.models import (
    DropoutModule,
    VariationalModule,
    check_unmoved,
    structure,
    trainable_parameters,
    validate_module,
)
from fl_dpbayes.samplers.gradients import book_keeping, vmap
from fl_dpbayes.samplers.gradients.clipping import ClippedSum
from fl_dpbayes.samplers.gradients.stochastic import resampled

# A layer that is missed or counted twice differs by far more. Half-precision modules round each
# gradient.
_PROBE_TOLERANCE = 1e-3
_HALF_TOLERANCE = 0.05
# What an entry of the cache takes, roughly, in bytes.
_PROBE_BYTES = 2**12
# A gradient is compared in parts of so many entries: no copies of it all lie beside each other.
_PART = 2**16


@dataclass(frozen=True)
class GradientEngine:
    """A way of computing a clipped sum.

    Attributes:
        name: Which way.
        clipped_sum: A function like `book_keeping.clipped_sum`.
    """

    name: Literal["book_keeping", "vmap"]
    clipped_sum: Callable[..., ClippedSum]


BOOK_KEEPING = GradientEngine("book_keeping", book_keeping.clipped_sum)
VMAP = GradientEngine("vmap", vmap.clipped_sum)


def gradient_engine(module: nn.Module, input_shape: tuple[int, ...]) -> GradientEngine:
    """Choose the book-keeping engine where it is exact for this module, else `torch.func.vmap`.

    Whether a layer is used twice, or its weight is read by other code, cannot be seen from the
    module's parts: its sum over two synthetic records must equal that of their gradients by
    autograd, each clipped.

    Args:
        module: What is trained.
        input_shape: Of one record.

    Returns:
        The engine.

    Raises:
        UserError: The module mixes the records of a batch, or keeps something of them.
    """
    validate_module(module)
    check_unmoved(_plain_module(module), input_shape)
    if not book_keeping.is_supported(module):
        return VMAP
    # The probe's parameters are its own: modules of one structure agree or not, whatever is trained
    # into them.
    key = ("engine", structure(module), input_shape)
    probe = partial(_agrees_with_autograd, module, input_shape)
    return BOOK_KEEPING if KEPT.get(key, probe, lambda _: _PROBE_BYTES) else VMAP


def _plain_module(module: nn.Module) -> nn.Module:
    """Return the module without its weight draws or masks."""
    if isinstance(module, VariationalModule):
        return module.mean
    if isinstance(module, DropoutModule):
        return module.base
    return module


def _agrees_with_autograd(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Say whether book-keeping's sum over two synthetic records is that of autograd's gradients.

    Both records are clipped: a layer whose rows are no records would have the right sum and the
    wrong norms.
    """
    generator = torch.Generator().manual_seed(0)
    probe = _with_random_parameters(module, generator)
    parameters = list(trainable_parameters(probe).values())
    records = torch.randn((2, *input_shape), generator=generator).to(parameters[0])
    targets = torch.zeros(2, device=records.device)
    probe, records = resampled(probe, records, np.random.default_rng(0))

    def gradient_parts(record: torch.Tensor) -> list[torch.Tensor]:
        loss = _summed_squares(probe(record[None].clone()), targets)
        gradients = torch.autograd.grad(loss, parameters)
        return [part for gradient in gradients for part in gradient.flatten().split(_PART)]

    try:
        # One record after the other: no two gradients lie beside each other.
        norms = [_norm(gradient_parts(record)) for record in records]
        clip_norm = min(norms) / 2
        difference = book_keeping.clipped_sum(
            probe, records.clone(), targets, clip_norm=clip_norm, loss=_summed_squares
        ).total
        for record, norm in zip(records, norms, strict=True):
            parts = gradient_parts(record)
            _subtract_parts(difference, parts, factor=clip_norm / norm)
            # Freed before the next record's are computed.
            del parts
    except Exception:
        return False
    is_single = all(parameter.dtype == torch.float32 for parameter in parameters)
    tolerance = _PROBE_TOLERANCE if is_single else _HALF_TOLERANCE
    return bool(difference.norm() <= tolerance * clip_norm)


def _with_random_parameters(module: nn.Module, generator: torch.Generator) -> nn.Module:
    # A zero output layer would hide every layer below it.
    probe = copy.deepcopy(module)
    for parameter in trainable_parameters(probe).values():
        values = torch.randn(parameter.shape, generator=generator)
        values.div_(max(1, parameter[:1].numel()) ** 0.5)
        parameter.data = values.to(parameter)
    return probe


def _norm(parts: Sequence[torch.Tensor]) -> float:
    return math.hypot(*(float(part.double().norm()) for part in parts))


def _subtract_parts(vector: torch.Tensor, parts: Sequence[torch.Tensor], factor: float) -> None:
    pieces = vector.split([part.numel() for part in parts])
    for piece, part in zip(pieces, parts, strict=True):
        piece.sub_(part, alpha=factor)


def _summed_squares(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
    return outputs.float().square().sum()
