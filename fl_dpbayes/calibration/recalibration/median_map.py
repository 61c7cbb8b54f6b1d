"""From the sites' recalibration maps to one.

No single site of three or more can move it beyond the others'. Each parameter is the median of the
sites': log T; scales and biases; knots and their values, which a median leaves rising. All sites
count alike, since a size is a site's own word.
"""

import math
from collections.abc import Mapping

import numpy as np

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.config import COUNTED, RunWarning, warning

FEWEST_SITES = 3
# In log T, a log scale or a bias: probabilities flatter or sharper by a factor of 2.7. Of a knot:
# half of all there is.
LARGEST_STEP = 1.0
LARGEST_KNOT = 0.5
# So many standard deviations of the privacy noise are added to what an honest map may be off.
NOISE_DEVIATIONS = 4.0


def median_parameters(maps: Mapping[str, Floats]) -> Floats:
    """Return the median over sites of each parameter; of two sites it is their mean.

    Args:
        maps: Site -> parameters, all of one shape (P,); at least one site.

    Returns:
        Parameters, shape (P,), each within the range of any majority of the sites'.
    """
    return np.median(np.stack(list(maps.values())), axis=0)


def median_deviation(sites: int) -> float:
    """Return the standard deviation of the median of K standard normal numbers.

    It is exactly 1 and sqrt(1/2) for one and two, and about sqrt(pi / (2 K)) for three or more.

    Args:
        sites: K >= 1.

    Returns:
        The standard deviation.
    """
    variance = math.pi / 2 if sites >= FEWEST_SITES else 1.0
    return math.sqrt(variance / sites)


def far_off_maps(
    method: str, maps: Mapping[str, Floats], noise: Mapping[str, float]
) -> tuple[RunWarning, ...]:
    """Name each site of three or more whose map is far off the median in some parameter.

    That is by more than 1 + 4 v_k in log T, a log scale or a bias, or 0.5 in a knot of an isotonic
    map.

    Args:
        method: Of the maps.
        maps: Site -> parameters, shape (P,).
        noise: Site -> v_k, the standard deviation that privacy alone gives its parameters; not
            read for methods that count.

    Returns:
        A warning for each, in the order of `maps`.
    """
    if len(maps) < FEWEST_SITES:
        return ()
    centre = median_parameters(maps)
    warnings = []
    for site, parameters in maps.items():
        distance = float(np.abs(parameters - centre).max())
        if method in COUNTED:
            allowed = LARGEST_KNOT
        else:
            allowed = LARGEST_STEP + NOISE_DEVIATIONS * noise[site]
        if distance > allowed:
            warnings.append(warning("map-far-off", site, away=distance, allowed=allowed))
    return tuple(warnings)
