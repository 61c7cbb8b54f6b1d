"""Draws N(0, 1) numbers from a cryptographic counter-based generator.

Its integers are the same on the host and on a device.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, starmap

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fl_dpbayes.models.on_device import moved

# Numbers of a part, 6 bytes of the stream each: what is made of them stays in a processor's cache.
PART = 2**14
# Small vectors are drawn together, up to so many numbers: on a device each of 500 operations costs
# a launch.
_TOGETHER = 2**18
# Parts that are drawn at once on a device, of one vector or of several; they take some 200 MB
# meanwhile.
_PARTS_AT_ONCE = 256
# One step of the angle: 2 pi / 2^32.
_TURN = math.pi / 2**31
_HOST = torch.device("cpu")
_ZEROS = memoryview(bytes(6 * PART))

Floats = npt.NDArray[np.float32]


def standard_normals(
    generator: np.random.Generator, shape: tuple[int, ...], device: torch.device = _HOST
) -> torch.Tensor:
    """Draw N(0, 1) numbers of a shape, float32, as `normal_vectors` does."""
    size = math.prod(shape)
    return next(normal_vectors(generator, size=size, count=1, device=device)).reshape(shape)


def normal_vectors(
    generator: np.random.Generator, size: int, count: int, device: torch.device = _HOST
) -> Iterator[torch.Tensor]:
    """Yield vectors of N(0, 1) numbers, up to 9.4 standard deviations.

        (x, y) = sqrt(-2 log u) (cos a, sin a),   u = (|i| + 1/2) / 2^63,   a = pi j / 2^31

    i and j are signed integers of 64 and 32 bits of the stream cipher ChaCha20. Its key is drawn
    from `generator`, which moves by these 32 bytes alone; its nonce is the number of a part of 2^14
    numbers. Integers do not depend on the device; numbers differ by a rounding of sine and cosine.
    On the host, where this process has a core to spare, the next vectors of up to 2^18 numbers are
    drawn while the caller works.

    Args:
        generator: Draws the key.
        size: Of a vector.
        count: How many vectors.
        device: Where they are drawn.

    Yields:
        Shape (size,), float32.

    Source:
        Box and Muller 1958; RFC 8439, section 2.3.
    """
    key = generator.bytes(32)
    group = max(1, _TOGETHER // size)
    # Every group of vectors begins with a part of its own.
    parts_of_group = -(-group * size // PART)
    draws = [
        (number * parts_of_group, min(group, count - first) * size)
        for number, first in enumerate(range(0, count, group))
    ]
    if device.type == "cpu":
        groups = _on_host(key, draws, largest=group * size, is_small=size <= _TOGETHER)
    else:
        groups = _on_device_together(key, device, draws)
    for vectors in groups:
        yield from vectors.reshape(-1, size)


def _on_host(
    key: bytes, draws: Sequence[tuple[int, int]], *, largest: int, is_small: bool
) -> Iterator[torch.Tensor]:
    draw = _Host(key, largest)
    # A second large vector would lie in memory throughout the step.
    if is_small and len(draws) > 1 and _has_spare_core():
        return _ahead(draw, draws)
    return starmap(draw, draws)


def _has_spare_core() -> bool:
    return torch.get_num_threads() < len(os.sched_getaffinity(0))


def _ahead(
    draw: Callable[[int, int], torch.Tensor], draws: Iterable[tuple[int, int]]
) -> Iterator[torch.Tensor]:
    """Draw each group in another thread, the next one while the caller works with this one."""
    with ThreadPoolExecutor(1) as executor:
        waiting = None
        for first, numbers in draws:
            following = executor.submit(draw, first, numbers)
            if waiting is not None:
                yield waiting.result()
            waiting = following
        if waiting is not None:
            yield waiting.result()


class _Host:
    """Draws on the host into buffers of its own.

    Fresh memory would cost as much as the arithmetic.

    Args:
        key: 32 bytes.
        most: How many numbers are drawn at most by one call.
    """

    def __init__(self, key: bytes, most: int) -> None:
        pairs = (min(PART, most) + 1) // 2
        self._key = key
        self._words = bytearray(12 * pairs)
        self._square = np.empty(pairs)
        self._radius = np.empty(pairs, np.float32)
        self._angle = np.empty(pairs, np.float32)

    def __call__(self, first: int, numbers: int) -> torch.Tensor:
        drawn = np.empty(numbers, np.float32)
        for number, start in enumerate(range(0, numbers, PART), first):
            part = drawn[start : start + PART]
            pairs = (len(part) + 1) // 2
            nonce = bytes(8) + number.to_bytes(8, "little")
            cipher = Cipher(algorithms.ChaCha20(self._key, nonce), None)
            cipher.encryptor().update_into(_ZEROS[: 12 * pairs], self._words)
            _box_muller(
                np.frombuffer(self._words, np.uint8, 12 * pairs),
                square=self._square[:pairs],
                radius=self._radius[:pairs],
                angle=self._angle[:pairs],
                out=part,
            )
        return torch.from_numpy(drawn)


def _box_muller(
    words: npt.NDArray[np.uint8],
    square: npt.NDArray[np.float64],
    radius: Floats,
    angle: Floats,
    out: Floats,
) -> None:
    """Write the numbers of a part to `out`; square, radius and angle are overwritten."""
    pairs = len(square)
    second_half = len(out) // 2
    integers = words[: 8 * pairs].view(np.int64)
    turns = words[8 * pairs :].view(np.int32)
    np.abs(integers, out=square, dtype=np.float64, casting="unsafe")
    # Of u near 0 every bit is kept, and near 1 those of float64.
    square += 0.5
    square *= 2.0**-63
    np.log(square, out=square)
    square *= -2.0
    np.sqrt(square, out=radius, dtype=np.float32, casting="unsafe")
    np.multiply(turns, np.float32(_TURN), out=angle, dtype=np.float32, casting="unsafe")
    np.cos(angle, out=out[:pairs])
    np.sin(angle[:second_half], out=out[pairs:])
    out[:pairs] *= radius
    out[pairs:] *= radius[:second_half]


def _on_device_together(
    key: bytes, device: torch.device, draws: Iterable[tuple[int, int]]
) -> Iterator[torch.Tensor]:
    """Yield what `on_device` draws for each (first part, numbers).

    As many are drawn at a time as there is memory for: a few hundred operations are launched,
    however many parts they draw.
    """
    for numbers, draws_of_size in groupby(draws, lambda draw: draw[1]):
        firsts = [first for first, _ in draws_of_size]
        draws_at_once = max(1, _PARTS_AT_ONCE // -(-numbers // PART))
        for start in range(0, len(firsts), draws_at_once):
            some_firsts = firsts[start : start + draws_at_once]
            yield from on_device(key, device, firsts=some_firsts, numbers=numbers)


def on_device(
    key: bytes, device: torch.device, *, firsts: Sequence[int], numbers: int
) -> torch.Tensor:
    """Draw numbers of the key's stream with torch alone.

    Args:
        key: 32 bytes.
        device: Where to draw.
        firsts: Numbers of the parts from which on.
        numbers: How many from each.

    Returns:
        Shape (len(firsts), numbers), float32.
    """
    full_parts, remainder = divmod(numbers, PART)
    starts = moved(np.array(firsts, np.int64), device)
    pieces = []
    if full_parts:
        nonces = (starts[:, None] + torch.arange(full_parts, device=device)).flatten()
        full = [
            _drawn_parts(key, some_nonces, numbers=PART)
            for some_nonces in nonces.split(_PARTS_AT_ONCE)
        ]
        pieces.append(torch.cat(full).view(len(firsts), -1))
    if remainder:
        last = _drawn_parts(key, starts + full_parts, numbers=remainder)
        pieces.append(last.view(len(firsts), -1))
    return torch.cat(pieces, dim=1)


def _drawn_parts(key: bytes, nonces: torch.Tensor, numbers: int) -> torch.Tensor:
    pairs = (numbers + 1) // 2
    words = chacha20(key, nonces, blocks=-(-12 * pairs // 64))
    integers = words[:, : 2 * pairs].view(torch.int64)
    turns = words[:, 2 * pairs : 3 * pairs]
    square = integers.double().abs_().add_(0.5).mul_(2.0**-63).log_().mul_(-2.0)
    radius = square.float().sqrt_()
    angle = turns.float().mul_(_TURN)
    pair = [angle.cos().mul_(radius), angle.sin_().mul_(radius)]
    return torch.cat(pair, 1)[:, :numbers].flatten()


def chacha20(key: bytes, nonces: torch.Tensor, blocks: int) -> torch.Tensor:
    """Return the first blocks of the cipher's stream for each nonce.

    Args:
        key: 32 bytes.
        nonces: Shape (N,), int64, on the device where to compute.
        blocks: How many blocks of 64 bytes.

    Returns:
        Shape (N, 16 blocks), int32, as its bytes lie.

    Source:
        RFC 8439, section 2.3, with counter and nonce of 64 bits each, as Bernstein 2008.
    """
    start = torch.zeros((4, 4, len(nonces), blocks), dtype=torch.int32, device=nonces.device)
    fixed = np.frombuffer(bytearray(b"expand 32-byte k" + key), np.int32)
    start[:3] = moved(fixed, nonces.device).view(3, 4, 1, 1)
    start[3, 0] = torch.arange(blocks, dtype=torch.int32, device=nonces.device)
    start[3, 2:] = nonces.view(torch.int32).view(-1, 2).T[..., None]
    a, b, c, d = start
    for shift in (1, -1) * 10:
        for left, right in ((16, 12), (8, 7)):
            a = a + b
            d = _rotated(d ^ a, left)
            c = c + d
            b = _rotated(b ^ c, right)
        b, c, d = b.roll(-shift, 0), c.roll(2, 0), d.roll(shift, 0)
    state = torch.stack([a, b, c, d]).add_(start).flatten(0, 1)
    return state.permute(1, 2, 0).contiguous().flatten(1)


def _rotated(x: torch.Tensor, by: int) -> torch.Tensor:
    return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))
