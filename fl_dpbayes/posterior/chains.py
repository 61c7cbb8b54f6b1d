"""The sites' samples as float64 matrices, one site in memory at a time.

Sites are taken in the order of their names, so that a rule does not depend on the order in which
replies came. A mapping that reads its values from disk is never held whole.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import RunWarning, warning
from fl_dpbayes.posterior.alignment import SiteVector, alignment_warnings
from fl_dpbayes.posterior.samples import AnySamples
from fl_dpbayes.protocol import Arrays

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Chain:
    """One site's draws.

    Attributes:
        site: The site's name.
        draws: Parameter vectors, shape (M, d), M >= 1.
        weights: Shape (M,), which sum to 1.
        temperatures: T_t >= 0, shape (M,).
        shapes: Parameter name -> shape, in the order of the columns.
        warnings: What a rule that averages parameters should say about this site.
    """

    site: str
    draws: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]
    temperatures: npt.NDArray[np.float64]
    shapes: Shapes
    warnings: tuple[RunWarning, ...] = ()

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        """Weighted mean of the draws, shape (d,)."""
        return self.weights @ self.draws

    def parameter(self, column: int) -> str:
        """Name a column by its array and its place in it, such as `1.weight[0, 3]`."""
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            if column < size:
                place = ", ".join(str(index) for index in np.unravel_index(column, shape))
                return f"{name}[{place}]"
            column -= size
        raise IndexError("there are fewer columns")


def chains(site_samples: Mapping[str, AnySamples]) -> Iterator[Chain]:
    """Yield the chain of each site that sent a sample, in the order of names.

    Args:
        site_samples: Site -> its samples, read one site at a time.

    Yields:
        Chains; each but the first with warnings on how its mean lies beside the first one's.

    Raises:
        ValueError: If no site sent a sample, or names or shapes differ between sites.
    """
    shapes = sample_shapes(site_samples)
    reference: SiteVector | None = None
    for site in sorted(site_samples):
        if not len(site_samples[site]):
            continue
        samples = site_samples[site].in_memory()
        chain = Chain(
            site=site,
            draws=_flatten(site, samples.arrays, shapes),
            weights=samples.weights / samples.weights.sum(),
            temperatures=samples.temperatures,
            shapes=shapes,
        )
        mean = SiteVector(site, chain.mean)
        if reference is None:
            reference = mean
        else:
            warnings = alignment_warnings(reference=reference, compared=mean, shapes=shapes)
            chain = replace(chain, warnings=warnings)
        yield chain


def at_unit_temperature(chain: Chain) -> Chain:
    """Rescale draws of a tempered posterior to temperature 1.

        w_t <- m + (w_t - m) / sqrt(T_t)

    A Gaussian posterior with covariance S has covariance T S at temperature T. The chain's mean m
    stays. T_t is a public constant.

    Args:
        chain: One site's draws.

    Returns:
        The chain at temperature 1. One with a draw at temperature 0 stays as it is, with a
        warning: its spread is not that of a tempered posterior.
    """
    temperatures = chain.temperatures
    if (temperatures == 1).all():
        return chain
    if not (temperatures > 0).all():
        return replace(chain, warnings=(*chain.warnings, warning("temperature-zero", chain.site)))
    mean = chain.mean
    deviations = (chain.draws - mean) / np.sqrt(temperatures)[:, np.newaxis]
    # Unequal temperatures inside a chain would otherwise move its mean by a part of the sampling
    # error.
    deviations -= chain.weights @ deviations
    return replace(chain, draws=mean + deviations, temperatures=np.ones_like(temperatures))


def sample_shapes(site_samples: Mapping[str, AnySamples]) -> Shapes:
    """Return the shape of each parameter, from the first site that sent a sample.

    Raises:
        ValueError: If no site sent one.
    """
    for site in sorted(site_samples):
        if len(site_samples[site]):
            first = site_samples[site].thinned(1)
            return {name: tuple(array.shape[1:]) for name, array in first.arrays.items()}
    raise ValueError("no site sent a sample")


def flatten_state(
    state: Mapping[str, npt.NDArray], shapes: Mapping[str, tuple[int, ...]]
) -> npt.NDArray[np.float64]:
    """Join a model's arrays into one vector (d,), in the order of `shapes`.

    Raises:
        ValueError: If names or shapes are not those of `shapes`.
    """
    rows = {name: array[np.newaxis] for name, array in state.items()}
    return _flatten("the server", rows, shapes)[0]


def unflatten(draws: npt.NDArray[np.float64], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Split a matrix (M, d) into float32 arrays (M, *shape), the inverse of joining them."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    blocks = np.split(draws, ends[:-1], axis=1)
    arrays = {}
    for (name, shape), block in zip(shapes.items(), blocks, strict=True):
        arrays[name] = block.astype(np.float32).reshape((len(draws), *shape))
    return arrays


def state_of(vector: npt.NDArray[np.float64], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Split a vector (d,) into float32 arrays by parameter name."""
    return {name: array[0] for name, array in unflatten(vector[np.newaxis], shapes).items()}


def _flatten(
    owner: str, arrays: Mapping[str, npt.NDArray], shapes: Mapping[str, tuple[int, ...]]
) -> npt.NDArray[np.float64]:
    array_shapes = {name: tuple(array.shape[1:]) for name, array in arrays.items()}
    if array_shapes != dict(shapes):
        raise ValueError(
            f"the arrays of {owner!r} have other names or shapes than those of the first site"
        )
    rows = [np.asarray(arrays[name], np.float64).reshape(len(arrays[name]), -1) for name in shapes]
    return np.concatenate(rows, axis=1)
