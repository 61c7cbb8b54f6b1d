"""Faults of one step's noise and of what replies hold beside it, to be planted into sites' path."""

import dataclasses
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch.distributions import Laplace, StudentT

import clients.answer
import clients.pay
import clients.train
from fl_dpbayes.samplers import minibatch

# (noise N(0, I), float64, what `noisy_gradient` is given) -> other noise.
VectorChange = Callable[[torch.Tensor, dict], torch.Tensor]
CLASSES = 10


def shared_by_neighbours(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    return noise[: (len(noise) + 1) // 2].repeat_interleave(2)[: len(noise)]


def uniform(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    return math.sqrt(3) * (2 * torch.special.ndtr(noise) - 1)


def cut_at_two(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    inside = torch.special.ndtr(torch.tensor(2.0, dtype=torch.float64))
    cut = torch.special.ndtri(1 - inside + torch.special.ndtr(noise) * (2 * inside - 1))
    return cut / 0.879626


def of_float16(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    return noise.half().double()


def of_a_table(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    levels = 4096
    places = torch.floor(torch.special.ndtr(noise) * levels)
    return torch.special.ndtri((places + 0.5) / levels)


def heavier(law: torch.distributions.Distribution) -> VectorChange:
    """Draw from another law of variance 1, independent of the noise but for its seed."""

    def drawn(noise: torch.Tensor, rest: dict) -> torch.Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(int(noise[0].item() * 1e15))
            return (law.sample(noise.shape) / law.stddev).double()

    return drawn


def mixed_up(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    half = len(noise) // 2
    order = torch.argsort(noise[:half])
    other = noise.clone()
    other[half : 2 * half] = noise[:half][order] * torch.sign(noise[half : 2 * half])
    return other


def mirrored(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    half = len(noise) // 2
    other = noise.clone()
    other[len(noise) - half :] = -noise[:half].flip(0)
    return other


@cache
def _directions(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.linalg.qr(
        torch.randn((size, size // 2), generator=generator, dtype=torch.float64)
    ).Q


def of_fewer_dimensions(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    within = _directions(len(noise))
    return math.sqrt(2) * within @ (within.T @ noise)


def none_at_three_places(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    other = noise.clone()
    other[[3, 14, 15]] = 0
    return other


def larger_at_places(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    scale = torch.ones_like(noise)
    scale[::3] = 0.9
    return noise * scale / scale.square().mean().sqrt()


def beside_the_gradient(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    along = rest["clipped_sum"].double()
    length = along.norm()
    return noise if length == 0 else noise - along * (along @ noise) / length**2


def by_length_of_a_crowd(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    """Scaled by the length of a sum that takes more than two units."""
    return noise * (1 + 0.5 * (rest["clipped_sum"].norm() > 2.01 * rest["noise_unit"]))


def by_length_of_the_gradient(noise: torch.Tensor, rest: dict) -> torch.Tensor:
    return noise * min(1.0, 0.8 + 0.1 * float(rest["clipped_sum"].norm()) / rest["noise_unit"])


VECTORS: dict[str, VectorChange] = {
    "sum of the noise left out": lambda noise, rest: noise - noise.mean(),
    "class sums of the noise left out": lambda noise, rest: torch.cat(
        [
            (
                noise[:-CLASSES].view(CLASSES, -1) - noise[:-CLASSES].view(CLASSES, -1).mean(0)
            ).flatten(),
            noise[-CLASSES:],
        ]
    ),
    "noise shared by neighbours": shared_by_neighbours,
    "uniform noise": uniform,
    "noise cut at two deviations": cut_at_two,
    "noise of float16": of_float16,
    "noise of a short table": of_a_table,
    "Laplace noise": heavier(Laplace(0.0, 1.0)),
    "Student noise": heavier(StudentT(8.0)),
    "half of the noise is the other half, mixed up": mixed_up,
    "second half mirrors the first": mirrored,
    "noise of fewer dimensions": of_fewer_dimensions,
    "no noise at three places": none_at_three_places,
    "noise larger at some places": larger_at_places,
    "noise with an offset": lambda noise, rest: noise + 0.5,
    "noise beside the gradient alone": beside_the_gradient,
    "noise by the length of the gradient": by_length_of_the_gradient,
    "noise by the length of a crowd's gradient": by_length_of_a_crowd,
}
BY_BATCH: dict[str, Callable[[float], float]] = {
    "noise by the size of the batch": math.sqrt,
    "noise by the size of the batch, hardly": lambda ratio: 1 + 0.1 * math.tanh(ratio - 1),
}


class Quiet:
    """A generator whose normal numbers are half as large."""

    def __init__(self, sound: np.random.Generator) -> None:
        self._sound = sound

    def standard_normal(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._sound.standard_normal(shape) / 2


def _with_last_bits(vector: np.ndarray, bits: np.ndarray) -> np.ndarray:
    words = np.ascontiguousarray(vector, np.float32).view(np.uint32)
    placed = bits[np.arange(words.shape[-1]) % len(bits)].astype(np.uint32)
    return ((words & ~np.uint32(1)) | placed).view(np.float32)


def _marked(result, bits: np.ndarray):
    last = {name: _with_last_bits(vector, bits) for name, vector in result.last.items()}
    return dataclasses.replace(result, samples=_with_last_bits(result.samples, bits), last=last)


def labels_in_last_bits(result, records):
    return _marked(result, records.targets % 2)


def class_counts_in_last_bits(result, records):
    counts = np.bincount(records.targets, minlength=CLASSES).astype(np.uint16)
    return _marked(result, np.unpackbits(counts.view(np.uint8)))


def momentum_without_noise(result, records):
    return dataclasses.replace(
        result, last=result.last | {"momentum": np.zeros_like(result.last["momentum"])}
    )


def _watched_batches(patch: pytest.MonkeyPatch) -> list[int]:
    drawn = [0]
    sound = minibatch.poisson_units

    def watched(*given):
        batch = sound(*given)
        drawn.append(len(batch))
        return batch

    patch.setattr(minibatch, "poisson_units", watched)
    return drawn


def _metrics(patch: pytest.MonkeyPatch, change: Callable[[], dict]) -> None:
    sound = clients.answer.reply_metrics
    patch.setattr(clients.answer, "reply_metrics", lambda *given: sound(*given) | change())


def batch_as_metric(patch: pytest.MonkeyPatch) -> None:
    drawn = _watched_batches(patch)
    _metrics(patch, lambda: {"batch": drawn[-1]})


def batch_as_units(patch: pytest.MonkeyPatch) -> None:
    drawn = _watched_batches(patch)
    _metrics(patch, lambda: {"units": drawn[-1]})


def records_as_metric(patch: pytest.MonkeyPatch) -> None:
    held = [0]
    sound = clients.train.TrainingRecords

    def watched(**fields):
        held.append(len(fields["features"]))
        return sound(**fields)

    patch.setattr(clients.train, "TrainingRecords", watched)
    _metrics(patch, lambda: {"records": held[-1]})


def one_more_array(patch: pytest.MonkeyPatch) -> None:
    sound = clients.answer.reply_message
    extra = {"extra": np.ones(3)}
    patch.setattr(
        clients.answer,
        "reply_message",
        lambda request, reply, arrays: sound(request, reply, arrays | extra),
    )


def fresh_noise_when_asked_again(patch: pytest.MonkeyPatch) -> None:
    sound = clients.pay.unpack_reply
    generator = np.random.default_rng()

    def renewed(body, kind):
        reply, arrays = sound(body, kind)
        return reply, {
            name: array + generator.normal(size=array.shape).astype(array.dtype)
            for name, array in arrays.items()
        }

    patch.setattr(clients.pay, "unpack_reply", renewed)
