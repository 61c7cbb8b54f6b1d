"""Draws N(0, 1) numbers from a cryptographic counter-based generator: the same integers on the host and on a device."""

import itertools
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fl_dpbayes.models.on_device import moved

# Numbers of a part, 6 bytes of the stream each: what is made of them stays in a processor's cache.
PART = 2**15
# On a device, where each of some 500 operations costs a launch: about 200 MB for as long as the drawing takes.
_PARTS_AT_ONCE = 128
_BLOCK = 64
_HOST = torch.device("cpu")
_KEY_BYTES = 32
_TURN = math.pi / 2**31


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

    i and j are signed integers of 64 and 32 bits of the stream cipher ChaCha20. Its key is drawn from `generator`,
    which moves by these 32 bytes alone; its nonce is the number of a part of 2^15 numbers. Integers do not depend on
    the device; numbers differ by a rounding of sine and cosine. On the host, and where a core is idle, the next large
    vector is drawn while the caller works. Sources: Box and Muller 1958; RFC 8439, section 2.3.
    """
    key = generator.bytes(_KEY_BYTES)
    draws = _host_draws(key, size, count) if device.type == "cpu" else device_draws(key, size, count, device=device)
    for drawn in draws:
        yield from drawn.reshape(-1, size)


def _draws(size: int, count: int, groups: int) -> list[tuple[int, int, int]]:
    """Return the first part, the number of groups and the numbers of a group of each draw; small vectors share one."""
    together = max(1, PART // size)
    parts, (whole, rest) = -(-together * size // PART), divmod(count, together)
    draws = [(first * parts, min(groups, whole - first), together * size) for first in range(0, whole, groups)]
    return [*draws, (whole * parts, 1, rest * size)] if rest else draws


def _host_draws(key: bytes, size: int, count: int) -> Iterator[torch.Tensor]:
    draw, draws = _Host(key, max(size, PART)), _draws(size, count, 1)
    if size < 2 * PART or torch.get_num_threads() >= (os.cpu_count() or 1):
        yield from itertools.starmap(draw, draws)
        return
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(draw, *draws[0])
        for following in [*draws[1:], None]:
            drawn = waiting.result()
            if following:
                waiting = other.submit(draw, *following)
            yield drawn


def device_draws(key: bytes, size: int, count: int, *, device: torch.device) -> Iterator[torch.Tensor]:
    """Draw what the host draws, in fewer and larger draws and with torch alone."""
    groups = max(1, _PARTS_AT_ONCE * PART // max(size, PART))
    return (on_device(key, *draw, device=device) for draw in _draws(size, count, groups))


class _Host:
    """Draws on the host into buffers of its own, since fresh memory costs as much as the arithmetic."""

    def __init__(self, key: bytes, most: int) -> None:
        pairs = min(PART, most + 1) // 2
        self._key, self._zeros = key, memoryview(bytes(12 * pairs))
        self._words, self._floats = bytearray(12 * pairs), np.empty((2, pairs))

    def __call__(self, first: int, groups: int, numbers: int) -> torch.Tensor:
        drawn = np.empty((groups, numbers), np.float32)
        starts = range(0, numbers, PART)
        for number, (group, start) in enumerate(itertools.product(drawn, starts), first):
            part = group[start : start + PART]
            pairs = (len(part) + 1) // 2
            cipher = Cipher(algorithms.ChaCha20(self._key, bytes(8) + number.to_bytes(8, "little")), None)
            cipher.encryptor().update_into(self._zeros[: 12 * pairs], self._words)
            _box_muller(np.frombuffer(self._words, np.uint8, 12 * pairs), self._floats[:, :pairs], part)
        return torch.from_numpy(drawn)


def _box_muller(words: npt.NDArray[np.uint8], floats: npt.NDArray[np.float64], into: npt.NDArray[np.float32]) -> None:
    square, singles = floats[0], floats[1].view(np.float32)
    pairs, rest = len(square), len(into) // 2
    radius, angle = singles[:pairs], singles[pairs:]
    np.abs(words[: 8 * pairs].view(np.int64), out=square, dtype=np.float64, casting="unsafe")
    # Of u near 0 every bit is kept, and near 1 those of float64.
    square += 0.5
    square *= 2.0**-63
    np.log(square, out=square)
    square *= -2.0
    np.sqrt(square, out=radius, dtype=np.float32, casting="unsafe")
    np.multiply(words[8 * pairs :].view(np.int32), np.float32(_TURN), out=angle, dtype=np.float32, casting="unsafe")
    np.cos(angle, out=into[:pairs])
    np.sin(angle[:rest], out=into[pairs:])
    into[:pairs] *= radius
    into[pairs:] *= radius[:rest]


def on_device(key: bytes, first: int, groups: int, numbers: int, device: torch.device) -> torch.Tensor:
    """Draw `groups` of `numbers` from part `first` of the key's stream on, (groups, numbers), with torch alone."""
    whole, left = divmod(numbers, PART)
    count = whole + bool(left)
    nonces = first + torch.arange(groups * count, device=device).reshape(groups, count)
    pieces = [_drawn_parts(key, part, PART) for part in nonces[:, :whole].split(_PARTS_AT_ONCE, 1)] if whole else []
    pieces += [_drawn_parts(key, nonces[:, whole:], left)] if left else []
    return torch.cat(pieces, 1)


def _drawn_parts(key: bytes, nonces: torch.Tensor, numbers: int) -> torch.Tensor:
    half = (numbers + 1) // 2
    words = chacha20(key, nonces, -(-12 * half // _BLOCK))
    square = words[..., : 2 * half].view(torch.int64).double().abs_().add_(0.5).mul_(2.0**-63).log_().mul_(-2.0)
    radius, angle = square.float().sqrt_(), words[..., 2 * half : 3 * half].float().mul_(_TURN)
    return torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)], -1)[..., :numbers].flatten(1)


def chacha20(key: bytes, nonces: torch.Tensor, blocks: int) -> torch.Tensor:
    """Return the first blocks of the cipher's stream for each nonce, (*nonces, 16 blocks), int32, as its bytes lie.

    `key`: 32 bytes. `nonces`: int64, on the device where to compute. Source: RFC 8439, section 2.3, with the nonce of
    64 bits of Bernstein 2008 after a counter of as many.
    """
    ones = (1,) * (nonces.dim() + 1)
    fixed = np.frombuffer(bytearray(b"expand 32-byte k" + key), np.int32)
    a, b, c = moved(fixed, nonces.device).reshape(3, 4, *ones)
    counter = torch.arange(blocks, dtype=torch.int32, device=nonces.device).expand(*nonces.shape, blocks)
    low, high = nonces.contiguous().view(torch.int32).unflatten(-1, (-1, 2)).unbind(-1)
    ends = [half[..., None].expand_as(counter) for half in (low, high)]
    start = [a, b, c, torch.stack([counter, torch.zeros_like(counter), *ends])]
    a, b, c, d = start
    for shift in (1, -1) * 10:
        a, b, c, d = _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(-shift, 0), c.roll(2, 0), d.roll(shift, 0)
    rows = [(row + begun).expand_as(d) for row, begun in zip((a, b, c, d), start, strict=True)]
    return torch.stack(rows).flatten(0, 1).movedim(0, -1).contiguous().flatten(-2)


def _quarter_rounds(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    for left, right in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, left)
        c = c + d
        b = _rotated(b ^ c, right)
    return a, b, c, d


def _rotated(x: torch.Tensor, by: int) -> torch.Tensor:
    return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))
