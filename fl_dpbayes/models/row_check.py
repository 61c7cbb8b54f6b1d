"""Checks on made-up rows that a pass of one shape computes each row by itself, bit for bit, here and now.

It reads no record. What it shows holds for this module, shape, device, number of threads and library build, as far as
it was tried: it is a test and not a proof (docs/sensitivity.md).
"""

import copy
import logging
import math
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.models.parameters import trainable_parameters

# (features (P, ...), targets (P,)) -> what a pass computes of each row, tensors whose first axis is the rows'.
RowResults = Callable[[Tensor, Tensor], Sequence[Tensor]]

NEIGHBOURS = (0.0, math.nan, math.inf, 1e30)
DRAWS = 4
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

logger = logging.getLogger("fl_dpbayes.site")
_known: dict[Hashable, int] = {}


class RowsDependError(UserError):
    """Not even a record alone gives the same bits twice: nothing can be released with the claimed sensitivity."""


def checked_rows(key: Hashable, rows: int, stand_alone: Callable[[int], bool]) -> int:
    """Return the first of P, 2 P and 4 P rows that passes the check, else 1; once per process, key and thread count.

    Args:
        key: everything that decides what a pass computes, but for its number of rows.
        rows: P; 1 if there is memory for no more.
        stand_alone: number of rows -> whether each row of such a pass stands alone.

    Returns:
        The number of rows of every pass.

    Raises:
        RowsDependError: if a single row does not give the same bits twice.
    """
    key = (key, rows, torch.get_num_threads(), torch.__version__)
    if key not in _known:
        _known[key] = next(filter(stand_alone, (rows, 2 * rows, 4 * rows) if rows > 1 else ()), 0) or _one_row(
            rows, stand_alone
        )
    return _known[key]


def rows_stand_alone(results: RowResults, features: Tensor, targets: Tensor, generator: np.random.Generator) -> bool:
    """Say whether the rows' results keep every bit when the pass is repeated, permuted, or has other neighbours.

    Tried are a repetition, a permutation, and three passes in which all rows but half, 2 % or one are replaced, by 0,
    NaN, infinity or 1e30 (by 0 where one stays); of a single row the repetition.

    Args:
        results: the pass.
        features: made-up rows, shape (P, ...).
        targets: made-up targets, shape (P,).
        generator: chooses places and neighbours.

    Returns:
        Whether all bits agree.
    """
    rows = len(features)
    expected = [values.clone() for values in results(features, targets)]

    def agree(places: np.ndarray, found: Sequence[Tensor], at: np.ndarray) -> bool:
        mine, theirs = (torch.from_numpy(each).to(features.device) for each in (places, at))
        return all(_same_bits(new[theirs], old[mine]) for new, old in zip(found, expected, strict=True))

    everyone = np.arange(rows)
    if not agree(everyone, results(features, targets), everyone):
        return False
    if rows == 1:
        return True
    order = generator.permutation(rows)
    moved = torch.from_numpy(order).to(features.device)
    if not agree(order, results(features[moved], targets[moved]), everyone):
        return False
    for kept, neighbours in ((rows // 2, NEIGHBOURS), (max(2, rows // 50), NEIGHBOURS), (1, (0.0,))):
        places = np.sort(generator.choice(rows, kept, replace=False))
        stay = torch.from_numpy(places).to(features.device)
        values = torch.from_numpy(generator.choice(neighbours, rows)).to(features)
        others = values.view(-1, *(1,) * (features.dim() - 1)).expand_as(features).clone()
        other_targets = targets.flip(0).clone()
        others[stay], other_targets[stay] = features[stay], targets[stay]
        if not agree(places, results(others, other_targets), places):
            return False
    return True


def drawn_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield copies of a module under made-up weights: two normal draws, two of integers up to 2^20, over 2^20."""
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        drawn = copy.deepcopy(module)
        for value in trainable_parameters(drawn).values():
            if draw % 2:
                numbers = torch.randint(-(2**20), 2**20 + 1, value.shape, generator=generator) / 2**20
            else:
                numbers = torch.randn(value.shape, generator=generator) / max(1, value[:1].numel()) ** 0.5
            value.data = numbers.to(value)
        yield drawn


def structure(module: nn.Module) -> Hashable:
    """Return what a module computes apart from the values of its parameters, as far as a key can say it."""
    layers = [
        (type(layer), *sorted((k, repr(v)) for k, v in vars(layer).items() if isinstance(v, int | float | str | tuple)))
        for layer in module.modules()
    ]
    values = [
        (name, tuple(value.shape), value.dtype, str(value.device), value.requires_grad)
        for name, value in (*module.named_parameters(), *module.named_buffers())
    ]
    return tuple(layers), tuple(values)


def _one_row(rows: int, stand_alone: Callable[[int], bool]) -> int:
    if not stand_alone(1):
        raise RowsDependError(
            "this model gives one record different results when it is computed twice on this device: use another "
            "device, or a model without such operations"
        )
    if rows > 1:
        logger.warning(
            "rows of a pass depend on each other on this device (tried %d, %d and %d rows): records are computed one "
            "by one, which is slow",
            rows,
            2 * rows,
            4 * rows,
        )
    return 1


def _same_bits(first: Tensor, second: Tensor) -> bool:
    integers = _INTEGERS[first.element_size()]
    same = first.view(integers) == second.view(integers)
    return bool((same | (first.isnan() & second.isnan())).all())
