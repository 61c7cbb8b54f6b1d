"""Where a chain stands, and its state as named vectors of the plain model's length, as it travels."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from fl_dpbayes.config import Sampler
from fl_dpbayes.models import arrays_to_vector, vector_to_arrays
from fl_dpbayes.protocol import Arrays, prefixed, without_prefix

Vectors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class ChainState:
    """Where a chain stands: vectors of equal shape, always its position `parameters`, and how many steps lie behind."""

    vectors: Vectors
    step: int = 0

    @property
    def parameters(self) -> torch.Tensor:
        """The chain's position w."""
        return self.vectors["parameters"]


def initial_vectors(sampler: Sampler, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the state's vectors (d,) at the start of a chain, from the plain model's initial parameters (d,)."""
    start = sampler.start_values
    vectors = {
        name: torch.full_like(parameters, start.get(name, 0.0)) for name in sampler.state_vectors
    }
    return vectors | {"parameters": parameters}


def to_state(
    vectors: Vectors, sampler: Sampler, step: int, device: str | torch.device = "cpu"
) -> ChainState:
    """Continue a chain from the vectors (d,) that its last stretch left, `step` steps of it behind."""
    here = {
        name: vectors[name].to(device=device, dtype=torch.float32) for name in sampler.state_vectors
    }
    parts = [here[name] for name in sampler.position]
    position = torch.cat(parts) if len(parts) > 1 else parts[0]
    return ChainState(
        {"parameters": position} | {name: here[name] for name in sampler.moments}, step
    )


def from_state(state: ChainState, sampler: Sampler) -> dict[str, torch.Tensor]:
    """Take a chain's state apart into vectors (d,), the inverse of `to_state`."""
    position = zip(sampler.position, state.parameters.chunk(len(sampler.position)), strict=True)
    return dict(position) | {name: state.vectors[name] for name in sampler.moments}


def state_arrays(vectors: Vectors, module: nn.Module) -> Arrays:
    """Turn a state's vectors (d,) into the arrays `<vector>/<parameter name>` in which it travels."""
    found = (prefixed(name, vector_to_arrays(vector, module)) for name, vector in vectors.items())
    return {name: array for arrays in found for name, array in arrays.items()}


def state_vectors(arrays: Arrays, sampler: Sampler, module: nn.Module) -> dict[str, torch.Tensor]:
    """Turn the arrays of a state into its vectors, the inverse of `state_arrays`.

    Raises ValueError if a name or shape is not the module's.
    """
    return {
        name: arrays_to_vector(without_prefix(name, arrays), module)
        for name in sampler.state_vectors
    }
