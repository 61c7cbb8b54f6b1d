"""One record's result is its own: all passes over records have one shape, at which each row is computed by itself.

What a pass computes for one row can differ in its last bits with the number of rows, and a hostile
start state makes any difference large. At one shape, checked on synthetic rows to compute each row
by itself, a record's result is its own. The check reads no record; what it shows holds for this
module, shape, device, number of threads and library build, as far as it was tried: it is a test and
not a proof (docs/sensitivity.md).
"""

import copy
import ctypes
import hashlib
import logging
import math
import os
import pickle
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fl_dpbayes.errors import UserError
from fl_dpbayes.models.code_behind import code_behind
from fl_dpbayes.models.parameters import trainable_parameters
from fl_dpbayes.models.products import Products

# (features (P, ...), targets (P,)) -> what a pass computes of each row, tensors whose first axis is
# the rows'.
RowResults = Callable[[Tensor, Tensor], Sequence[Tensor]]

# Kernels treat their last rows apart; at multiples of 64 there are no such rows, at those of 16 and
# 32 there seldom are, and the check says where.
ROWS = 64
MOST_ROWS = 1280
PREDICTION_ROWS = 256
NEIGHBOURS = (0.0, math.nan, math.inf, 1e30)
DRAWS = 4
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
TIMED_PASSES = 3
# What torch says behind the name of an operation of which it has no other way on a GPU.
_NOT_REPEATABLE = " does not have a deterministic implementation"

logger = logging.getLogger("fl_dpbayes.site")


@dataclass(frozen=True)
class PassShape:
    """What every pass of a computation looks like, so that each of its rows stands alone.

    Attributes:
        computation: What the passes compute of records.
        wanted: How many rows are cheapest, >= 1.
        rows: P, how many rows every pass has: `wanted`, twice or four times as many, or 1.
        products: How matrix products are computed.
        slower: How many times as long a record takes as in a plain pass of `wanted` rows, measured on made-up rows; 1
            in such a pass.
    """

    computation: Literal["gradients", "predictions", "features"]
    wanted: int
    rows: int
    products: Products = "plain"
    slower: float = 1.0

    @property
    def one_by_one(self) -> bool:
        """Whether each record needs a pass of its own, where one for many was wanted."""
        return self.rows == 1 < self.wanted


@dataclass(frozen=True)
class Trial:
    """A pass over made-up rows, (P, ...) and (P,), and what it computes of each of them."""

    results: RowResults
    features: Tensor
    targets: Tensor


# Shape -> passes of that shape, one for each draw of weights.
Trials = Callable[[PassShape], Iterable[Trial]]
_known: dict[Hashable, PassShape] = {}
_noted: ContextVar[set[PassShape] | None] = ContextVar("noted", default=None)


def pieces(rows: int, *tensors: Tensor) -> Iterator[tuple[Any, ...]]:
    """Cut tensors (N, ...) alike into pieces of exactly P rows, and say how many of them are records.

    The last piece is padded by zeros; one that is whole, and begins where kernels work on whole
    vectors, is not copied. There is no piece for N = 0.
    """
    count = min(map(len, tensors))

    def placed(part: Tensor) -> Tensor:
        return part if len(part) == rows and part.data_ptr() % 64 == 0 else _filled(rows, part)

    for start in range(0, count, rows):
        parts = [tensor[start : start + rows] for tensor in tensors]
        yield *map(placed, parts), min(rows, count - start)


def padded(rows: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Copy tensors (N, ...), N <= P, into fresh buffers (P, ...), the other rows zero.

    Returns the buffers, and which rows are records, shape (P,), bool.
    """
    real = torch.arange(rows, device=tensors[0].device) < len(tensors[0])
    return *(_filled(rows, tensor) for tensor in tensors), real


def _filled(rows: int, tensor: Tensor) -> Tensor:
    buffer = tensor.new_zeros((rows, *tensor.shape[1:]))
    buffer[: len(tensor)] = tensor
    return buffer


def training_rows(module: nn.Module, expected_batch_size: float) -> int:
    """Choose P for gradients as `cheapest_rows`: 64 to 1280 in steps of 32, or 16 to 160 in steps of 16.

    The latter in convolutions and where layers are normalised: a row is dear there.
    """
    if any(
        isinstance(layer, nn.Conv2d | nn.LayerNorm | nn.GroupNorm) for layer in module.modules()
    ):
        return cheapest_rows(
            range(ROWS // 4, 5 * ROWS // 2 + 1, ROWS // 4), 16, expected_batch_size
        )
    size = sum(value.numel() for value in trainable_parameters(module).values())
    return cheapest_rows(
        range(ROWS, MOST_ROWS + 1, ROWS // 2), 32 + 2**20 / max(1, size), expected_batch_size
    )


def cheapest_rows(choices: Iterable[int], beside: float, expected_batch_size: float) -> int:
    """Return the P at which the passes of a batch of B = q n units on average cost least.

    B is a public constant, never the size of a drawn batch. `beside`: what a pass costs beside its
    rows, in rows.
    """
    spread = math.sqrt(2 * expected_batch_size)

    def cost(rows: int) -> float:
        # The size of a Poisson batch is nearly normal; pass k + 1 is needed if it exceeds k P.
        starts = range(0, math.ceil(expected_batch_size + 6 * spread), rows)
        return (rows + beside) * sum(
            math.erfc((start - expected_batch_size) / spread) / 2 for start in starts
        )

    return min(choices, key=cost)


def prediction_rows(module: nn.Module) -> int:
    """Choose P for predictions: 64 for convolutions, else 256."""
    return (
        ROWS if any(isinstance(layer, nn.Conv2d) for layer in module.modules()) else PREDICTION_ROWS
    )


class RowsDependError(UserError):
    """Not even a record alone gives the same bits twice: nothing can be released with the claimed sensitivity."""


def checked_shape(key: Hashable, wanted: PassShape, trials: Trials) -> PassShape:
    """Return the first shape whose rows stand alone.

    Looked for once per process, key and thread count.

    Tried are P, 2 P and 4 P rows, each with plain and with aligned products, then P with separate
    products, then 1 row.

    Args:
        key: What the passes compute, as `structure` says of a module.
        wanted: The shape that is cheapest; of 1 row if there is memory for no more.
        trials: Shape -> passes of that shape over made-up rows.

    Raises:
        RowsDependError: If a single row does not give the same bits twice, or torch says that it may not.
    """
    key = (key, wanted, torch.get_num_threads(), torch.__version__)
    if key not in _known:
        chosen = next((shape for shape in _choices(wanted) if _stands_alone(shape, trials)), None)
        if chosen is None:
            problem = (
                "this model gives one record different results when it is computed twice "
                "on this device"
            )
            raise RowsDependError(
                f"{problem}: use another device, or a model without such operations"
            )
        if chosen != wanted:
            alone, together = (_seconds_of_row(shape, trials) for shape in (chosen, wanted))
            chosen = replace(chosen, slower=max(1.0, float(f"{alone / together:.2g}")))
        if chosen.one_by_one:
            said = (
                "rows of a pass depend on each other on this device: %s are computed one by "
                "one, %.2g times as slow"
            )
            logger.warning(said, chosen.computation, chosen.slower)
        _known[key] = chosen
    return _known[key]


def _choices(wanted: PassShape) -> Iterator[PassShape]:
    if wanted.rows > 1:
        for times in (1, 2, 4):
            yield replace(wanted, rows=times * wanted.rows)
            yield replace(wanted, rows=times * wanted.rows, products="aligned")
        yield replace(wanted, products="separate")
    yield replace(wanted, rows=1)


def _stands_alone(shape: PassShape, trials: Trials) -> bool:
    generator = np.random.default_rng(0)
    try:
        return all(
            rows_stand_alone(trial.results, trial.features, trial.targets, generator)
            for trial in trials(shape)
        )
    except RuntimeError as error:
        operation, said, _ = str(error).partition(_NOT_REPEATABLE)
        if not said:
            raise
        problem = f"on this device {operation} may give a record other bits when it runs again"
        raise RowsDependError(f"{problem}: use another device, or a model without it") from None


def _seconds_of_row(shape: PassShape, trials: Trials) -> float:
    trial = next(iter(trials(shape)))
    seconds = []
    for _ in range(TIMED_PASSES):
        begun = time.perf_counter()
        trial.results(trial.features.clone(), trial.targets)
        seconds.append(time.perf_counter() - begun)
    return min(seconds) / shape.rows


def note(shape: PassShape) -> None:
    """Let those who listen by `noted_shapes` know that passes of this shape are computed."""
    noted = _noted.get()
    if noted is not None:
        noted.add(shape)


def shapes_so_far() -> set[PassShape]:
    """Return the shapes that were noted since the innermost `noted_shapes` began."""
    return set(_noted.get() or ())


@contextmanager
def noted_shapes() -> Iterator[set[PassShape]]:
    """Collect the shapes of all passes that are computed while the context lasts."""
    noted = set[PassShape]()
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


def rows_stand_alone(
    results: RowResults, features: Tensor, targets: Tensor, generator: np.random.Generator
) -> bool:
    """Say whether the rows' results keep every bit when the pass is repeated, permuted, or has other neighbours.

    Tried are a repetition, a permutation, and three passes in which all rows but half, 2 % or one
    are replaced, by 0, NaN, infinity or 1e30 (by 0 where one stays); of a single row the
    repetition. `features`, `targets`: synthetic.
    """
    rows = len(features)
    expected = [values.clone() for values in results(features.clone(), targets)]

    def agree(places: np.ndarray, found: Sequence[Tensor], at: np.ndarray) -> bool:
        mine, theirs = (torch.from_numpy(each).to(features.device) for each in (places, at))
        return all(
            _same_bits(new[theirs], old[mine]) for new, old in zip(found, expected, strict=True)
        )

    everyone = np.arange(rows)
    if not agree(everyone, results(features.clone(), targets), everyone):
        return False
    if rows == 1:
        return True
    order = generator.permutation(rows)
    moved = torch.from_numpy(order).to(features.device)
    if not agree(order, results(features[moved], targets[moved]), everyone):
        return False
    for kept, neighbours in (
        (rows // 2, NEIGHBOURS),
        (max(2, rows // 50), NEIGHBOURS),
        (1, (0.0,)),
    ):
        places = np.sort(generator.choice(rows, kept, replace=False))
        stay = torch.from_numpy(places).to(features.device)
        values = torch.from_numpy(generator.choice(neighbours, rows)).to(features)
        others = values.view(-1, *(1,) * (features.dim() - 1)).expand_as(features).clone()
        other_targets = targets.flip(0).clone()
        others[stay], other_targets[stay] = features[stay], targets[stay]
        if not agree(places, results(others, other_targets), places):
            return False
    return True


def failing_rows(results: Callable[[Tensor], object], features: Tensor) -> Tensor:
    """Say on which rows (N, ...) a pass raises an error, each tried beside zeros, shape (N,).

    Raises what zeros raise.

    An error that left a site would tell that a record has such a value: it counts as a result that
    is not finite.
    """
    results(torch.zeros_like(features))
    failing = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    for number, row in enumerate(features):
        alone = torch.zeros_like(features)
        alone[0] = row
        try:
            results(alone)
        except Exception:
            failing[number] = True
    return failing


def drawn_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield copies of a module under made-up weights: two normal draws, two of integers up to 2^20, over 2^20."""
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        drawn = copy.deepcopy(module)
        for value in trainable_parameters(drawn).values():
            if draw % 2:
                shape, most = value.shape, 2**20
                numbers = torch.randint(
                    -most, most + 1, shape, generator=generator, dtype=torch.float32
                ).div_(most)
            else:
                numbers = torch.randn(value.shape, generator=generator).div_(
                    max(1, value[:1].numel()) ** 0.5
                )
            value.data = numbers.to(value)
        yield drawn


def structure(module: nn.Module) -> Hashable:
    """Return what a module computes apart from its parameters' values.

    Equal to no other where none can say.
    """
    # A layer that is used twice is named twice.
    named = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    values = [
        (name, tuple(one.shape), one.dtype, str(one.device), one.requires_grad)
        for name, one in named
    ]
    kept = [hashlib.sha256(bytes_of(value)).digest() for value in module.buffers()]
    layers = module.named_modules(remove_duplicate=False)
    return (
        tuple((name, type(layer), _settings(layer)) for name, layer in layers),
        tuple(values),
        tuple(kept),
    )


def _settings(layer: nn.Module) -> Hashable:
    own = attributes_of(layer)
    if type(layer).__module__.startswith("fl_dpbayes."):
        return tuple(
            sorted(
                (key, repr(v)) for key, v in own.items() if isinstance(v, int | float | str | tuple)
            )
        )
    try:
        # Pickled code is a name alone.
        return hashlib.sha256(pickle.dumps(own)).digest(), code_behind(layer)
    except Exception:
        return object()


def attributes_of(layer: nn.Module) -> dict[str, object]:
    """Return what a layer holds beside its parameters, buffers and layers."""
    return {
        key: value
        for key, value in vars(layer).items()
        if key not in ("_parameters", "_buffers", "_modules")
    }


def bytes_of(value: Tensor) -> bytes:
    """Return a tensor's bits."""
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _same_bits(first: Tensor, second: Tensor) -> bool:
    integers = _INTEGERS[first.element_size()]
    same = first.view(integers) == second.view(integers)
    return bool((same | (first.isnan() & second.isnan())).all())


def repeatable(device: torch.device) -> None:
    """Set torch to full float32, and on CUDA to algorithms that give the same bits whenever they run.

    With the 10 bits of TF32 a clipped gradient could exceed the clip norm by a thousandth.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if device.type == "cuda":
        # Read when the first matrix product runs.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)


@cache
def keep_freed_memory() -> None:
    """Let this process keep up to 256 MiB that it has freed, which each step would otherwise be given and clear anew.

    Blocks of more than 32 MiB are still given back. Without glibc nothing is done.
    """
    with suppress(AttributeError, OSError, TypeError):
        # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h.
        _ = ctypes.CDLL(None).mallopt(-3, 2**25), ctypes.CDLL(None).mallopt(-1, 2**28)
