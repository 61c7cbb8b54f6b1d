"""A module's trainable parameters as one flat vector, as named arrays, and back.

The order is that of `named_parameters()`. Frozen parameters and buffers (running statistics) have no place in it, so
they can neither be sampled nor released.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Shapes = dict[str, tuple[int, ...]]


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name, each shared parameter once."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def parameter_shapes(module: nn.Module) -> Shapes:
    """Return the shape of each trainable parameter, by name."""
    return {name: tuple(parameter.shape) for name, parameter in trainable_parameters(module).items()}


def to_vector(module: nn.Module) -> torch.Tensor:
    """Copy the trainable parameters into one float32 vector (d,) on their device."""
    parameters = trainable_parameters(module).values()
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in parameters])


def load_vector(module: nn.Module, vector: torch.Tensor) -> None:
    """Make a flat vector the module's trainable parameters.

    Where type and device agree, the parameters become views of `vector` (nothing is copied), so the caller must not
    write into it afterwards.

    Args:
        module: the module to change.
        vector: parameters, shape (d,).
    """
    views = vector_views(vector, parameter_shapes(module))
    for name, parameter in trainable_parameters(module).items():
        parameter.data = views[name].to(dtype=parameter.dtype, device=parameter.device)


def vector_views(vector: torch.Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Split the last axis of a tensor (..., d) into named views (..., *shape).

    Args:
        vector: one flat vector (d,) or a stack of them (M, d).
        shapes: parameter name -> shape, in the order of the vector.

    Returns:
        Parameter name -> view.

    Raises:
        ValueError: if d is not the number of parameters.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    if vector.shape[-1] != sum(sizes):
        raise ValueError(f"the vector has {vector.shape[-1]} entries, the module has {sum(sizes)} parameters")
    parts = zip(shapes.items(), vector.split(sizes, dim=-1), strict=True)
    return {name: part.reshape((*vector.shape[:-1], *shape)) for (name, shape), part in parts}


def vector_to_arrays(vector: torch.Tensor, module: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Turn a flat vector (d,) into arrays of the parameters' shapes, or a stack (M, d) into arrays (M, *shape).

    Args:
        vector: shape (d,) or (M, d).
        module: gives names, shapes and order.

    Returns:
        Parameter name -> float32 array that owns its memory.

    Raises:
        ValueError: if d is not the number of parameters.
    """
    views = vector_views(vector.detach().float().cpu(), parameter_shapes(module))
    return {name: view.numpy().copy() for name, view in views.items()}


def arrays_to_vector(arrays: Mapping[str, npt.NDArray], module: nn.Module) -> torch.Tensor:
    """Turn arrays of the parameters' shapes into a flat float32 vector (d,), the inverse of `vector_to_arrays`.

    Args:
        arrays: parameter name -> array of that parameter's shape.
        module: gives names, shapes and order.

    Returns:
        Vector of shape (d,) on the CPU.

    Raises:
        ValueError: if a name or shape is not the module's.
    """
    shapes = parameter_shapes(module)
    found = {name: tuple(array.shape) for name, array in arrays.items()}
    if found != shapes:
        differing = sorted(name for name in found.keys() | shapes.keys() if found.get(name) != shapes.get(name))
        name = differing[0]
        raise ValueError(f"parameter {name!r} has shape {found.get(name)}, the module's has {shapes.get(name)}")
    return torch.from_numpy(np.concatenate([np.asarray(arrays[name], np.float32).reshape(-1) for name in shapes]))
