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

    Args:
        module: Its parameters are overwritten.

    Returns:
        A function of a vector, shape (d,). Where type and device agree, the parameters become views
        of it (nothing is copied), so the caller must not write into it afterwards.
    """
    parameters = list(trainable_parameters(module).values())
    sizes = [parameter.numel() for parameter in parameters]

    def load(vector: Tensor) -> None:
        for parameter, part in zip(parameters, _parts(vector, sizes), strict=True):
            parameter.data = part.view(parameter.shape).to(parameter)

    return load


def vector_views(vector: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Split the last axis of a tensor into views by name.

    Args:
        vector: Shape (..., d).
        shapes: By name, in the order of the vector.

    Returns:
        Views, shape (..., *shape) each.

    Raises:
        ValueError: d is not the number of entries of the shapes.
    """
    parts = _parts(vector, [math.prod(shape) for shape in shapes.values()])
    return {
        name: part.reshape((*vector.shape[:-1], *shape))
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _parts(vector: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    if vector.shape[-1] != sum(sizes):
        raise ValueError(
            f"the vector has {vector.shape[-1]} entries, the module has {sum(sizes)} parameters"
        )
    return torch.split_with_sizes(vector, sizes, dim=-1)


def vector_to_arrays(vector: Tensor, module: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Turn a flat vector, or a stack of them, into arrays by name.

    Args:
        vector: Shape (d,) or (M, d).
        module: Its trainable parameters give names and shapes.

    Returns:
        Copies, shape `*shape` or (M, *shape) each, float32.
    """
    views = vector_views(vector.detach().float().cpu(), parameter_shapes(module))
    return {name: view.numpy().copy() for name, view in views.items()}


def arrays_to_vector(arrays: Mapping[str, npt.NDArray], module: nn.Module) -> Tensor:
    """Turn arrays into a flat vector, the inverse of `vector_to_arrays`.

    Args:
        arrays: By name, of the parameters' shapes.
        module: Its trainable parameters give names and shapes.

    Returns:
        Shape (d,), float32, on the CPU.

    Raises:
        ValueError: A name or shape is not the module's.
    """
    shapes = parameter_shapes(module)
    array_shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    if array_shapes != shapes:
        name = min(
            name
            for name in array_shapes.keys() | shapes.keys()
            if array_shapes.get(name) != shapes.get(name)
        )
        raise ValueError(
            f"parameter {name!r} has shape {array_shapes.get(name)}, the module's has "
            f"{shapes.get(name)}"
        )
    parts = [np.asarray(arrays[name], np.float32).reshape(-1) for name in shapes]
    return torch.from_numpy(np.concatenate(parts))


def called(module: nn.Module, values: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
    """Call a module with other values for its parameters.

    A shared parameter has its value wherever it is, and a module of two names gets it once:
    `functional_call` by itself would swap it twice, and put back what it had swapped in.

    Args:
        module: What is called.
        values: By name as `named_parameters` has them; parameters without a value keep theirs.
        *inputs: Of the module.

    Returns:
        The module's outputs.
    """
    values_by_id = {
        id(parameter): values[name]
        for name, parameter in module.named_parameters()
        if name in values
    }
    placed: dict[str, Tensor] = {}
    for layer_name, layer in module.named_modules():
        for parameter_name, parameter in layer._parameters.items():
            if id(parameter) in values_by_id:
                full_name = f"{layer_name}.{parameter_name}".lstrip(".")
                placed[full_name] = values_by_id[id(parameter)]
    result: Tensor = functional_call(module, placed, inputs, tie_weights=False)
    return result
