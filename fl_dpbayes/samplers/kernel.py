"""What every sampler is: a pair of functions that start a chain and make one step of it.

A kernel sees no record. It gets the drift, a private estimate of the gradient of the mean energy U(w) / n, in which the
clipped sum, its noise and the prior are already put together; whatever it does with it is post-processing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ChainState:
    """Where a chain stands.

    Attributes:
        vectors: named vectors of equal shape (d,), float32; always `parameters`.
        step: number of steps of this chain that lie behind it.
    """

    vectors: Mapping[str, torch.Tensor]
    step: int

    @property
    def parameters(self) -> torch.Tensor:
        """The chain's position w, shape (d,)."""
        return self.vectors["parameters"]


@dataclass(frozen=True)
class Kernel:
    """A sampler.

    Attributes:
        init: (parameters (d,), number of steps behind it) -> state, other vectors at their start values.
        step: (state, drift (d,), step size a > 0) -> next state.
    """

    init: Callable[[torch.Tensor, int], ChainState]
    step: Callable[[ChainState, torch.Tensor, float], ChainState]
