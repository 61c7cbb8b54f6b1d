"""`torch.func.vmap` over the records of a pass, with what it computes by shifted indices kept inside a record."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fl_dpbayes.errors import UserError

_FILLS = {torch.index_fill, Tensor.index_fill, Tensor.index_fill_}
_RESIZES = {Tensor.resize_, Tensor.resize_as_, torch.resize_as_}


def mapped(function: Callable[..., Any], *columns: Any, in_dims: Any = 0) -> Any:
    """Apply a function to each record by itself.

    `columns` and `in_dims`: as of `vmap`. An index beyond an embedding's table gives NaN, since the
    shifted one may be that of another record's table. Raises UserError for `index_fill` and
    `resize_`.
    """

    def inside(*one: Any) -> Any:
        with _Inside():
            return function(*one)

    return vmap(inside, in_dims=in_dims)(*columns)


class _Inside(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func in _FILLS:
            said = "torch.func.vmap fills by index across records"
            raise UserError(f"{said}: leave out index_fill, and use torch.where or scatter")
        if func in _RESIZES:
            said = "torch.func.vmap cuts resized memory across records"
            raise UserError(
                f"{said}: leave out {func.__name__}, and use a slice or torch.nn.functional.pad"
            )
        if func is Tensor.__setitem__:
            return _assign(*args)
        if func is functional.embedding:
            indices, weight, *rest = (
                *args,
                *(named.pop(name) for name in ("input", "weight") if name in named),
            )
            return _looked_up(lambda index: func(index, weight, *rest, **named), indices, weight)
        if func is torch.embedding:
            weight, indices, *rest = (
                *args,
                *(named.pop(name) for name in ("weight", "indices") if name in named),
            )
            return _looked_up(lambda index: func(weight, index, *rest, **named), indices, weight)
        return func(*args, **named)


def _assign(target: Tensor, index: Any, value: Any) -> None:
    indices = index if isinstance(index, tuple) else (index,)
    indexed = any(isinstance(each, Tensor) and each.dtype != torch.bool for each in indices)
    if indexed and not (isinstance(value, Tensor) and value.dim() > 0):
        # The gradient of writing one number is `index_fill`; that of writing many is not.
        value = torch.zeros_like(target[index]) + value
    target[index] = value


def _looked_up(look_up: Callable[[Tensor], Tensor], indices: Tensor, weight: Tensor) -> Tensor:
    known = (indices >= 0) & (indices < weight.shape[0])
    rows = look_up(torch.where(known, indices, 0))
    # A factor, and no choice between two values: the gradient is NaN as well, so the unit is left
    # out.
    return rows * torch.where(known, 1.0, torch.nan)[..., None].to(rows)
