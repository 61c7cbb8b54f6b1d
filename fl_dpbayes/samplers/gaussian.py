"""Standard normal numbers from a generator's words, the same on every platform up to rounding."""

import math
from collections.abc import Iterator

import numpy as np
import torch

# Pairs at a time: what is between stays in a processor's cache.
_PAIRS = 2**15


def standard_normals(generator: np.random.Generator, count: int) -> torch.Tensor:
    """Draw independent N(0, 1) numbers by pairs, shape (count,), float32, on the CPU.

        (cos 2 pi v, sin 2 pi v) sqrt(-2 log(1 - u)),    u a multiple of 2^-53 and v one of 2^-24 in [0, 1)

    A pair's length can reach sqrt(106 log 2) = 8.57; it is cut there with probability 2^-53. How many bits of entropy
    the numbers have is the generator's to say: 128 for the keyed Philox of `privacy/streams.py` (torch's own generators
    keep 32 or 64 bits of a seed). Source: Box and Muller 1958.
    """
    numbers = torch.empty(2 * math.ceil(count / 2))
    for place in numbers.split(2 * _PAIRS):
        pairs = len(place) // 2
        lengths = torch.from_numpy(generator.random(pairs)).neg_().add_(1).log_().float().mul_(-2).sqrt_()
        angles = torch.from_numpy(generator.random(pairs, dtype=np.float32)).mul_(2 * math.pi)
        torch.mul(angles.cos(), lengths, out=place[:pairs])
        torch.mul(angles.sin_(), lengths, out=place[pairs:])
    return numbers[:count]


def normal_vectors(generator: np.random.Generator, size: int, count: int) -> Iterator[torch.Tensor]:
    """Yield `count` vectors of `standard_normals`, shape (size,) each; small ones are drawn many at a time."""
    together = max(1, 2 * _PAIRS // size)
    for first in range(0, count, together):
        yield from standard_normals(generator, min(together, count - first) * size).view(-1, size)
