"""Population shift by one feature: an older clientele, or more men."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.errors import UserError

TILT_RATES = (0.25, 0.5, 1.0, 1.5, 2.0)
# Beyond two standard deviations all weigh alike: else one extreme record would leave a site with a handful of others.
HIGHEST_STANDARD_SCORE = 2.0


def tilt_indices(
    values: npt.NDArray[np.float32], severity: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Choose records without replacement so that high values of a feature become commoner.

        P(keep i) = exp(rate (min(z_i, c) - c)),  c = min(2, max z):  p'(x) proportional to p(x) exp(rate min(z, c))

    z is the value less the site's mean, over the site's standard deviation: a shift belongs to a simulation, and
    neither number leaves the site. Records kept at one severity include those kept at every higher one, and those of
    the highest value are always kept.

    Args:
        values: (N,), the feature.
        severity: 1 to 5, a rate of .25, .5, 1, 1.5 or 2 per standard deviation.
        generator: one draw per record.

    Returns:
        The indices kept, in increasing order.

    Raises:
        UserError: if all values are equal.

    Source: exponential tilting; population shift of Castro, Walker and Glocker, Nat. Commun. 11:3673, 2020.
    """
    draws = generator.random(len(values))
    exact = values.astype(np.float64)
    spread = exact.std()
    if not spread > 0:
        raise UserError(
            f"shift.feature: the site's {len(values)} records all have the same value, so no tilt can be made: choose "
            "another feature"
        )
    score = (exact - exact.mean()) / spread
    highest = min(HIGHEST_STANDARD_SCORE, score.max())
    return np.flatnonzero(draws < np.exp(TILT_RATES[severity - 1] * (np.minimum(score, highest) - highest)))
