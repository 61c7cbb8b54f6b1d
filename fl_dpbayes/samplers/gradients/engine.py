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
    ROWS,
    DropoutModule,
    VariationalModule,
    check_unmoved,
    is_chain_of_known_layers,
    meeting_place,
    structure,
    trainable_parameters,
    validate_module,
)
from fl_dpbayes.samplers.gradients import book_keeping, variational, vmap
from fl_dpbayes.samplers.gradients.clipping import ClippedSum
from fl_dpbayes.samplers.gradients.stochastic import resampled

# A layer that is missed or counted twice differs by far more. Half-precision modules round each
# gradient.
_PROBE_TOLERANCE = 1e-3
_HALF_TOLERANCE = 0.05
# What an entry of the cache takes, roughly, in bytes.
_PROBE_BYTES = 2**12
_MEETING_PLACE_BYTES = 2**10
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


VMAP = GradientEngine("vmap", vmap.clipped_sum)


def gradient_engine(module: nn.Module, input_shape: tuple[int, ...]) -> GradientEngine:
    """Choose the book-keeping engine where it is exact for this module, else `torch.func.vmap`.

    Rows of a pass must not be able to meet, forwards and backwards. Whether a layer is used twice,
    or its weight is read by other code, cannot be seen from the module's parts: its sum over two
    synthetic records must equal that of their gradients by autograd, each clipped.

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
    engine = variational if isinstance(module, VariationalModule) else book_keeping
    if not engine.is_supported(module):
        return VMAP
    if where_gradients_meet(module, input_shape, rows=ROWS) is not None:
        return VMAP
    # The probe's parameters are its own: modules of one structure agree or not, whatever is trained
    # into them.
    key = ("engine", engine.clipped_sum, structure(module), input_shape)
    probe = partial(_agrees_with_autograd, engine.clipped_sum, module, input_shape)
    if KEPT.get(key, probe, lambda _: _PROBE_BYTES):
        return GradientEngine("book_keeping", engine.clipped_sum)
    return VMAP


def _plain_module(module: nn.Module) -> nn.Module:
    """Return the module without its weight draws or masks."""
    if isinstance(module, VariationalModule):
        return module.mean
    if isinstance(module, DropoutModule):
        return module.base
    return module


def where_gradients_meet(module: nn.Module, input_shape: tuple[int, ...], rows: int) -> str | None:
    """Say where records may meet in a pass of book-keeping.

    Args:
        module: What is trained.
        input_shape: Of one record.
        rows: The very number of rows of a pass: Python code may branch on it.

    Returns:
        The place, as `meeting_place` names it; None if they meet nowhere.
    """
    plain_rows = rows
    if isinstance(module, VariationalModule):
        # Its weight draws are more rows of the plain module.
        plain_rows = rows * module.draws
    if plain_rows < 2 or is_chain_of_known_layers(_plain_module(module), input_shape):
        return None
    key = ("gradients meet", structure(module), input_shape, plain_rows)
    follow = partial(_followed, module, input_shape, plain_rows)
    return KEPT.get(key, follow, lambda _: _MEETING_PLACE_BYTES)


def _followed(module: nn.Module, input_shape: tuple[int, ...], rows: int) -> str | None:
    probe = copy.deepcopy(module.mean if isinstance(module, VariationalModule) else module)
    parameter = next(iter(trainable_parameters(probe).values()))
    records = parameter.new_zeros((rows, *input_shape))
    probe, inputs = resampled(probe, records, np.random.default_rng(0))
    return meeting_place(probe, inputs.shape, compute=book_keeping.layer_rows)


def _agrees_with_autograd(
    clipped_sum: Callable[..., ClippedSum], module: nn.Module, input_shape: tuple[int, ...]
) -> bool:
    """Say whether a clipped sum over two synthetic records is that of their gradients by autograd.

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
        difference = clipped_sum(
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
