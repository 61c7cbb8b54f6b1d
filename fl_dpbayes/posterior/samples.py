"""Posterior samples with their weights and temperatures, in memory or left on disk."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.config import counted
from fl_dpbayes.protocol import Arrays, without_prefix

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, repr=False)
class PosteriorSamples:
    """Weighted samples of a model's parameters.

    Attributes:
        arrays: Parameter name -> float32 array, shape (M, *shape).
        weights: >= 0, shape (M,), not all 0 unless M = 0; they need not sum to one.
        temperatures: T_t >= 0 at which each was drawn, shape (M,).

    Raises:
        ValueError: If lengths differ, or a number is negative or not finite.
    """

    arrays: Arrays
    weights: npt.NDArray[np.float64]
    temperatures: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        lengths = {len(self.weights), len(self.temperatures)} | {
            len(array) for array in self.arrays.values()
        }
        if len(lengths) != 1 or self.weights.ndim != 1 or self.temperatures.ndim != 1:
            raise ValueError(
                "arrays, weights and temperatures need one entry per sample, found "
                f"{sorted(lengths)}"
            )
        for name, values in (("weights", self.weights), ("temperatures", self.temperatures)):
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(f"{name} must be finite and 0 or more")
        if len(self.weights) and not self.weights.sum() > 0:
            raise ValueError("weights must not all be 0")

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        """Return one sample, as `load_state_dict` of its module takes it.

        A module with buffers, or with parameters that were not sampled, wants `strict=False`.
        """
        return {name: torch.tensor(array[number]) for name, array in self.arrays.items()}

    def __repr__(self) -> str:
        size = sum(math.prod(array.shape[1:]) for array in self.arrays.values())
        return f"{counted(len(self), 'posterior sample')} of {counted(size, 'parameter')}"

    @property
    def pieces(self) -> tuple["SamplePiece", ...]:
        """The samples as one piece."""
        return (SamplePiece(self.weights, self.temperatures, self._rows),)

    def _rows(self, numbers: npt.NDArray[np.intp]) -> Arrays:
        return {name: array[numbers] for name, array in self.arrays.items()}

    def parts(self) -> Iterator["PosteriorSamples"]:
        """Give the samples in pieces, as those on a disk come: here there is one."""
        yield self

    def in_memory(self) -> "PosteriorSamples":
        """Return the samples themselves."""
        return self

    def thinned(self, max_samples: int) -> "PosteriorSamples":
        """Keep at most `max_samples` >= 1 samples, evenly spaced over their order.

        Of equal blocks the last sample stays and takes the whole weight, so that a site's share in
        a mixture stays.
        """
        return self if len(self) <= max_samples else StoredSamples(self.pieces).thinned(max_samples)


@dataclass(frozen=True)
class SamplePiece:
    """Consecutive samples that are read together, as those of one file.

    Attributes:
        weights: >= 0, shape (M,).
        temperatures: T_t >= 0, shape (M,).
        rows: Reads the samples of ascending numbers.
    """

    weights: npt.NDArray[np.float64]
    temperatures: npt.NDArray[np.float64]
    rows: Callable[[npt.NDArray[np.intp]], Arrays]


@dataclass(frozen=True)
class StoredSamples:
    """Weighted samples in pieces, at least one; it offers what `PosteriorSamples` does."""

    pieces: tuple[SamplePiece, ...]

    @cached_property
    def weights(self) -> npt.NDArray[np.float64]:
        """Weight of each sample, shape (M,)."""
        return np.concatenate([piece.weights for piece in self.pieces])

    @cached_property
    def temperatures(self) -> npt.NDArray[np.float64]:
        """Temperature of each sample, shape (M,)."""
        return np.concatenate([piece.temperatures for piece in self.pieces])

    def __len__(self) -> int:
        return len(self.weights)

    def parts(self) -> Iterator[PosteriorSamples]:
        """Read the samples in their order, one piece in memory at a time."""
        for piece in self.pieces:
            if len(piece.weights):
                yield PosteriorSamples(
                    piece.rows(np.arange(len(piece.weights))), piece.weights, piece.temperatures
                )

    def in_memory(self) -> PosteriorSamples:
        """Read all samples."""
        return self.thinned(len(self))

    def thinned(self, max_samples: int) -> PosteriorSamples:
        """Keep and read at most `max_samples` samples, as `PosteriorSamples.thinned` does."""
        blocks = np.array_split(np.arange(len(self)), min(len(self), max_samples))
        last = np.array([block[-1] for block in blocks])
        rows = []
        start = 0
        for piece in self.pieces:
            end = start + len(piece.weights)
            numbers = last[(last >= start) & (last < end)] - start
            if len(numbers):
                rows.append(piece.rows(numbers))
            start = end
        return PosteriorSamples(
            arrays={name: np.concatenate([arrays[name] for arrays in rows]) for name in rows[0]},
            weights=np.array([self.weights[block].sum() for block in blocks]),
            temperatures=self.temperatures[last],
        )


AnySamples = PosteriorSamples | StoredSamples


class PerSite(Mapping[str, ValueT]):
    """Site -> what it sent, read anew at every look-up to spare memory.

    Args:
        sites: Names, in their order.
        read: Reads what a site sent; None if it sent nothing.
    """

    def __init__(self, sites: Sequence[str], read: Callable[[str], ValueT | None]) -> None:
        self._sites = sites
        self._read = read

    def __getitem__(self, site: str) -> ValueT:
        value = self._read(site) if site in self._sites else None
        if value is None:
            raise KeyError(site)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)


def concatenate(parts: Sequence[PosteriorSamples]) -> PosteriorSamples:
    """Join one set of samples or more, of the same model, in their order, with their weights."""
    return PosteriorSamples(
        arrays={
            name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays
        },
        weights=np.concatenate([part.weights for part in parts]),
        temperatures=np.concatenate([part.temperatures for part in parts]),
    )


def point_of(state: Arrays) -> PosteriorSamples:
    """Return a chain's state as a point predictor: one sample, without a temperature."""
    parameters = without_prefix("parameters", state)
    return PosteriorSamples(
        arrays={name: array[np.newaxis] for name, array in parameters.items()},
        weights=np.ones(1),
        temperatures=np.zeros(1),
    )
