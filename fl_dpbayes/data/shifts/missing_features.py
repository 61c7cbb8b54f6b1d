"""Population shift by what is measured: a hospital where some examinations are not made."""

import numpy as np
import numpy.typing as npt

MISSING_SHARES = (0.1, 0.2, 0.4, 0.6, 0.8)


def lose_features(
    features: npt.NDArray[np.float32], severity: int, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Replace values by 0, each with the same probability and independent of all others.

    0 is the declared centre of a feature that is centred by public constants, so this is imputation by a public value;
    an indicator that is lost reads "no". Values lost at one severity are lost at every higher one.

    Args:
        features: (N, F).
        severity: 1 to 5, a probability of .1, .2, .4, .6 or .8.
        generator: one draw per value.

    Returns:
        The features left, (N, F).
    """
    return np.where(generator.random(features.shape) < MISSING_SHARES[severity - 1], np.float32(0), features)
