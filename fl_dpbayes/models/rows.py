"""A record's result is its own: passes have one shape, at which each row is computed by itself.

What a pass computes for one row can differ in its last bits with the number of rows, and a hostile
start state makes any difference large. So a shape is checked on synthetic rows; no record is read.
The check is a test, not a proof, and holds for this module, shape, device, number of threads and
library build (docs/sensitivity.md).
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
# that of the rows.
RowResults = Callable[[Tensor, Tensor], Sequence[Tensor]]

# Kernels treat their last rows apart; at multiples of 64 there are no such rows, at those of 16 and
# 32 there seldom are, and the check says where.
ROWS = 64
MOST_ROWS = 1280
PREDICTION_ROWS = 256
# Values of the rows beside those that stay.
NEIGHBOURS = (0.0, math.nan, math.inf, 1e30)
# Made-up weights under which a module is tried.
DRAWS = 4
# Integers of a floating-point number's size in bytes, to compare bits.
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
        slower: How many times as long a record takes as in a plain pass of `wanted` rows, measured
            on made-up rows; 1 in such a pass.
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
    """A pass over made-up rows.

    Attributes:
        results: What the pass computes of each row.
        features: Shape (P, ...).
        targets: Shape (P,).
    """

    results: RowResults
    features: Tensor
    targets: Tensor


# Shape -> passes of that shape, one for each draw of weights.
Trials = Callable[[PassShape], Iterable[Trial]]
_known: dict[Hashable, PassShape] = {}
_noted: ContextVar[set[PassShape] | None] = ContextVar("noted", default=None)


def pieces(rows: int, *tensors: Tensor) -> Iterator[tuple[Any, ...]]:
    """Cut tensors alike into pieces of exactly P rows.

    The last piece is padded by zeros. One that has P records, and begins where kernels work on
    whole vectors, is not copied. There is no piece for N = 0.

    Args:
        rows: P.
        *tensors: Shape (N, ...) each.

    Yields:
        A piece of each tensor, shape (P, ...), and how many of its rows are records.
    """
    count = min(map(len, tensors))
    for start in range(0, count, rows):
        parts = [_piece(rows, tensor[start : start + rows]) for tensor in tensors]
        yield *parts, min(rows, count - start)


def _piece(rows: int, part: Tensor) -> Tensor:
    is_aligned = part.data_ptr() % 64 == 0
    return part if len(part) == rows and is_aligned else _filled(rows, part)


def padded(rows: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Copy tensors into fresh buffers, the other rows zero.

    Args:
        rows: P.
        *tensors: Shape (N, ...) each, N <= P.

    Returns:
        The buffers, shape (P, ...) each, and which rows are records, shape (P,), bool.
    """
    is_record = torch.arange(rows, device=tensors[0].device) < len(tensors[0])
    return *(_filled(rows, tensor) for tensor in tensors), is_record


def _filled(rows: int, tensor: Tensor) -> Tensor:
    buffer = tensor.new_zeros((rows, *tensor.shape[1:]))
    buffer[: len(tensor)] = tensor
    return buffer


def training_rows(module: nn.Module, expected_batch_size: float) -> int:
    """Choose how many rows the passes of gradients have.

    A row is dear in convolutions and where layers are normalised: there it is one of 16 to 160 in
    steps of 16, elsewhere one of 64 to 1280 in steps of 32.

    Args:
        module: What is trained.
        expected_batch_size: B = q n.

    Returns:
        P, as `cheapest_rows` finds it.
    """
    dear_layers = (nn.Conv2d, nn.LayerNorm, nn.GroupNorm)
    if any(isinstance(layer, dear_layers) for layer in module.modules()):
        choices = range(ROWS // 4, 5 * ROWS // 2 + 1, ROWS // 4)
        return cheapest_rows(choices, beside=16, expected_batch_size=expected_batch_size)
    size = sum(value.numel() for value in trainable_parameters(module).values())
    choices = range(ROWS, MOST_ROWS + 1, ROWS // 2)
    beside = 32 + 2**20 / max(1, size)
    return cheapest_rows(choices, beside=beside, expected_batch_size=expected_batch_size)


def cheapest_rows(choices: Iterable[int], beside: float, expected_batch_size: float) -> int:
    """Return the P at which the passes of a batch cost least on average.

    Args:
        choices: What P may be.
        beside: What a pass costs beside its rows, in rows.
        expected_batch_size: B = q n, a public constant, never the size of a drawn batch.

    Returns:
        P.
    """
    spread = math.sqrt(2 * expected_batch_size)

    def cost(rows: int) -> float:
        # The size of a Poisson batch is nearly normal; pass k + 1 is needed if it exceeds k P.
        starts = range(0, math.ceil(expected_batch_size + 6 * spread), rows)
        passes = sum(math.erfc((start - expected_batch_size) / spread) / 2 for start in starts)
        return (rows + beside) * passes

    return min(choices, key=cost)


def prediction_rows(module: nn.Module) -> int:
    """Choose P for predictions: 64 for convolutions, else 256."""
    has_convolution = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    return ROWS if has_convolution else PREDICTION_ROWS


class RowsDependError(UserError):
    """A record does not give the same bits twice even in a pass of its own.

    Nothing can be released with the claimed sensitivity.
    """


def checked_shape(key: Hashable, wanted: PassShape, trials: Trials) -> PassShape:
    """Return the first shape whose rows stand alone.

    Tried are P, 2 P and 4 P rows, each with plain and with aligned products, then P with separate
    products, then 1 row. The shape is looked for once per process, key and thread count.

    Args:
        key: What the passes compute, as `structure` says of a module.
        wanted: The shape that is cheapest; of 1 row if there is memory for no more.
        trials: Shape -> passes of that shape over made-up rows.

    Returns:
        The shape.

    Raises:
        RowsDependError: A single row does not give the same bits twice, or torch says that it may
            not.
    """
    key = (key, wanted, torch.get_num_threads(), torch.__version__)
    if key not in _known:
        _known[key] = _find_shape(wanted, trials)
    return _known[key]


def _find_shape(wanted: PassShape, trials: Trials) -> PassShape:
    chosen = next((shape for shape in _choices(wanted) if _stands_alone(shape, trials)), None)
    if chosen is None:
        raise RowsDependError(
            "this model gives one record different results when it is computed twice "
            "on this device: use another device, or a model without such operations"
        )
    if chosen != wanted:
        ratio = _seconds_of_row(chosen, trials) / _seconds_of_row(wanted, trials)
        chosen = replace(chosen, slower=max(1.0, float(f"{ratio:.2g}")))
    if chosen.one_by_one:
        logger.warning(
            "rows of a pass depend on each other on this device: %s are computed one by one, "
            "%.2g times as slow",
            chosen.computation,
            chosen.slower,
        )
    return chosen


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
            rows_stand_alone(
                trial.results, trial.features, targets=trial.targets, generator=generator
            )
            for trial in trials(shape)
        )
    except RuntimeError as error:
        operation, refusal, _ = str(error).partition(_NOT_REPEATABLE)
        if not refusal:
            raise
        raise RowsDependError(
            f"on this device {operation} may give a record other bits when it runs again: "
            "use another device, or a model without it"
        ) from None


def _seconds_of_row(shape: PassShape, trials: Trials) -> float:
    trial = next(iter(trials(shape)))
    seconds = []
    for _ in range(TIMED_PASSES):
        start = time.perf_counter()
        trial.results(trial.features.clone(), trial.targets)
        seconds.append(time.perf_counter() - start)
    return min(seconds) / shape.rows


def note(shape: PassShape) -> None:
    """Tell the contexts of `noted_shapes` that passes of this shape are computed."""
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
    """Say whether rows' results keep every bit when the pass is repeated, permuted, or changed.

    Tried are a repetition, a permutation, and three passes in which all rows but half, 2 % or one
    are replaced, by 0, NaN, infinity or 1e30 (by 0 where one stays); of a single row the
    repetition.

    Args:
        results: The pass.
        features: Synthetic, shape (P, ...).
        targets: Synthetic, shape (P,).
        generator: Draws the permutation and what is replaced.

    Returns:
        Whether they do.
    """
    count = len(features)
    expected = [values.clone() for values in results(features.clone(), targets)]

    def are_expected(values: Sequence[Tensor], rows: Tensor, originals: Tensor) -> bool:
        """Say whether some rows of a pass have what was computed for the original rows."""
        return all(
            _same_bits(new[rows], old[originals]) for new, old in zip(values, expected, strict=True)
        )

    every_row = torch.arange(count, device=features.device)
    repeated = results(features.clone(), targets)
    if not are_expected(repeated, rows=every_row, originals=every_row):
        return False
    if count == 1:
        return True
    order = torch.from_numpy(generator.permutation(count)).to(features.device)
    permuted = results(features[order], targets[order])
    if not are_expected(permuted, rows=every_row, originals=order):
        return False
    trials = ((count // 2, NEIGHBOURS), (max(2, count // 50), NEIGHBOURS), (1, (0.0,)))
    for unchanged_count, neighbours in trials:
        unchanged = np.sort(generator.choice(count, unchanged_count, replace=False))
        rows = torch.from_numpy(unchanged).to(features.device)
        values = torch.from_numpy(generator.choice(neighbours, count)).to(features)
        changed = values.view(-1, *(1,) * (features.dim() - 1)).expand_as(features).clone()
        changed[rows] = features[rows]
        changed_targets = targets.flip(0).clone()
        changed_targets[rows] = targets[rows]
        if not are_expected(results(changed, changed_targets), rows=rows, originals=rows):
            return False
    return True


def failing_rows(results: Callable[[Tensor], object], features: Tensor) -> Tensor:
    """Say on which rows a pass raises an error, each tried beside zeros.

    An error that left a site would tell that a record has such a value: it counts as a result that
    is not finite.

    Args:
        results: The pass; an error that it raises on zeros alone is raised.
        features: Shape (N, ...).

    Returns:
        Shape (N,), bool.
    """
    results(torch.zeros_like(features))
    fails = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    for number, row in enumerate(features):
        beside_zeros = torch.zeros_like(features)
        beside_zeros[0] = row
        try:
            results(beside_zeros)
        except Exception:
            fails[number] = True
    return fails


def drawn_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield copies of a module under made-up weights: normal and of integers, two of each in turn.

    The integers are up to 2^20, over 2^20.
    """
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        drawn = copy.deepcopy(module)
        for value in trainable_parameters(drawn).values():
            draw_weights = _drawn_integers if draw % 2 else _drawn_normals
            value.data = draw_weights(value, generator).to(value)
        yield drawn


def _drawn_normals(like: Tensor, generator: torch.Generator) -> Tensor:
    inputs = max(1, like[:1].numel())
    return torch.randn(like.shape, generator=generator).div_(inputs**0.5)


def _drawn_integers(like: Tensor, generator: torch.Generator) -> Tensor:
    most = 2**20
    integers = torch.randint(-most, most + 1, like.shape, generator=generator, dtype=torch.float32)
    return integers.div_(most)


def structure(module: nn.Module) -> Hashable:
    """Return what a module computes apart from its parameters' values.

    Equal to no other where none can say.
    """
    # A layer that is used twice is named twice.
    layers = module.named_modules(remove_duplicate=False)
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    tensors = [
        (name, tuple(value.shape), value.dtype, str(value.device), value.requires_grad)
        for name, value in (*parameters, *buffers)
    ]
    digests = [hashlib.sha256(bytes_of(value)).digest() for value in module.buffers()]
    return (
        tuple((name, type(layer), _settings(layer)) for name, layer in layers),
        tuple(tensors),
        tuple(digests),
    )


def _settings(layer: nn.Module) -> Hashable:
    attributes = attributes_of(layer)
    if type(layer).__module__.startswith("fl_dpbayes."):
        plain = [
            (name, repr(value))
            for name, value in attributes.items()
            if isinstance(value, int | float | str | tuple)
        ]
        return tuple(sorted(plain))
    try:
        # Pickled code is a name alone.
        return hashlib.sha256(pickle.dumps(attributes)).digest(), code_behind(layer)
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
    is_equal = first.view(integers) == second.view(integers)
    are_both_nan = first.isnan() & second.isnan()
    return bool((is_equal | are_both_nan).all())


def repeatable(device: torch.device) -> None:
    """Set torch to full float32, and on CUDA to algorithms that give the same bits in every run.

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
    """Let this process keep up to 256 MiB that it has freed.

    Each step would otherwise ask the system for fresh memory, and wait until it is cleared. Blocks
    of more than 32 MiB are still given back. Without glibc nothing is done.
    """
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        # By the numbers of malloc.h: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
        library.mallopt(-3, 2**25)
        library.mallopt(-1, 2**28)
