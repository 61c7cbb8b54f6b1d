"""Modules with randomness of their own, such as weight noise or dropout masks, drawn afresh for each batch.

What such a module draws for the whole batch it keeps; what it draws for each record it joins to the record's features.
Engines may then cut a batch as they like: each record meets its own draw and all records meet the shared one, so that a
record more or less in the batch changes no other record's contribution.
"""

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn


@runtime_checkable
class StochasticModule(Protocol):
    """A module that draws randomness before each batch."""

    def resample(self, generator: np.random.Generator, records: int) -> None:
        """Draw afresh for a batch of that many records."""
        ...


@runtime_checkable
class MaskedModule(StochasticModule, Protocol):
    """A stochastic module that draws something for each record."""

    def with_masks_as_inputs(self, features: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
        """Return a module without state and its inputs, each record joined to its draw."""
        ...


def resampled(
    module: nn.Module, features: torch.Tensor, generator: np.random.Generator
) -> tuple[nn.Module, torch.Tensor]:
    """Draw a module's randomness for one batch of records (N, *shape), from a stream of its own.

    Returns a module with the same trainable parameters, and its inputs (N, ...), which may be cut at will. One that
    is not stochastic is returned as it is.
    """
    if isinstance(module, StochasticModule):
        module.resample(generator, len(features))
    if isinstance(module, MaskedModule):
        return module.with_masks_as_inputs(features)
    return module, features
