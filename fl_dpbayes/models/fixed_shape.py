"""Passes of one public shape: every pass over records has the same number of rows, however many records there are.

What a pass computes for one row can differ in its last bits with the number of rows, and a hostile start state makes
any difference large. At one shape, checked by row_check.py, a record's result is its own (docs/sensitivity.md).
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

# Kernels treat their last rows apart; at multiples of 64 there are no such rows.
ROWS = 64
MOST_ROWS = 1024
PREDICTION_ROWS = 256


def pieces(rows: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut records into pieces of exactly `rows` rows, copied into fresh buffers whose other rows are zero.

    Args:
        rows: P >= 1.
        tensors: each of shape (N, ...), cut alike; no piece for N = 0.

    Returns:
        For each piece the padded tensors, shapes (P, ...), and which rows are records, shape (P,), bool.
    """
    for start in range(0, len(tensors[0]), rows):
        yield padded(rows, *(tensor[start : start + rows] for tensor in tensors))


def padded(rows: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Copy records into fresh buffers of `rows` rows, the others zero.

    Args:
        rows: P.
        tensors: each of shape (N, ...), N <= P.

    Returns:
        The buffers, shapes (P, ...), and which rows are records, shape (P,), bool.
    """
    buffers = [tensor.new_zeros((rows, *tensor.shape[1:])) for tensor in tensors]
    for buffer, tensor in zip(buffers, tensors, strict=True):
        buffer[: len(tensor)] = tensor
    return *buffers, torch.arange(rows, device=tensors[0].device) < len(tensors[0])


def training_rows(module: nn.Module, expected_batch_size: float) -> int:
    """Choose P for gradients: 64 for convolutions, else B + 3 sqrt(B) rounded up to a multiple of 64, at most 1024.

    Args:
        module: the model.
        expected_batch_size: B = q n, a public constant; never the size of a batch that was drawn.

    Returns:
        A multiple of 64.
    """
    if _convolves(module):
        return ROWS
    wanted = expected_batch_size + 3 * math.sqrt(expected_batch_size)
    return min(MOST_ROWS, ROWS * max(1, math.ceil(wanted / ROWS)))


def prediction_rows(module: nn.Module) -> int:
    """Choose P for predictions: 64 for convolutions, else 256."""
    return ROWS if _convolves(module) else PREDICTION_ROWS


def _convolves(module: nn.Module) -> bool:
    return any(isinstance(layer, nn.Conv2d) for layer in module.modules())
