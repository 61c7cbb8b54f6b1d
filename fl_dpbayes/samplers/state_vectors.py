"""A chain's state, and that state as named vectors of the plain model's length, as it travels."""

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
    """Where a chain stands.

    Attributes:
        vectors: Vectors of equal shape by name; always its position, `parameters`.
        step: How many steps the chain has made.
    """

    vectors: Vectors
    step: int = 0

    @property
    def parameters(self) -> torch.Tensor:
        """The chain's position w."""
        return self.vectors["parameters"]


def initial_vectors(sampler: Sampler, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the state's vectors at the start of a chain.

    Args:
        sampler: It names the vectors and their start values.
        parameters: The plain model's initial parameters, shape (d,).

    Returns:
        Vectors by name, shape (d,) each.
    """
    start_values = sampler.start_values
    vectors = {
        name: torch.full_like(parameters, start_values.get(name, 0.0))
        for name in sampler.state_vectors
    }
    return vectors | {"parameters": parameters}


def to_state(
    vectors: Vectors, sampler: Sampler, step: int, device: str | torch.device = "cpu"
) -> ChainState:
    """Continue a chain from the vectors that its last stretch left.

    Args:
        vectors: By name, shape (d,) each.
        sampler: It tells which vectors make up the position, and which are moments.
        step: How many steps the chain has made.
        device: Where to compute.

    Returns:
        The state, its position of shape (d,) for each vector of the position, one after the other.
    """
    placed = {
        name: vectors[name].to(device=device, dtype=torch.float32) for name in sampler.state_vectors
    }
    parts = [placed[name] for name in sampler.position]
    position = torch.cat(parts) if len(parts) > 1 else parts[0]
    moments = {name: placed[name] for name in sampler.moments}
    return ChainState({"parameters": position} | moments, step)


def from_state(state: ChainState, sampler: Sampler) -> dict[str, torch.Tensor]:
    """Take a chain's state apart into vectors, shape (d,) each, the inverse of `to_state`."""
    parts = state.parameters.chunk(len(sampler.position))
    position = dict(zip(sampler.position, parts, strict=True))
    return position | {name: state.vectors[name] for name in sampler.moments}


def state_arrays(vectors: Vectors, module: nn.Module) -> Arrays:
    """Turn a state's vectors into the arrays in which it travels.

    Args:
        vectors: By name, shape (d,) each.
        module: The plain model.

    Returns:
        Arrays of the parameters' shapes, by `<vector>/<parameter name>`.
    """
    arrays: Arrays = {}
    for name, vector in vectors.items():
        arrays |= prefixed(name, vector_to_arrays(vector, module))
    return arrays


def state_vectors(arrays: Arrays, sampler: Sampler, module: nn.Module) -> dict[str, torch.Tensor]:
    """Turn the arrays of a state into its vectors, the inverse of `state_arrays`.

    Args:
        arrays: By `<vector>/<parameter name>`.
        sampler: It names the vectors.
        module: The plain model.

    Returns:
        Vectors by name, shape (d,) each.

    Raises:
        ValueError: A name or shape is not the module's.
    """
    return {
        name: arrays_to_vector(without_prefix(name, arrays), module)
        for name in sampler.state_vectors
    }
