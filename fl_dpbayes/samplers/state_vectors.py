"""A chain's state as named vectors of the plain model's length, as it travels, and back."""

from collections.abc import Mapping

import torch
from torch import nn

from fl_dpbayes.config.sampler import BayesByBackprop, Sampler, state_slots
from fl_dpbayes.models.parameters import arrays_to_vector, vector_to_arrays
from fl_dpbayes.models.variational import initial_spread
from fl_dpbayes.protocol.arrays import Arrays, prefixed, without_prefix
from fl_dpbayes.samplers.kernel import ChainState, Kernel


def initial_slots(sampler: Sampler, parameters: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the state at the start of a chain: the parameters, and every other vector at its start value.

    Args:
        sampler: the plan's algorithm.
        parameters: initial parameters of the plain model, shape (d,).

    Returns:
        Slot name -> vector of shape (d,); momentum and moments start at 0, spreads at the plan's initial scale.
    """
    slots: dict[str, torch.Tensor] = {name: torch.zeros_like(parameters) for name in state_slots(sampler)}
    slots["parameters"] = parameters
    if isinstance(sampler, BayesByBackprop):
        slots["spread"] = torch.full_like(parameters, initial_spread(sampler.initial_scale))
    return slots


def from_slots(
    slots: Mapping[str, torch.Tensor], sampler: Sampler, kernel: Kernel, step: int, device: str | torch.device
) -> ChainState:
    """Continue a chain from the vectors that its last stretch left.

    Args:
        slots: slot name -> vector of shape (d,).
        sampler: the plan's algorithm.
        kernel: its update rule.
        step: number of steps of this chain that lie behind it.
        device: where the arithmetic runs.

    Returns:
        The kernel's state.
    """
    vectors: dict[str, torch.Tensor] = {
        name: slots[name].to(device=device, dtype=torch.float32) for name in state_slots(sampler)
    }
    if isinstance(sampler, BayesByBackprop):
        return kernel.init(torch.cat([vectors["parameters"], vectors["spread"]]), step)
    return ChainState(vectors, step)


def to_slots(state: ChainState, sampler: Sampler) -> dict[str, torch.Tensor]:
    """Take a chain's state apart, the inverse of `from_slots`.

    Args:
        state: the kernel's state.
        sampler: the plan's algorithm.

    Returns:
        Slot name -> vector of shape (d,).
    """
    if isinstance(sampler, BayesByBackprop):
        mean, spread = state.parameters.chunk(2)
        return {"parameters": mean, "spread": spread}
    return {name: state.vectors[name] for name in state_slots(sampler)}


def state_arrays(slots: Mapping[str, torch.Tensor], module: nn.Module) -> Arrays:
    """Turn a state's vectors into the arrays in which it travels.

    Args:
        slots: slot name -> vector of shape (d,).
        module: the plain model.

    Returns:
        `<slot>/<parameter name>` -> float32 array.
    """
    return {
        name: array
        for slot, vector in slots.items()
        for name, array in prefixed(slot, vector_to_arrays(vector, module)).items()
    }


def state_vectors(arrays: Arrays, sampler: Sampler, module: nn.Module) -> dict[str, torch.Tensor]:
    """Turn the arrays of a state into its vectors, the inverse of `state_arrays`.

    Args:
        arrays: `<slot>/<parameter name>` -> array.
        sampler: the plan's algorithm.
        module: the plain model.

    Returns:
        Slot name -> vector of shape (d,).

    Raises:
        ValueError: if a name or shape is not the module's.
    """
    return {slot: arrays_to_vector(without_prefix(slot, arrays), module) for slot in state_slots(sampler)}
