"""Draws N(0, 1) numbers from a cryptographic counter-based generator: the same integers on the host and on a device."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby, pairwise, starmap

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
# On a device, of one vector or of several; some 200 MB for as long as it takes.
_PARTS_AT_ONCE = 256
_TURN = math.pi / 2**31
_HOST = torch.device("cpu")
_ZEROS = memoryview(bytes(6 * PART))

Floats = npt.NDArray[np.float32]


def standard_normals(
    generator: np.random.Generator, shape: tuple[int, ...], device: torch.device = _HOST
) -> torch.Tensor:
    """Draw N(0, 1) numbers of a shape, float32, as `normal_vectors` does."""
    return next(normal_vectors(generator, math.prod(shape), 1, device)).reshape(shape)


def normal_vectors(
    generator: np.random.Generator, size: int, count: int, device: torch.device = _HOST
) -> Iterator[torch.Tensor]:
    """Yield `count` vectors of N(0, 1) numbers, shape (size,), float32, up to 9.4 standard deviations.

        (x, y) = sqrt(-2 log u) (cos a, sin a),   u = (|i| + 1/2) / 2^63,   a = pi j / 2^31

    i and j are signed integers of 64 and 32 bits of the stream cipher ChaCha20. Its key is drawn
    from `generator`, which moves by these 32 bytes alone; its nonce is the number of a part of 2^14
    numbers. Integers do not depend on the device; numbers differ by a rounding of sine and cosine.
    On the host, where this process has a core to spare, the next vectors of up to 2^18 numbers are
    drawn while the caller works. Sources: Box and Muller 1958; RFC 8439, section 2.3.
    """
    key, together = generator.bytes(32), max(1, _TOGETHER // size)
    parts, on_host = -(-together * size // PART), device.type == "cpu"
    groups = enumerate(range(0, count, together))
    draws = [(number * parts, min(together, count - first) * size) for number, first in groups]
    if not on_host:
        for drawn in _on_device_together(key, device, draws):
            yield from drawn.reshape(-1, size)
        return
    draw = _Host(key, together * size)
    # A second large one would lie in memory throughout the step.
    ahead = len(draws) > 1 and size <= _TOGETHER
    idle = ahead and torch.get_num_threads() < len(os.sched_getaffinity(0))
    for drawn in _ahead(draw, draws) if idle else starmap(draw, draws):
        yield from drawn.reshape(-1, size)


def _ahead(
    draw: Callable[[int, int], torch.Tensor], draws: Iterable[tuple[int, int]]
) -> Iterator[torch.Tensor]:
    with ThreadPoolExecutor(1) as other:
        drawn = (other.submit(draw, *each) for each in draws)
        # The next one is begun before this one is waited for.
        yield from (this.result() for this, _ in pairwise(chain(drawn, [None])) if this is not None)


class _Host:
    """Draws on the host into buffers of its own, since fresh memory costs as much as the arithmetic."""

    def __init__(self, key: bytes, most: int) -> None:
        pairs = (min(PART, most) + 1) // 2
        self._key, self._words = key, bytearray(12 * pairs)
        self._square, self._singles = np.empty(pairs), np.empty((2, pairs), np.float32)

    def __call__(self, first: int, numbers: int) -> torch.Tensor:
        drawn = np.empty(numbers, np.float32)
        for number, start in enumerate(range(0, numbers, PART), first):
            part = drawn[start : start + PART]
            pairs = (len(part) + 1) // 2
            cipher = Cipher(
                algorithms.ChaCha20(self._key, bytes(8) + number.to_bytes(8, "little")), None
            )
            cipher.encryptor().update_into(_ZEROS[: 12 * pairs], self._words)
            words = np.frombuffer(self._words, np.uint8, 12 * pairs)
            _box_muller(words, self._square[:pairs], self._singles[:, :pairs], part)
        return torch.from_numpy(drawn)


def _box_muller(
    words: npt.NDArray[np.uint8], square: npt.NDArray[np.float64], singles: Floats, into: Floats
) -> None:
    pairs, rest, (radius, angle) = len(square), len(into) // 2, singles
    np.abs(words[: 8 * pairs].view(np.int64), out=square, dtype=np.float64, casting="unsafe")
    # Of u near 0 every bit is kept, and near 1 those of float64.
    square += 0.5
    square *= 2.0**-63
    np.log(square, out=square)
    square *= -2.0
    np.sqrt(square, out=radius, dtype=np.float32, casting="unsafe")
    np.multiply(
        words[8 * pairs :].view(np.int32),
        np.float32(_TURN),
        out=angle,
        dtype=np.float32,
        casting="unsafe",
    )
    np.cos(angle, out=into[:pairs])
    np.sin(angle[:rest], out=into[pairs:])
    into[:pairs] *= radius
    into[pairs:] *= radius[:rest]


def on_device(key: bytes, device: torch.device, first: int, numbers: int) -> torch.Tensor:
    """Draw the numbers from part `first` of the key's stream on, shape (numbers,), with torch alone."""
    return _drawn_from(key, device, [first], numbers)[0]


def _on_device_together(
    key: bytes, device: torch.device, draws: Iterable[tuple[int, int]]
) -> Iterator[torch.Tensor]:
    """Yield what `on_device` draws for each (first part, numbers).

    As many are drawn at a time as there is memory for: a few hundred operations are launched,
    however many parts they draw.
    """
    for numbers, alike in groupby(draws, lambda draw: draw[1]):
        firsts = [first for first, _ in alike]
        at_once = max(1, _PARTS_AT_ONCE // -(-numbers // PART))
        for start in range(0, len(firsts), at_once):
            yield from _drawn_from(key, device, firsts[start : start + at_once], numbers)


def _drawn_from(
    key: bytes, device: torch.device, firsts: Sequence[int], numbers: int
) -> torch.Tensor:
    """Return the numbers from each of these parts on, shape (len(firsts), numbers)."""
    whole, left = divmod(numbers, PART)
    starts = moved(np.array(firsts, np.int64), device)
    drawn = []
    if whole:
        nonces = (starts[:, None] + torch.arange(whole, device=device)).flatten()
        pieces = [_drawn_parts(key, part, PART) for part in nonces.split(_PARTS_AT_ONCE)]
        drawn.append(torch.cat(pieces).view(len(firsts), -1))
    if left:
        drawn.append(_drawn_parts(key, starts + whole, left).view(len(firsts), -1))
    return torch.cat(drawn, dim=1)


def _drawn_parts(key: bytes, nonces: torch.Tensor, numbers: int) -> torch.Tensor:
    pairs = (numbers + 1) // 2
    words = chacha20(key, nonces, -(-12 * pairs // 64))
    square = (
        words[:, : 2 * pairs]
        .view(torch.int64)
        .double()
        .abs_()
        .add_(0.5)
        .mul_(2.0**-63)
        .log_()
        .mul_(-2.0)
    )
    radius, angle = square.float().sqrt_(), words[:, 2 * pairs : 3 * pairs].float().mul_(_TURN)
    return torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)], 1)[
        :, :numbers
    ].flatten()


def chacha20(key: bytes, nonces: torch.Tensor, blocks: int) -> torch.Tensor:
    """Return the first blocks of the cipher's stream for each nonce, (N, 16 blocks), int32, as its bytes lie.

    `key`: 32 bytes. `nonces`: shape (N,), int64, on the device where to compute. Source: RFC 8439,
    section 2.3, with counter and nonce of 64 bits each, as Bernstein 2008.
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
    return (
        torch.stack([a, b, c, d]).add_(start).flatten(0, 1).permute(1, 2, 0).contiguous().flatten(1)
    )


def _rotated(x: torch.Tensor, by: int) -> torch.Tensor:
    return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))
