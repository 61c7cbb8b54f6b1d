"""Posterior samples that stay on disk: memory holds only the pieces being read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fl_dpbayes.posterior.samples import PosteriorSamples, concatenate, thinning_blocks
from fl_dpbayes.protocol.arrays import Arrays


@dataclass(frozen=True)
class SamplePiece:
    """Consecutive samples that are read together, such as those of one file.

    Attributes:
        weights: weight of each sample, >= 0, shape (M,).
        temperatures: temperature of each sample, >= 0, shape (M,).
        rows: reads the samples with the given numbers, each in [0, M), ascending: name -> shape (rows, *shape).
    """

    weights: npt.NDArray[np.float64]
    temperatures: npt.NDArray[np.float64]
    rows: Callable[[npt.NDArray[np.intp]], Arrays]

    def read(self, numbers: npt.NDArray[np.intp]) -> PosteriorSamples:
        """Read the samples with these numbers."""
        return PosteriorSamples(self.rows(numbers), self.weights[numbers], self.temperatures[numbers])


@dataclass(frozen=True)
class StoredSamples:
    """Weighted samples in pieces, at least one sample; offers what `PosteriorSamples` does without holding them."""

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
                yield piece.read(np.arange(len(piece.weights)))

    def thinned(self, max_samples: int) -> PosteriorSamples:
        """Keep and read at most `max_samples` samples, chosen and weighted as by `PosteriorSamples.thinned`.

        Args:
            max_samples: how many to keep at most, >= 1.

        Returns:
            The kept samples, in memory.
        """
        blocks = thinning_blocks(len(self), max_samples)
        last = np.array([block[-1] for block in blocks])
        ends = np.cumsum([len(piece.weights) for piece in self.pieces])
        kept = []
        for piece, end in zip(self.pieces, ends, strict=True):
            start = end - len(piece.weights)
            numbers = last[(last >= start) & (last < end)] - start
            if len(numbers):
                kept.append(piece.rows(numbers))
        return PosteriorSamples(
            arrays={name: np.concatenate([rows[name] for rows in kept]) for name in kept[0]},
            weights=np.array([self.weights[block].sum() for block in blocks]),
            temperatures=self.temperatures[last],
        )

    def in_memory(self) -> PosteriorSamples:
        """Read all samples."""
        return concatenate(list(self.parts()))


AnySamples = PosteriorSamples | StoredSamples
