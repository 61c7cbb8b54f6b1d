"""Do two networks number their hidden units alike?

Averages of weights mean nothing where they do not.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from fl_dpbayes.config import RunWarning, warning
from fl_dpbayes.protocol import Arrays, without_prefix

Vector = npt.NDArray[np.float64]
# Units that hardly differ swap by chance without harm; halving the distance is far beyond that.
_WORTH_REORDERING = 0.5


class SiteVector(NamedTuple):
    """A site's parameters in one vector.

    Attributes:
        site: Its name.
        vector: Shape (d,).
    """

    site: str
    vector: Vector


def unaligned_units(
    first: Vector, second: Vector, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """Name the weight arrays whose hidden units match better in another order.

    A unit is a row of an array (units, ...) with at least two axes. An array is named if the best
    assignment pi makes sum_i |a_i - b_pi(i)|^2 less than half of sum_i |a_i - b_i|^2. The last
    module's rows (that of the highest number) are outputs, whose order the task fixes: two noisy
    rows of opposite signs would else look swapped.

    Args:
        first: a, parameters of a model, shape (d,).
        second: b, of the same model, shape (d,).
        shapes: Parameter -> its shape, in the vectors' order.

    Returns:
        Names of arrays.

    Source: Ainsworth et al. 2023, "Git Re-Basin", section 3.2.
    """
    if not all(re.fullmatch(r"(\d+\.)+(weight|bias)", name) for name in shapes):
        # The names of a module of one's own do not tell which of its layers is the last, and which
        # arrays are layers.
        return ()
    outputs = max(map(_module, shapes), key=_numeric_order)
    unaligned = []
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        if len(shape) >= 2 and shape[0] >= 2 and _module(name) != outputs:
            first_rows = first[start:end].reshape(shape[0], -1)
            second_rows = second[start:end].reshape(shape[0], -1)
            if _is_permuted(first_rows, second_rows):
                unaligned.append(name)
        start = end
    return tuple(unaligned)


def alignment_warnings(
    reference: SiteVector, compared: SiteVector, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[RunWarning, ...]:
    """Warn, once per weight array, where a site's `unaligned_units` are not those of another."""
    names = unaligned_units(reference.vector, compared.vector, shapes)
    return tuple(
        warning("units-reordered", array=name, other=compared.site, first=reference.site)
        for name in names
    )


def state_warnings(states: Mapping[str, Arrays]) -> tuple[RunWarning, ...]:
    """Warn of each site whose hidden units stand in another order than the first site's.

    Args:
        states: Site -> its state, at least one; one is in memory at a time.

    Returns:
        The warnings, site by site.
    """
    parameters = _parameters(states)
    first_site, first_arrays = next(parameters)
    shapes = {name: array.shape for name, array in first_arrays.items()}
    reference = SiteVector(first_site, _vector(first_arrays))
    warnings: list[RunWarning] = []
    for site, arrays in parameters:
        compared = SiteVector(site, _vector(arrays))
        warnings += alignment_warnings(reference=reference, compared=compared, shapes=shapes)
    return tuple(warnings)


def _parameters(states: Mapping[str, Arrays]) -> Iterator[tuple[str, Arrays]]:
    """Read the sites' parameters, sites in alphabetical order."""
    for site in sorted(states):
        yield site, without_prefix("parameters", states[site]) or states[site]


def _vector(arrays: Arrays) -> Vector:
    return np.concatenate([array.astype(np.float64).ravel() for array in arrays.values()])


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _numeric_order(module: str) -> list[tuple[int, str]]:
    # Arrays that were stored come back in the order of text, where "10" stands before "3": the
    # order of numbers counts.
    return [(len(part), part) for part in module.split(".")]


def _is_permuted(first: Vector, second: Vector) -> bool:
    squares = np.square(first).sum(axis=1)[:, np.newaxis] + np.square(second).sum(axis=1)
    distances = np.maximum(squares - 2 * first @ second.T, 0.0)
    # In the product form, rows that are equal have a distance of rounding size, never below 0 after
    # the line above.
    limit = _WORTH_REORDERING * np.square(first - second).sum()
    # No assignment beats every row's nearest partner: the usual case needs no assignment at all.
    if distances.min(axis=1).sum() >= limit:
        return False
    rows, columns = linear_sum_assignment(distances)
    return bool(distances[rows, columns].sum() < limit and (rows != columns).any())
