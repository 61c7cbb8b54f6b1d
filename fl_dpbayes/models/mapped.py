"""`torch.func.vmap` over the records of a pass.

What it computes by shifted indices is kept inside a record.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fl_dpbayes.errors import UserError

_FILLS = {torch.index_fill, Tensor.index_fill, Tensor.index_fill_}
_RESIZES = {Tensor.resize_, Tensor.resize_as_, torch.resize_as_}


def mapped(function: Callable[..., Any], *columns: Any, in_dims: Any = 0) -> Any:
    """Apply a function to each record by itself.

    An index beyond an embedding's table gives NaN, since the shifted one may be that of another
    record's table.

    Args:
        function: Of one record.
        *columns: As of `vmap`.
        in_dims: As of `vmap`.

    Returns:
        As `vmap` does.

    Raises:
        UserError: The function calls `index_fill` or `resize_`.
    """

    def inside(*arguments: Any) -> Any:
        with _Inside():
            return function(*arguments)

    # Attention in one kernel would run once for each record.
    with sdpa_kernel(SDPBackend.MATH):
        return vmap(inside, in_dims=in_dims)(*columns)


class _Inside(TorchFunctionMode):
    """Replaces or refuses the functions that `vmap` computes by indices shifted across records."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in _FILLS:
            raise UserError(
                "torch.func.vmap fills by index across records: leave out index_fill, and use "
                "torch.where or scatter"
            )
        if func in _RESIZES:
            raise UserError(
                f"torch.func.vmap cuts resized memory across records: leave out {func.__name__}, "
                "and use a slice or torch.nn.functional.pad"
            )
        if func is Tensor.__setitem__:
            return _assign(*args)
        if func is functional.embedding:
            indices, weight, *further = _positional(("input", "weight"), args, options)
            return _looked_up(
                lambda index: func(index, weight, *further, **options), indices, weight
            )
        if func is torch.embedding:
            weight, indices, *further = _positional(("weight", "indices"), args, options)
            return _looked_up(
                lambda index: func(weight, index, *further, **options), indices, weight
            )
        return func(*args, **options)


def _positional(
    names: Sequence[str], arguments: Sequence[Any], options: dict[str, Any]
) -> list[Any]:
    """Move the named arguments from the options behind those that are given by position."""
    return [*arguments, *(options.pop(name) for name in names if name in options)]


def _assign(target: Tensor, index: Any, value: Any) -> None:
    indices = index if isinstance(index, tuple) else (index,)
    is_indexed = any(isinstance(part, Tensor) and part.dtype != torch.bool for part in indices)
    if is_indexed and not (isinstance(value, Tensor) and value.dim() > 0):
        # The gradient of writing one number is `index_fill`; that of writing many is not.
        value = torch.zeros_like(target[index]) + value
    target[index] = value


def _looked_up(look_up: Callable[[Tensor], Tensor], indices: Tensor, weight: Tensor) -> Tensor:
    is_inside = (indices >= 0) & (indices < weight.shape[0])
    rows = look_up(torch.where(is_inside, indices, 0))
    # A factor, and no choice between two values: the gradient is NaN as well, so the unit is left
    # out.
    factors = torch.where(is_inside, 1.0, torch.nan)
    return rows * factors[..., None].to(rows)
