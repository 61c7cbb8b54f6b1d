"""Gradients of one pass's records by one layer, formed or as a product, with their norms and weighted sums."""

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
# Rows in use: the first ones, by number, or marked.
Rows = slice | Tensor


@dataclass(frozen=True)
class LayerGradients:
    """Per-example gradients of one layer, the first parameter's as a product where it need not be formed.

    `norms`: of all of the layer's gradient, (N,), float64. `formed`: gradients of the parameters in
    order, without the first if it is a product, (N, size) each. `product`: a, (N, groups, L, p), or
    of an Embedding the indices, (N, L); and g, (N, groups, L, o). `entries`: size of its parameter.
    A layer of one position has a, (N, p), and g, (N, o), and if `biased` nothing formed: its bias
    has g. `buffers`: float64 memory for these, which sums use again.
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
        """How many terms of a weighted sum a record adds to each entry, times how far they may cancel."""
        length = (
            1 if self.product is None or self.product[1].dim() == 2 else self.product[1].shape[2]
        )
        return 1.0 if length == 1 else length * LARGEST_CANCELLATION

    @property
    def size(self) -> int:
        """Number of entries of the layer's parameters."""
        bias = self.product[1].shape[1] if self.product is not None and self.biased else 0
        return self.entries + bias + sum(values.shape[1] for values in self.formed)

    def weighted_sum(self, factors: Tensor, used: Rows, out: Tensor) -> None:
        """Write sum_i c_i of the gradients of the rows in use, factors c_i of shape (N,), to `out`, (size,), float64.

        A row that is not used is left out whatever its gradient holds (0 times infinity is NaN).
        """
        if self.product is not None:
            a, g, own = (taken(values, used) for values in (*self.product, factors))
            if g.dim() == 2:
                self._outer_sum(a, g, own, out)
                return
            own = own.view(-1, 1, 1, 1)
            # Both are float64; the narrower one is scaled, which costs less.
            scaled = (a * own, g) if a.dim() > 2 and a.shape[3] < g.shape[3] else (a, g * own)
            _product_sum(*scaled, out[: self.entries])
        # A bias of several positions is not summed from g: where they cancel, the rounding of their
        # weighted sum can exceed what their norm foretold.
        parts = out[self.entries :].split([values.shape[1] for values in self.formed])
        for values, part in zip(self.formed, parts, strict=True):
            weighted_rows(factors, values, used, part)

    def _outer_sum(self, a: Tensor, g: Tensor, factors: Tensor, out: Tensor) -> None:
        buffers = self.buffers or (factors.new_empty(0), factors.new_empty(0))
        a, g = (
            buffer.resize_(values.shape).copy_(values)
            for buffer, values in zip(buffers, (a, g), strict=True)
        )
        torch.mm(g.mul_(factors[:, None]).mT, a, out=out[: self.entries].view(g.shape[1], -1))
        if self.biased:
            torch.sum(g, 0, out=out[self.entries :])


def outer_gradients(
    a: Tensor,
    g: Tensor,
    biased: bool,
    buffers: tuple[Tensor, Tensor] | None = None,
    lengths: Tensor | None = None,
) -> LayerGradients:
    """Take a, (N, p), and g, (N, o), of a layer of one position.

    `lengths`: its `input_lengths` if they are known.
    """
    norms = row_norms(g).mul_(input_lengths(a, biased) if lengths is None else lengths)
    return LayerGradients(norms, (), (a, g), a.shape[1] * g.shape[1], biased, buffers)


def input_lengths(a: Tensor, biased: bool) -> Tensor:
    """Return sqrt(|a|^2 + 1), or without a bias |a|, of inputs (N, p): times |g| it is the norm of g a' and g."""
    return row_norms(a).square_().add_(biased).sqrt_()


def formed_gradients(parameters: Sequence[Tensor]) -> LayerGradients:
    """Take gradients of a layer's parameters, each of shape (N, size), as they are."""
    return LayerGradients(reduce(torch.hypot, map(row_norms, parameters)), tuple(parameters))


def used_rows(factors: Tensor) -> Rows:
    """Return which rows have a factor above zero: a slice where they come first, else their numbers.

    On a GPU they are marked: to learn a number would be to wait for all that is computed there.
    """
    if factors.is_cuda:
        return factors > 0
    count = int(factors.count_nonzero())
    return slice(count) if count == len(factors) else factors.nonzero()[:, 0]


def taken(values: Tensor, used: Rows) -> Tensor:
    """Take rows in use, (M, ...), of values (N, ...).

    Where they are marked, all that have a mark, the others as 0.
    """
    if isinstance(used, Tensor) and used.dtype == torch.bool:
        return torch.where(used.view(-1, *(1,) * (values.dim() - 1)), values[: len(used)], 0)
    return values[used]


def weighted_rows(
    factors: Tensor, rows: Tensor, used: Rows | None = None, out: Tensor | None = None
) -> Tensor:
    """Return sum_i c_i r_i over the rows in use, shape (d,), float64, from rows (N, d).

    A row with c_i = 0 is left out whatever it holds (0 times infinity is NaN).
    """
    used = used_rows(factors) if used is None else used
    factors = taken(factors, used)
    out = factors.new_empty(rows.shape[1]) if out is None else out
    entries = _ENTRIES if factors.device.type == "cpu" else _ENTRIES_ON_GPU
    width = max(1, min(rows.shape[1], entries // max(1, len(factors))))
    buffer = factors.new_empty((len(factors), width))
    for first in range(0, rows.shape[1], width):
        part = taken(rows[:, first : first + width], used)
        torch.mv(buffer[:, : part.shape[1]].copy_(part).mT, factors, out=out[first : first + width])
    return out


def row_norms(values: Tensor) -> Tensor:
    """Return the Euclidean norm of each row, shape (N,), float64, of long rows slightly more than it.

    Norms of blocks of m = 64 entries are in float32, off by at most a share (m / 2 + 2) 2^-24 of
    themselves and, where squares leave the normal range, sqrt(m) 2^-63. Entries beyond 1.8e19 have
    an infinite norm.
    """
    values = values.flatten(1)
    if values.dtype == torch.float64 or values.numel() <= _ENTRIES:
        return torch.linalg.vector_norm(aligned(values.double()), dim=1)
    whole = values.shape[1] // _BLOCK * _BLOCK
    blocks = torch.linalg.vector_norm(values[:, :whole].unflatten(1, (-1, _BLOCK)), dim=2).double()
    norms = torch.hypot(
        *(
            torch.linalg.vector_norm(aligned(part), dim=1)
            for part in (blocks, values[:, whole:].double())
        )
    )
    return norms.mul_(1 + (_BLOCK / 2 + 2) * 2.0**-24).add_(values.shape[1] ** 0.5 * 2.0**-63)


def aligned(values: Tensor) -> Tensor:
    """On a GPU, put zeros behind the last axis, so that each row starts where vectors of entries do.

    Torch adds a row up in another order where it starts elsewhere, and then its last bits depend on
    its place.
    """
    missing = -values.shape[-1] % _ENTRIES_OF_VECTORS
    return functional.pad(values, (0, missing)) if values.is_cuda and missing else values


def _product_sum(a: Tensor, g: Tensor, out: Tensor) -> None:
    if a.dim() == 2:
        out.zero_().view(-1, g.shape[3]).index_add_(0, a.flatten(), g.flatten(0, 2))
        return
    groups, p, o = a.shape[1], a.shape[3], g.shape[3]
    left, right = (values.transpose(0, 1).reshape(groups, -1, values.shape[3]) for values in (g, a))
    torch.bmm(left.mT, right.double(), out=out.view(groups, o, p))
