"""Ways of computing the matrix products of a pass, so that equal rows get equal bits wherever they lie in memory.

A product may be computed otherwise where a row does not start at a multiple of 64 bytes. Zeros
behind each row move all rows there and change no sum. Where that is not enough, each row is a
product of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

Products = Literal["plain", "aligned", "separate"]
# A cache line, and the longest vector of a processor; torch's own memory starts there.
ROW_BYTES = 64


@contextmanager
def computing(products: Products) -> Iterator[None]:
    """Compute the matrix products of a block in this way, forwards and backwards, under `torch.func` as well.

    Args:
        products: "plain": as torch does. "aligned": rows of operands and results start at 64 bytes. "separate": these,
            and each row of a product of two matrices is a product of its own. Products within a batch of products are
            separate already.
    """
    if products == "plain":
        yield
        return
    # Attention in one kernel computes its products where nobody can move them.
    with sdpa_kernel(SDPBackend.MATH), _Rewritten(_WAYS[products]):
        yield


def product(left: Tensor, right: Tensor, products: Products) -> Tensor:
    """Multiply (m, k) by (k, n) in this way.

    For code that names its products, which costs less than `computing`.
    """
    return left @ right if products == "plain" else _WAYS[products](left, right)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, products: Products) -> Tensor:
    """Apply a Linear layer to (m, k) in this way, as `product`."""
    if products == "plain":
        return functional.linear(inputs, weight, bias)
    outputs = _WAYS[products](inputs, weight.mT)
    return outputs if bias is None else outputs.add_(bias)


class _Rewritten(TorchDispatchMode):
    """Computes products of matrices by another function, below autograd and below `torch.func`."""

    def __init__(self, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self._rewritten = {
            torch.ops.aten.mm.default: product,
            torch.ops.aten.addmm.default: _plus(product),
            torch.ops.aten.mv.default: _of_vector(product),
            torch.ops.aten.addmv.default: _plus(_of_vector(product)),
            torch.ops.aten.bmm.default: _aligned,
            torch.ops.aten.baddbmm.default: _plus(_aligned),
        }

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute a product by the function of its kind, and all else as torch does."""
        return self._rewritten.get(func, func)(*args, **kwargs or {})


def _aligned(left: Tensor, right: Tensor) -> Tensor:
    """Multiply (m, k) by (k, n), or b such matrices (b, m, k) by (b, k, n)."""
    multiply = torch.mm if left.dim() == 2 else torch.bmm
    return multiply(*_operands(left, right))[..., : right.shape[-1]].contiguous()


def _separate(left: Tensor, right: Tensor) -> Tensor:
    """Multiply (m, k) by (k, n) as m products of (1, k) by (k, n)."""
    columns = right.shape[-1]
    left, right = _operands(left, right)
    return torch.bmm(left[:, None], right.expand(len(left), *right.shape))[
        :, 0, :columns
    ].contiguous()


def _operands(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    step = ROW_BYTES // left.element_size()
    inner = -(-left.shape[-1] // step) * step
    columns = -(-right.shape[-1] // step) * step
    if right.stride(-2) == 1:
        # Weights (n, k) that are turned round; where they lie their rows are of k entries.
        return _filled(left, left.shape[-2], inner), _filled(right.mT, columns, inner).mT
    return _filled(left, left.shape[-2], inner), _filled(right, inner, columns)


def _filled(values: Tensor, rows: int, columns: int) -> Tensor:
    """Copy matrices (..., r, c) into zeros (..., rows, columns), unless they lie like that already."""
    if (
        values.shape[-2:] == (rows, columns)
        and values.is_contiguous()
        and values.data_ptr() % ROW_BYTES == 0
    ):
        return values
    filled = values.new_zeros((*values.shape[:-2], rows, columns))
    filled[..., : values.shape[-2], : values.shape[-1]] = values
    return filled


def _plus(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def added(
        addend: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        total = product(left, right)
        if alpha != 1:
            total = total * alpha
        if beta == 0:
            return total
        return total + (addend if beta == 1 else addend * beta)

    return added


def _of_vector(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda matrix, vector: product(matrix, vector[:, None])[:, 0]


_WAYS = {"aligned": _aligned, "separate": _separate}
