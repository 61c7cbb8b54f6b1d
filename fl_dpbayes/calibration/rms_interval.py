"""The root-mean-square calibration error without the bias of chance, and its interval.

A bootstrap from the observed frequencies fails for confident models: with 30 right answers out of
30 it draws nothing but right answers, and reports a sure error of almost 0. Here a test is
inverted: an error is kept if the observed estimate is not extreme under a model that errs so much.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv, ndtr, ndtri

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, OUTCOME, Floats
from fl_dpbayes.calibration.intervals import Interval

SMALLEST_SKEWNESS = 1e-3  # below it the gamma law is the normal one to three digits
SMALLEST_VARIANCE = 1e-18
STEPS = np.concatenate([[0.0], np.geomspace(2e-3, 1.0, 39)])
# The models are fitted to the data: at 2.5 % a few confident ones of 50 to 200 records were covered
# at 93 %.
TAIL = 0.0225
# Confidences p have information sum_b 4 n_b p_b (1 - p_b). Below this much a few large atoms make
# up the law of the estimate: the share above the observed one must then be smaller in proportion.
FULL_INFORMATION = 10.0
# Right answers in all, in standard deviations, beyond which a model of one-sided error is not kept
# (2.5 %, two-sided).
MOST_DEVIATIONS = 2.24
# An estimate below this quantile of a calibrated model's is taken for it at the upper end: one
# standard deviation.
LUCKIEST_SHARE = 0.16


def debiased_mean_square_gap(table: Floats, noise_std: Floats | float = 0.0) -> Floats:
    """Return the mean square gap less the part that chance alone puts into it.

        sum_b (n_b / N) [(p_b - y_b)^2 - 2 s_b^2 / n_b^2 - y_b (1 - y_b) / (n_b - 1)]

    over bins with n_b >= 2; it may be negative.

    Args:
        table: Sums of 1, p, y per bin, shape (..., B, >= 3), with at least one record; bins of one
            contribute nothing.
        noise_std: s_b, standard deviation of independent Gaussian noise on the sums, shape (B,) or
            ().

    Returns:
        Shape (...).

    Source: Kumar, Liang, Ma, "Verified uncertainty calibration", NeurIPS 2019, definition 5.2 (s =
    0).
    """
    n = np.maximum(table[..., COUNT], 2.0)
    y = np.clip(table[..., OUTCOME] / n, 0, 1)
    gap = (table[..., CONFIDENCE] - table[..., OUTCOME]) / n
    excess = gap**2 - 2 * (noise_std / n) ** 2 - y * (1 - y) / (n - 1)
    total = np.where(table[..., COUNT] >= 2, n * excess, 0.0).sum(axis=-1)
    return total / table[..., COUNT].sum(axis=-1)


def rms_interval(table: Floats, noise_std: Floats | float = 0.0) -> Interval | None:
    """Return a 95 % interval for the root-mean-square calibration error.

    It is sqrt(sum_b (n_b / N) (p_b - E y_b)^2), which `rms_debiased` estimates. The models have
    true frequencies p_b + t u_b, t over STEPS, in three directions u: the observed gap, every
    bin too confident (-p_b), and every bin too cautious (1 - p_b). The last two guard where the
    observed frequencies hide the variance (no wrong answer among few); there a model is kept
    only if the number of right answers in all is no further than MOST_DEVIATIONS from what it
    expects (all are kept where sums are noisy). Along a direction the interval runs from the
    least error under which an estimate as large as the observed one has a share of TAIL, to the
    largest under which one as small has; an estimate in the lowest LUCKIEST_SHARE of a
    calibrated model's counts as that quantile there. The union over directions, and the
    estimate, are returned. No random number is drawn. Coverage is measured, not proven:
    `fl-dpbayes reproduce interval-coverage`.

    Args:
        table: As for `debiased_mean_square_gap`, shape (B, >= 3); noisy sums must hold several a
            bin.
        noise_std: As there.

    Returns:
        The interval; None without records.

    Source: Chuang and Lai, "Hybrid resampling methods for confidence intervals", Statistica Sinica
    10 (2000), 1-50, with the moments of the law in place of resampling; Cowan, Cranmer, Gross,
    Vitells, "Power-constrained limits", arXiv 1105.3166, for the upper end.
    """
    occupied = table[:, COUNT] > 0
    if not occupied.any():
        return None
    filled = table[occupied, : OUTCOME + 1]
    noise = np.broadcast_to(noise_std, len(table))[occupied]
    n = filled[:, COUNT]
    p = np.clip(filled[:, CONFIDENCE] / n, 0, 1)
    true_frequencies = _models(filled, p)
    mean_square_gap = float(debiased_mean_square_gap(filled, noise))
    observed = mean_square_gap * n.sum()
    moments = square_gap_moments(n=n, p=p, q=true_frequencies, noise_std=noise)
    above = 1 - share_below(observed, moments)
    # Luck that a calibrated model seldom has would rule out every model, and leave an interval of
    # no width.
    luckiest = share_quantile(LUCKIEST_SHARE, moments.of_model(0, 0))
    least = max(observed, luckiest)
    below = share_below(least, moments)
    if noise.any():
        # Noisy counts give the law a lower tail that the gamma, bounded below, has not: 82 to 90 %
        # were covered.
        deviation = np.sqrt(np.maximum(moments.variance, SMALLEST_VARIANCE))
        below = np.maximum(below, ndtr((least - moments.mean) / deviation))
    else:
        variance = (true_frequencies * (1 - true_frequencies)) @ n
        allowed = MOST_DEVIATIONS * np.sqrt(variance) + 1e-9
        plausible = np.abs(filled[:, OUTCOME].sum() - true_frequencies @ n) <= allowed
        plausible[0] = True
        below = np.where(plausible, below, 0)
        above = np.where(plausible, above, 0)
    errors = np.sqrt((true_frequencies - p) ** 2 @ n / n.sum())
    information = float(4 * n @ (p * (1 - p)))
    upper_tail = TAIL * min(1.0, information / FULL_INFORMATION)
    estimate = math.sqrt(min(1.0, max(0.0, mean_square_gap)))
    low = estimate
    high = estimate
    for direction in range(len(errors)):
        low = min(low, _end(errors[direction], above[direction], upper_tail, least=True))
        high = max(high, _end(errors[direction], below[direction], TAIL, least=False))
    return Interval(low, high)


def _models(filled: Floats, p: Floats) -> Floats:
    """Return true frequencies of the models, (3 directions, STEPS, B)."""
    gap = np.clip((filled[:, OUTCOME] + p) / (filled[:, COUNT] + 1), 0, 1) - p
    directions = np.stack([gap / max(np.abs(gap).max(), STEPS[1]), -p, 1 - p])
    return np.clip(p + STEPS[:, None] * directions[:, None, :], 0, 1)


def _end(errors: Floats, share: Floats, tail: float, *, least: bool) -> float:
    """Return the least, or the largest, of ascending errors (S,) that is not ruled out.

    `share` are the shares of estimates as large, or as small, as the observed one, (S,). The end is
    the error at which the share falls to `tail`, between a kept model and its neighbour:
    interpolated in normal quantiles, in which a share is nearly linear in the error.
    """
    possible = np.flatnonzero(share >= tail)
    if not possible.size:
        return 1.0 if least else 0.0
    inside = int(possible[0] if least else possible[-1])
    outside = inside - 1 if least else inside + 1
    if not 0 <= outside < len(errors):
        return float(errors[inside])
    shares = np.clip([share[inside], share[outside], tail], 1e-9, 1 - 1e-9)
    inside_quantile, outside_quantile, tail_quantile = ndtri(shares)
    if inside_quantile <= outside_quantile:
        return float(errors[inside])
    way = (inside_quantile - tail_quantile) / (inside_quantile - outside_quantile)
    return float(errors[inside] + way * (errors[outside] - errors[inside]))


class Moments(NamedTuple):
    """Moments of a law, or of many, all of one shape.

    Attributes:
        mean: Mean.
        variance: Variance >= 0.
        third: Third central moment.
    """

    mean: Floats
    variance: Floats
    third: Floats

    def of_model(self, *index: int) -> "Moments":
        """Return the moments of one law."""
        return Moments(self.mean[index], self.variance[index], self.third[index])


def square_gap_moments(n: Floats, p: Floats, q: Floats, noise_std: Floats) -> Moments:
    """Return the moments of N times the debiased mean square gap.

    With k ~ Binomial(n, q), d = k - n q, v = q (1 - q) and the gap g = q - p a bin contributes

        n g^2 + A (d^2 - n v) + B d,    A = 1 / (n - 1),    B = 2 g + (2 q - 1) A

    and its moments follow from the central moments of d. Noise of standard deviation s on the sums
    of 1, p, y adds, as the normal law of the gap and the first order in the count have it, with S =
    n v + 2 s^2,

        s^2 (B^2 + 4 g^2 + g^4) + 8 s^2 v / n + 8 s^4 / n^2             to the variance,
        24 g^2 (S^2 - (n v)^2) / n + 8 (S^3 - (n v)^3) / n^3    to the third moment.

    Args:
        n: Records per bin, shape (..., B); bins with n < 2 contribute nothing.
        p: Mean confidence, shape (..., B).
        q: True frequency, shape (..., B).
        noise_std: s, shape (..., B).

    Returns:
        Mean, variance and third central moment, shape (...).
    """
    estimated = n >= 2
    m = np.maximum(n, 2.0)
    v = q * (1 - q)
    gap = q - p
    skew = 1 - 2 * q
    a = 1 / (m - 1)
    b = 2 * gap - skew * a
    d2 = m * v
    d3 = d2 * skew
    d4 = d2 * (1 + (3 * m - 6) * v)
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
    return Moments(
        mean=np.where(estimated, m * gap**2, 0.0).sum(axis=-1),
        variance=np.where(estimated, variance, 0.0).sum(axis=-1),
        third=np.where(estimated, third, 0.0).sum(axis=-1),
    )


def share_below(value: Floats | float, moments: Moments) -> Floats:
    """Return P(X <= value) of the Pearson type III law (a shifted gamma) with these moments.

    A sum of squared normals, which the square gap nearly is, is that law where all weights are
    equal. A variance of 0 gives 1/2 at the mean: no sum at all then speaks for or against the
    model.

    Args:
        value: Any shape that fits the moments.
        moments: Of X.

    Returns:
        Shares in [0, 1].

    Source: Imhof, Biometrika 48 (1961), 419-426, section 4, for sums of squares (Pearson's
    approximation).
    """
    law = _gamma_law(moments)
    off = np.sqrt(law.shape) * law.sign * (value - moments.mean) / law.deviation
    place = np.maximum(law.shape + off, 0.0)
    return np.where(law.sign > 0, gammainc(law.shape, place), gammaincc(law.shape, place))


def share_quantile(share: float, moments: Moments) -> float:
    """Return x with `share_below(x) = share`, share in (0, 1), of one law."""
    law = _gamma_law(moments)
    place = np.where(law.sign > 0, gammaincinv(law.shape, share), gammainccinv(law.shape, share))
    return float(moments.mean + law.sign * law.deviation * (place - law.shape) / np.sqrt(law.shape))


class _GammaLaw(NamedTuple):
    """Standard deviation, side of the long tail (1 or -1), and shape of a shifted gamma."""

    deviation: Floats
    sign: Floats
    shape: Floats


def _gamma_law(moments: Moments) -> _GammaLaw:
    deviation = np.sqrt(np.maximum(moments.variance, SMALLEST_VARIANCE))
    skewness = moments.third / deviation**3
    return _GammaLaw(
        deviation=deviation,
        sign=np.where(skewness >= 0, 1.0, -1.0),
        shape=4 / np.maximum(np.abs(skewness), SMALLEST_SKEWNESS) ** 2,
    )
