"""Posterior samples with their weights and temperatures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.protocol.arrays import Arrays, without_prefix


@dataclass(frozen=True)
class PosteriorSamples:
    """Weighted samples of a model's parameters.

    Attributes:
        arrays: parameter name -> samples, shape (M, *shape), float32.
        weights: weight of each sample, >= 0, not all zero unless M = 0, shape (M,), float64; need not sum to one.
        temperatures: instantaneous temperature T_t at which each was drawn, >= 0, shape (M,), float64.

    Raises:
        ValueError: if lengths differ, or a weight or temperature is negative or not finite.
    """

    arrays: Arrays
    weights: npt.NDArray[np.float64]
    temperatures: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        lengths = {len(self.weights), len(self.temperatures)} | {len(array) for array in self.arrays.values()}
        if len(lengths) != 1 or self.weights.ndim != 1 or self.temperatures.ndim != 1:
            raise ValueError(
                f"arrays, weights and temperatures must hold one entry per sample, found {sorted(lengths)}"
            )
        for name, values in (("weights", self.weights), ("temperatures", self.temperatures)):
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(f"{name} must be finite and 0 or more")
        if len(self.weights) and not self.weights.sum() > 0:
            raise ValueError("weights must not all be 0")

    def __len__(self) -> int:
        return len(self.weights)

    def parts(self) -> Iterator["PosteriorSamples"]:
        """Give the samples in pieces, as those that are read from a disk come: here there is one."""
        yield self

    def thinned(self, max_samples: int) -> "PosteriorSamples":
        """Keep at most `max_samples` samples, evenly spaced over the order in which they stand.

        The samples are cut into equal blocks; the last of each block stays and takes the block's whole weight. Total
        weight is kept, so thinning one site's samples does not change its share in a mixture with other sites.

        Args:
            max_samples: how many to keep at most, >= 1.

        Returns:
            The thinned samples, or the same ones if there are no more than `max_samples`.
        """
        if len(self) <= max_samples:
            return self
        blocks = thinning_blocks(len(self), max_samples)
        last = np.array([block[-1] for block in blocks])
        return PosteriorSamples(
            arrays={name: array[last] for name, array in self.arrays.items()},
            weights=np.array([self.weights[block].sum() for block in blocks]),
            temperatures=self.temperatures[last],
        )


def thinning_blocks(samples: int, max_samples: int) -> list[npt.NDArray[np.intp]]:
    """Cut the numbers 0 .. samples - 1 into at most `max_samples` blocks of nearly equal length, none empty.

    Args:
        samples: number of samples, >= 1.
        max_samples: number of blocks at most, >= 1.

    Returns:
        The blocks in order; thinning keeps the last sample of each.
    """
    return np.array_split(np.arange(samples), min(samples, max_samples))


def concatenate(parts: Sequence[PosteriorSamples]) -> PosteriorSamples:
    """Join samples of the same model, in the given order, keeping their weights.

    Args:
        parts: at least one; all with the same parameter names and shapes.

    Returns:
        All samples.

    Raises:
        ValueError: if there is none, or names or shapes differ.
    """
    if not parts:
        raise ValueError("there is nothing to concatenate: give at least one set of samples")
    if any(part.arrays.keys() != parts[0].arrays.keys() for part in parts):
        raise ValueError("the sets of samples have different parameter names")
    return PosteriorSamples(
        arrays={name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays},
        weights=np.concatenate([part.weights for part in parts]),
        temperatures=np.concatenate([part.temperatures for part in parts]),
    )


def point_of(state: Arrays) -> PosteriorSamples:
    """Return a chain's state as a point predictor: its parameters as the one sample, without a temperature."""
    parameters = {name: array[np.newaxis] for name, array in without_prefix("parameters", state).items()}
    return PosteriorSamples(arrays=parameters, weights=np.ones(1), temperatures=np.zeros(1))
