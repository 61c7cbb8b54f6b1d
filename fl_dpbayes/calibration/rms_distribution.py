"""The law of the debiased mean square gap when the true frequencies of the bins are known."""

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

from fl_dpbayes.calibration.bins import Floats

SMALLEST_SKEWNESS = 1e-3  # below it the gamma law is the normal one to three digits


def square_gap_moments(n: Floats, p: Floats, q: Floats, noise_std: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mean, variance and third central moment of N times the debiased mean square gap.

    With k ~ Binomial(n, q), d = k - n q, v = q (1 - q) and the gap g = q - p a bin contributes

        n g^2 + A (d^2 - n v) + B d,    A = 1 / (n - 1),    B = 2 g + (2 q - 1) A

    and its moments follow from the central moments of d. Noise of standard deviation s on the sums of 1, p, y adds,
    as the normal law of the gap and the first order in the count have it,

        s^2 (B^2 + 4 g^2 + g^4) + 8 s^2 v / n + 8 s^4 / n^2    to the variance,
        24 g^2 (S^2 - (n v)^2) / n + 8 (S^3 - (n v)^3) / n^3    to the third moment,    S = n v + 2 s^2.

    Args:
        n: records per bin, shape (..., B); bins with less than 2 contribute nothing.
        p: mean confidence per bin, in [0, 1].
        q: true frequency per bin, in [0, 1].
        noise_std: s, shape (B,), 0 for exact sums.

    Returns:
        Three arrays of shape (...).
    """
    estimated, m = n >= 2, np.maximum(n, 2.0)
    v, gap, skew = q * (1 - q), q - p, 1 - 2 * q
    a = 1 / (m - 1)
    b = 2 * gap - skew * a
    d2 = m * v
    d3, d4 = d2 * skew, d2 * (1 + (3 * m - 6) * v)
    d5 = d2 * skew * (1 + (10 * m - 12) * v)
    d6 = d2 * (1 - 30 * v * (1 - 4 * v) + 5 * m * v * (5 - 26 * v) + 15 * (m * v) ** 2)
    variance = a**2 * (d4 - d2**2) + 2 * a * b * d3 + b**2 * d2
    third = a**3 * (d6 - 3 * d2 * d4 + 2 * d2**3) + 3 * a**2 * b * (d5 - 2 * d2 * d3)
    third += 3 * a * b**2 * (d4 - d2**2) + b**3 * d3
    if noise_std.any():
        s2 = noise_std**2
        both = d2 + 2 * s2
        variance += s2 * (b**2 + 4 * gap**2 + gap**4) + 8 * s2 * v / m + 8 * (s2 / m) ** 2
        third += 24 * gap**2 * (both**2 - d2**2) / m + 8 * (both**3 - d2**3) / m**3
    mean, variance, third = (np.where(estimated, each, 0.0).sum(axis=-1) for each in (m * gap**2, variance, third))
    return mean, variance, third


def share_below(value: Floats | float, mean: Floats, variance: Floats, third: Floats) -> Floats:
    """Return P(X <= value) of the Pearson type III law (a shifted gamma) with three given moments.

    A sum of squared normals, which the square gap nearly is, is that law where all weights are equal. A variance of 0
    gives 1/2 at the mean: no sum at all then speaks for or against the model.

    Args:
        value: where the law is asked.
        mean: mean of X.
        variance: variance, >= 0.
        third: third central moment.

    Returns:
        Probabilities, of the moments' shape.

    Source: Imhof, Biometrika 48 (1961), 419-426, section 4, for sums of squares (Pearson's approximation).
    """
    deviation, sign, shape = _gamma_law(variance, third)
    place = np.maximum(shape + np.sqrt(shape) * sign * (value - mean) / deviation, 0.0)
    return np.where(sign > 0, gammainc(shape, place), gammaincc(shape, place))


def share_quantile(share: float, mean: Floats, variance: Floats, third: Floats) -> float:
    """Return the value below which a share of the same law lies.

    Args:
        share: in (0, 1).
        mean: mean of X, one number.
        variance: variance, >= 0.
        third: third central moment.

    Returns:
        x with `share_below(x) = share`.
    """
    deviation, sign, shape = _gamma_law(variance, third)
    place = np.where(sign > 0, gammaincinv(shape, share), gammainccinv(shape, share))
    return float(mean + sign * deviation * (place - shape) / np.sqrt(shape))


def _gamma_law(variance: Floats, third: Floats) -> tuple[Floats, Floats, Floats]:
    """Return standard deviation, side of the long tail, and shape."""
    deviation = np.sqrt(np.maximum(variance, 1e-18))
    skewness = third / deviation**3
    return deviation, np.where(skewness >= 0, 1.0, -1.0), 4 / np.maximum(np.abs(skewness), SMALLEST_SKEWNESS) ** 2
