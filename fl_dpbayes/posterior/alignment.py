"""Do two networks number their hidden units alike?

Averages of weights mean nothing where they do not.
"""

import math
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from fl_dpbayes.config import RunWarning, warning
from fl_dpbayes.protocol import Arrays, without_prefix

Vector = npt.NDArray[np.float64]
# Units that hardly differ swap by chance without harm; halving the distance is far beyond that.
_WORTH_REORDERING = 0.5


def unaligned_units(
    first: Vector, second: Vector, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """Name the weight arrays whose hidden units match better in another order, of two vectors (d,) of one model.

    A unit is a row of an array (units, ...) with at least two axes. An array is named if the best
    assignment pi makes sum_i |a_i - b_pi(i)|^2 less than half of sum_i |a_i - b_i|^2. The last
    module's rows (that of the highest number) are outputs, whose order the task fixes: two noisy
    rows of opposite signs would else look swapped. `shapes` are those of the parameters by name, in
    order. Source: Ainsworth et al. 2023, "Git Re-Basin", section 3.2.
    """
    named, start = list[str](), 0
    # Arrays that were stored come back in the order of text, where "10" stands before "3": the
    # order of numbers counts.
    outputs = max(
        map(_module, shapes), key=lambda module: [(len(part), part) for part in module.split(".")]
    )
    if not all(re.fullmatch(r"(\d+\.)+(weight|bias)", name) for name in shapes):
        # The names of a module of one's own do not tell which of its layers is the last, and which
        # arrays are layers.
        return ()
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        if len(shape) >= 2 and shape[0] >= 2 and _module(name) != outputs:
            rows = (vector[start:end].reshape(shape[0], -1) for vector in (first, second))
            if _is_permuted(*rows):
                named.append(name)
        start = end
    return tuple(named)


def alignment_warnings(
    reference: tuple[str, Vector], other: tuple[str, Vector], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[RunWarning, ...]:
    """Warn, once per weight array, where a site's `unaligned_units` are not those of another.

    Both by name.
    """
    (first, vector), (site, compared) = reference, other
    named = unaligned_units(vector, compared, shapes)
    return tuple(warning("units-reordered", array=name, other=site, first=first) for name in named)


def state_warnings(states: Mapping[str, Arrays]) -> tuple[RunWarning, ...]:
    """Warn of each site whose state, one in memory at a time, has its hidden units in another order than the first."""
    sites = sorted(states)
    parameters = (without_prefix("parameters", states[site]) or states[site] for site in sites)
    reference = next(parameters)
    shapes, first = (
        {name: array.shape for name, array in reference.items()},
        (sites[0], _vector(reference)),
    )
    others = zip(sites[1:], map(_vector, parameters), strict=True)
    return tuple(found for other in others for found in alignment_warnings(first, other, shapes))


def _vector(arrays: Arrays) -> npt.NDArray[np.float64]:
    return np.concatenate([array.astype(np.float64).ravel() for array in arrays.values()])


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _is_permuted(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> bool:
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
