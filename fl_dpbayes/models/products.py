"""Ways of computing a pass's matrix products so that equal rows get equal bits wherever they lie.

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
    """Compute the matrix products of a block in one way.

    It holds forwards and backwards, and under `torch.func` as well. Products within a batch of
    products are separate already.

    Args:
        products: "plain": as torch does. "aligned": rows of operands and results start at 64 bytes.
            "separate": they do, and each row of a product of two matrices is a product of its own.

    Yields:
        Nothing.
    """
    if products == "plain":
        yield
        return
    # Attention in one kernel computes its products where nobody can move them.
    with sdpa_kernel(SDPBackend.MATH), _Rewritten(_WAYS[products]):
        yield


def product(left: Tensor, right: Tensor, products: Products) -> Tensor:
    """Multiply two matrices in one way, which costs less than the context of `computing`.

    Args:
        left: Shape (m, k).
        right: Shape (k, n).
        products: As of `computing`.

    Returns:
        Shape (m, n).
    """
    return left @ right if products == "plain" else _WAYS[products](left, right)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None, products: Products) -> Tensor:
    """Apply a Linear layer in one way, which costs less than the context of `computing`.

    Args:
        inputs: Shape (m, k).
        weight: Shape (n, k).
        bias: Shape (n,), or None.
        products: As of `computing`.

    Returns:
        Shape (m, n).
    """
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
    columns = right.shape[-1]
    left, right = _aligned_operands(left, right)
    return multiply(left, right)[..., :columns].contiguous()


def _separate(left: Tensor, right: Tensor) -> Tensor:
    """Multiply (m, k) by (k, n) as m products of (1, k) by (k, n)."""
    columns = right.shape[-1]
    left, right = _aligned_operands(left, right)
    rows = torch.bmm(left[:, None], right.expand(len(left), *right.shape))
    return rows[:, 0, :columns].contiguous()


def _aligned_operands(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Fill both matrices with zeros so that all their rows start at 64 bytes."""
    step = ROW_BYTES // left.element_size()
    inner = -(-left.shape[-1] // step) * step
    columns = -(-right.shape[-1] // step) * step
    filled_left = _filled(left, rows=left.shape[-2], columns=inner)
    if right.stride(-2) == 1:
        # Weights (n, k) that are transposed; where they lie their rows are of k entries.
        return filled_left, _filled(right.mT, rows=columns, columns=inner).mT
    return filled_left, _filled(right, rows=inner, columns=columns)


def _filled(values: Tensor, rows: int, columns: int) -> Tensor:
    """Copy matrices (..., r, c) into zeros (..., rows, columns), unless they are so already."""
    has_shape = values.shape[-2:] == (rows, columns)
    if has_shape and values.is_contiguous() and values.data_ptr() % ROW_BYTES == 0:
        return values
    filled = values.new_zeros((*values.shape[:-2], rows, columns))
    filled[..., : values.shape[-2], : values.shape[-1]] = values
    return filled


def _plus(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return beta times an addend plus alpha times a product, as `torch.addmm` does."""

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
    """Return a product of a matrix and a vector, as `torch.mv` does."""
    return lambda matrix, vector: product(matrix, vector[:, None])[:, 0]


_WAYS = {"aligned": _aligned, "separate": _separate}
