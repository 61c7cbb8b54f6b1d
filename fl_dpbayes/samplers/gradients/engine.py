"""Chooses how the clipped sum of a module's gradients is computed."""

import copy
import math
from collections.abc import Callable
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

# Half-precision modules round each gradient; a layer that is missed or counted twice differs by far
# more.
_HALF_TOLERANCE, _PROBE_TOLERANCE = 0.05, 1e-3


@dataclass(frozen=True)
class GradientEngine:
    """The chosen way of computing a clipped sum, by name and as a function like `book_keeping.clipped_sum`."""

    name: Literal["book_keeping", "vmap"]
    clipped_sum: Callable[..., ClippedSum]


VMAP = GradientEngine("vmap", vmap.clipped_sum)


def gradient_engine(module: nn.Module, input_shape: tuple[int, ...]) -> GradientEngine:
    """Choose the book-keeping engine where it is exact for this module, else `torch.func.vmap`.

    Rows of a pass must not be able to meet, forwards and backwards. Whether a layer is used twice,
    or its weight is read by other code, cannot be seen from the module's parts: its sum over two
    synthetic records must equal that of their gradients by autograd, each clipped. Raises UserError
    if the module mixes the records of a batch, or keeps something of them.
    """
    validate_module(module)
    drawn = {VariationalModule: "mean", DropoutModule: "base"}.get(type(module))
    check_unmoved(getattr(module, drawn) if drawn else module, input_shape)
    engine = variational if isinstance(module, VariationalModule) else book_keeping
    # The probe's parameters are its own: modules of one structure agree or not, whatever is trained
    # into them.
    asked = ("engine", engine.clipped_sum, structure(module), input_shape)
    agrees = partial(_agrees_with_autograd, engine.clipped_sum, module, input_shape)
    apart = engine.is_supported(module) and where_gradients_meet(module, input_shape, ROWS) is None
    if apart and KEPT.get(asked, agrees, lambda _: 2**12):
        return GradientEngine("book_keeping", engine.clipped_sum)
    return VMAP


def where_gradients_meet(module: nn.Module, input_shape: tuple[int, ...], rows: int) -> str | None:
    """Say where records may meet in a pass of book-keeping, as `meeting_place` does; None: nowhere.

    Asked for the very number of rows of a pass, as Python code may ask for it too.
    """
    plain: nn.Module = module
    if isinstance(module, VariationalModule):
        # Its weight draws are more rows of the plain module.
        plain, rows = module.mean, rows * module.draws
    elif isinstance(module, DropoutModule):
        plain = module.base
    if rows < 2 or is_chain_of_known_layers(plain, input_shape):
        return None
    asked = ("gradients meet", structure(module), input_shape, rows)
    return KEPT.get(asked, partial(_followed, module, input_shape, rows), lambda _: 2**10)


def _followed(module: nn.Module, input_shape: tuple[int, ...], rows: int) -> str | None:
    probe = copy.deepcopy(module.mean if isinstance(module, VariationalModule) else module)
    like = next(iter(trainable_parameters(probe).values()))
    probe, inputs = resampled(probe, like.new_zeros((rows, *input_shape)), np.random.default_rng(0))
    return meeting_place(probe, inputs.shape, book_keeping.layer_rows)


def _agrees_with_autograd(
    clipped_sum: Callable[..., ClippedSum], module: nn.Module, input_shape: tuple[int, ...]
) -> bool:
    # Random parameters: a zero output layer would hide every layer below it.
    probe = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    parameters = list(trainable_parameters(probe).values())
    for parameter in parameters:
        values = torch.randn(parameter.shape, generator=generator).div_(
            max(1, parameter[:1].numel()) ** 0.5
        )
        parameter.data = values.to(parameter)
    records = torch.randn((2, *input_shape), generator=generator).to(parameters[0])
    targets = torch.zeros(2, device=records.device)
    probe, records = resampled(probe, records, np.random.default_rng(0))

    def alone(record: torch.Tensor) -> list[torch.Tensor]:
        found = torch.autograd.grad(
            _summed_squares(probe(record[None].clone()), targets), parameters
        )
        return [part for value in found for part in value.flatten().split(2**16)]

    try:
        # In turn and in parts: no copies of them all lie beside each other.
        norms = [
            math.hypot(*(float(part.double().norm()) for part in alone(record)))
            for record in records
        ]
        # Both are clipped: a layer whose rows are no records would have the right sum and the wrong
        # norms.
        norm = min(norms) / 2
        rest = clipped_sum(
            probe, records.clone(), targets, clip_norm=norm, loss=_summed_squares
        ).total
        for record, length in zip(records, norms, strict=True):
            parts = alone(record)
            for left, part in zip(rest.split([part.numel() for part in parts]), parts, strict=True):
                left.sub_(part, alpha=norm / length)
            # Before the next ones are.
            del parts, part
    except Exception:
        return False
    whole = all(parameter.dtype == torch.float32 for parameter in parameters)
    return bool(rest.norm() <= (_PROBE_TOLERANCE if whole else _HALF_TOLERANCE) * norm)


def _summed_squares(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
    return outputs.float().square().sum()
