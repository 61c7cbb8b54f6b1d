"""A module's trainable parameters as one flat vector, as named arrays, and back.

The order is that of `named_parameters()`. Frozen parameters and buffers (running statistics) have
no place in it, so they can neither be sampled nor released.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call

Shapes = dict[str, tuple[int, ...]]


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by name, each shared parameter once."""
    return {
        name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad
    }


def parameter_shapes(module: nn.Module) -> Shapes:
    """Return the shape of each trainable parameter, by name."""
    return {
        name: tuple(parameter.shape) for name, parameter in trainable_parameters(module).items()
    }


def to_vector(module: nn.Module) -> Tensor:
    """Copy the trainable parameters into one float32 vector (d,) on their device."""
    parameters = trainable_parameters(module).values()
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in parameters])


def vector_loader(module: nn.Module) -> Callable[[Tensor], None]:
    """Return a function that makes a flat vector the module's trainable parameters.

    Where type and device agree, the parameters become views of the vector (d,) (nothing is copied),
    so the caller must not write into it afterwards.
    """
    parameters = list(trainable_parameters(module).values())
    sizes = [parameter.numel() for parameter in parameters]

    def load(vector: Tensor) -> None:
        for parameter, part in zip(parameters, _parts(vector, sizes), strict=True):
            parameter.data = part.view(parameter.shape).to(parameter)

    return load


def vector_views(vector: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Split the last axis of a tensor (..., d) into views (..., *shape) by name.

    ValueError if d does not fit.
    """
    parts = zip(
        shapes.items(), _parts(vector, [math.prod(shape) for shape in shapes.values()]), strict=True
    )
    return {name: part.reshape((*vector.shape[:-1], *shape)) for (name, shape), part in parts}


def _parts(vector: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    if vector.shape[-1] != sum(sizes):
        raise ValueError(
            f"the vector has {vector.shape[-1]} entries, the module has {sum(sizes)} parameters"
        )
    return torch.split_with_sizes(vector, sizes, dim=-1)


def vector_to_arrays(vector: Tensor, module: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Turn a flat vector (d,) into float32 arrays by name, or a stack (M, d) into (M, *shape), as `vector_views`."""
    views = vector_views(vector.detach().float().cpu(), parameter_shapes(module))
    return {name: view.numpy().copy() for name, view in views.items()}


def arrays_to_vector(arrays: Mapping[str, npt.NDArray], module: nn.Module) -> Tensor:
    """Turn arrays of the parameters' shapes into a float32 vector (d,) on the CPU, inverse of `vector_to_arrays`.

    Raises ValueError if a name or shape is not the module's.
    """
    shapes = parameter_shapes(module)
    found = {name: tuple(array.shape) for name, array in arrays.items()}
    if found != shapes:
        name = min(
            name for name in found.keys() | shapes.keys() if found.get(name) != shapes.get(name)
        )
        raise ValueError(
            f"parameter {name!r} has shape {found.get(name)}, the module's has {shapes.get(name)}"
        )
    return torch.from_numpy(
        np.concatenate([np.asarray(arrays[name], np.float32).reshape(-1) for name in shapes])
    )


def called(module: nn.Module, values: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
    """Call a module with other values for its parameters, by name as `named_parameters` has them.

    A shared parameter has its value wherever it is, and a module of two names gets it once:
    `functional_call` by itself would swap it twice, and put back what it had swapped in.
    """
    own = {
        id(parameter): values[name]
        for name, parameter in module.named_parameters()
        if name in values
    }
    placed = {
        f"{name}.{key}".lstrip("."): own[id(parameter)]
        for name, layer in module.named_modules()
        for key, parameter in layer._parameters.items()
        if id(parameter) in own
    }
    result: Tensor = functional_call(module, placed, inputs, tie_weights=False)
    return result
