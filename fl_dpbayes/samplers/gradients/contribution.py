"""Gradients of one pass's records by one layer, with their norms and their weighted sums.

They are formed, or held as a product of what goes into the layer and what comes back to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

# |sum_l g_l a_l'| >= sum_l |g_l| |a_l| / this, by the allowance in a norm that does not form the
# sum.
LARGEST_CANCELLATION = 1000.0
# Entries of float32 that are held in float64 at a time: they stay in a processor's cache. On a GPU
# 128 MiB, where each part costs launches.
_ENTRIES = 2**16
_ENTRIES_ON_GPU = 2**24
# Of a row in whose middle no GPU's vector begins.
_ENTRIES_OF_VECTORS = 8
# Entries whose squares are added in float32.
_BLOCK = 64
# Rows in use: the first ones, or their numbers, or a mark for each.
Rows = slice | Tensor


@dataclass(frozen=True)
class LayerGradients:
    """Per-example gradients of one layer, the first parameter's as a product where that is enough.

    Attributes:
        norms: Norm of each record's gradient by all of the layer, shape (N,), float64.
        formed: Gradients of the parameters in order, without the first if it is a product, shape
            (N, size) each.
        product: a, shape (N, groups, L, p), or of an Embedding the indices, (N, L); and g, shape
            (N, groups, L, o). Of a layer with one position: a, (N, p), and g, (N, o).
        entries: Number of entries of the product's parameter.
        biased: Whether a layer with one position has a bias, whose gradient is g.
        buffers: Float64 memory for a and g of a layer with one position, used again by every sum.
    """

    norms: Tensor
    formed: tuple[Tensor, ...]
    product: tuple[Tensor, Tensor] | None = None
    entries: int = 0
    biased: bool = False
    buffers: tuple[Tensor, Tensor] | None = None

    @property
    def rows(self) -> list[Tensor]:
        """All of it, tensors whose first axis is that of the records."""
        return [self.norms, *self.formed, *(self.product or ())]

    @property
    def terms(self) -> float:
        """How many terms of a sum a record adds to each entry, times how far they may cancel."""
        if self.product is None:
            return 1.0
        g = self.product[1]
        length = 1 if g.dim() == 2 else g.shape[2]
        return 1.0 if length == 1 else length * LARGEST_CANCELLATION

    @property
    def size(self) -> int:
        """Number of entries of the layer's parameters."""
        bias = 0
        if self.product is not None and self.biased:
            bias = self.product[1].shape[1]
        return self.entries + bias + sum(values.shape[1] for values in self.formed)

    def weighted_sum(self, factors: Tensor, used: Rows, out: Tensor) -> None:
        """Write sum_i c_i g_i, over the rows in use, to a tensor.

        A row that is not used is left out whatever its gradient holds (0 times infinity is NaN).

        Args:
            factors: c_i, shape (N,), float64.
            used: Rows in use, as `used_rows` returns them.
            out: Overwritten by the sum, shape (size,), float64.
        """
        if self.product is not None:
            a, g = (taken(values, used) for values in self.product)
            used_factors = taken(factors, used)
            if g.dim() == 2:
                self._write_outer_sum(a, g, factors=used_factors, out=out)
                return
            weights = used_factors.view(-1, 1, 1, 1)
            # Factors are float64, and what they scale becomes so. Of a and g the narrower one is
            # scaled, which costs less.
            if a.dim() > 2 and a.shape[3] < g.shape[3]:
                a = a * weights
            else:
                g = g * weights
            _write_product_sum(a, g, out[: self.entries])
        # A bias of several positions is not summed from g: where they cancel, the rounding of their
        # weighted sum can exceed what their norm foretold.
        parts = out[self.entries :].split([values.shape[1] for values in self.formed])
        for values, part in zip(self.formed, parts, strict=True):
            weighted_rows(factors, values, used=used, out=part)

    def _write_outer_sum(self, a: Tensor, g: Tensor, factors: Tensor, out: Tensor) -> None:
        a_buffer, g_buffer = self.buffers or (factors.new_empty(0), factors.new_empty(0))
        a = a_buffer.resize_(a.shape).copy_(a)
        g = g_buffer.resize_(g.shape).copy_(g)
        g.mul_(factors[:, None])
        torch.mm(g.mT, a, out=out[: self.entries].view(g.shape[1], -1))
        if self.biased:
            torch.sum(g, 0, out=out[self.entries :])


def outer_gradients(
    a: Tensor,
    g: Tensor,
    biased: bool,
    buffers: tuple[Tensor, Tensor] | None = None,
    lengths: Tensor | None = None,
) -> LayerGradients:
    """Take a layer of one position.

    Args:
        a: Its inputs, shape (N, p).
        g: Gradients at its outputs, shape (N, o).
        biased: Whether it has a bias.
        buffers: As of `LayerGradients`.
        lengths: The inputs' `input_lengths`, shape (N,), if they are known.

    Returns:
        Its gradients g a' and, with a bias, g.
    """
    if lengths is None:
        lengths = input_lengths(a, biased)
    return LayerGradients(
        norms=row_norms(g).mul_(lengths),
        formed=(),
        product=(a, g),
        entries=a.shape[1] * g.shape[1],
        biased=biased,
        buffers=buffers,
    )


def input_lengths(a: Tensor, biased: bool) -> Tensor:
    """Return sqrt(|a|^2 + 1), or |a| without a bias: times |g| the norm of g a' and g together.

    Args:
        a: A layer's inputs, shape (N, p).
        biased: Whether the layer has a bias.

    Returns:
        Shape (N,), float64.
    """
    return row_norms(a).square_().add_(biased).sqrt_()


def formed_gradients(parameters: Sequence[Tensor]) -> LayerGradients:
    """Take gradients of a layer's parameters, each of shape (N, size), as they are."""
    norms = reduce(torch.hypot, map(row_norms, parameters))
    return LayerGradients(norms=norms, formed=tuple(parameters))


def used_rows(factors: Tensor) -> Rows:
    """Return which rows have a factor above zero.

    Args:
        factors: Shape (N,).

    Returns:
        A slice where these rows come first, else their numbers. On a GPU a mark for each row: to
        learn a number would be to wait for all that is computed there.
    """
    if factors.is_cuda:
        return factors > 0
    count = int(factors.count_nonzero())
    return slice(count) if count == len(factors) else factors.nonzero()[:, 0]


def taken(values: Tensor, used: Rows) -> Tensor:
    """Take rows in use.

    Args:
        values: Shape (N, ...).
        used: Rows in use, as `used_rows` returns them.

    Returns:
        Shape (M, ...). Where rows are marked, all that have a mark, and 0 for those not in use.
    """
    if isinstance(used, Tensor) and used.dtype == torch.bool:
        marks = used.view(-1, *(1,) * (values.dim() - 1))
        return torch.where(marks, values[: len(used)], 0)
    return values[used]


def weighted_rows(
    factors: Tensor, rows: Tensor, used: Rows | None = None, out: Tensor | None = None
) -> Tensor:
    """Return sum_i c_i r_i over the rows in use.

    A row with c_i = 0 is left out whatever it holds (0 times infinity is NaN).

    Args:
        factors: c_i >= 0, shape (N,), float64.
        rows: r_i, shape (N, d).
        used: Rows in use; those with a factor above zero if None.
        out: Overwritten by the sum if given, shape (d,), float64.

    Returns:
        The sum, shape (d,), float64.
    """
    if used is None:
        used = used_rows(factors)
    factors = taken(factors, used)
    if out is None:
        out = factors.new_empty(rows.shape[1])
    entries = _ENTRIES if factors.device.type == "cpu" else _ENTRIES_ON_GPU
    width = max(1, min(rows.shape[1], entries // max(1, len(factors))))
    buffer = factors.new_empty((len(factors), width))
    for first in range(0, rows.shape[1], width):
        part = taken(rows[:, first : first + width], used)
        columns = buffer[:, : part.shape[1]].copy_(part)
        torch.mv(columns.mT, factors, out=out[first : first + width])
    return out


def row_norms(values: Tensor) -> Tensor:
    """Return the Euclidean norm of each row, of long rows slightly more than it.

    Norms of blocks of m = 64 entries are in float32, off by at most a share (m / 2 + 2) 2^-24 of
    themselves and, where squares leave the normal range, sqrt(m) 2^-63. Entries beyond 1.8e19 have
    an infinite norm.

    Args:
        values: Shape (N, ...).

    Returns:
        Shape (N,), float64.
    """
    values = values.flatten(1)
    if values.dtype == torch.float64 or values.numel() <= _ENTRIES:
        return torch.linalg.vector_norm(aligned(values.double()), dim=1)
    blocked = values.shape[1] // _BLOCK * _BLOCK
    blocks = values[:, :blocked].unflatten(1, (-1, _BLOCK))
    block_norms = torch.linalg.vector_norm(blocks, dim=2).double()
    norms = torch.hypot(
        torch.linalg.vector_norm(aligned(block_norms), dim=1),
        torch.linalg.vector_norm(aligned(values[:, blocked:].double()), dim=1),
    )
    relative_error = (_BLOCK / 2 + 2) * 2.0**-24
    return norms.mul_(1 + relative_error).add_(values.shape[1] ** 0.5 * 2.0**-63)


def aligned(values: Tensor) -> Tensor:
    """On a GPU, pad the last axis with zeros, so that each row starts where vectors of entries do.

    Torch adds a row up in another order where it starts elsewhere, and then its last bits depend on
    its place.
    """
    missing = -values.shape[-1] % _ENTRIES_OF_VECTORS
    if not values.is_cuda or missing == 0:
        return values
    return functional.pad(values, (0, missing))


def _write_product_sum(a: Tensor, g: Tensor, out: Tensor) -> None:
    """Write the sum of products over records and positions to `out`, shape (groups o p,)."""
    if a.dim() == 2:
        # An Embedding's indices: each position adds its g to the row of its index.
        out.zero_().view(-1, g.shape[3]).index_add_(0, a.flatten(), g.flatten(0, 2))
        return
    groups = a.shape[1]
    inputs = a.shape[3]
    outputs = g.shape[3]
    left = g.transpose(0, 1).reshape(groups, -1, outputs)
    right = a.transpose(0, 1).reshape(groups, -1, inputs)
    torch.bmm(left.mT, right.double(), out=out.view(groups, outputs, inputs))
