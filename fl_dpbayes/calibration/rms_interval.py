"""The root-mean-square calibration error without the bias of chance, and its interval by inverting a test.

A bootstrap from the observed frequencies fails for confident models: with 30 right answers out of
30 it draws nothing but right answers, and reports a sure error of almost 0. Here a value of the
error is kept if the observed estimate is not extreme under a model that errs so much.
"""

import math

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv, ndtr, ndtri

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, OUTCOME, Floats
from fl_dpbayes.calibration.intervals import Interval

SMALLEST_SKEWNESS = 1e-3  # below it the gamma law is the normal one to three digits
STEPS = np.concatenate([[0.0], np.geomspace(2e-3, 1.0, 39)])
# The models are fitted to the data: at 2.5 % a few confident ones of 50 to 200 records were covered
# at 93 %.
TAIL = 0.0225
# Confidences p have information sum_b 4 n_b p_b (1 - p_b). Below this much a few large atoms make
# up the law of the estimate: the share above the observed one is then asked to be smaller in
# proportion.
FULL_INFORMATION = 10.0
# Right answers in all, in standard deviations, beyond which a model of one-sided error is not kept
# (2.5 %, two-sided).
MOST_DEVIATIONS = 2.24
# An estimate below this quantile of a calibrated model's is taken for it at the upper end: one
# standard deviation.
LUCKIEST_SHARE = 0.16


def debiased_mean_square_gap(table: Floats, noise_std: Floats | float = 0.0) -> Floats:
    """Return the mean square gap less the part that chance alone puts into it; it may be negative.

    sum_b (n_b / N) [(p_b - y_b)^2 - 2 s_b^2 / n_b^2 - y_b (1 - y_b) / (n_b - 1)] over bins with n_b
    >= 2. Source: Kumar, Liang, Ma, "Verified uncertainty calibration", NeurIPS 2019, definition 5.2
    (s = 0).

    `table`: sums of 1, p, y per bin, shape (..., B, >= 3), with at least one record; bins of one
    contribute nothing. `noise_std`: s_b, standard deviation of independent Gaussian noise on the
    sums, (B,) or (). Returns (...).
    """
    n = np.maximum(table[..., COUNT], 2.0)
    y = np.clip(table[..., OUTCOME] / n, 0, 1)
    gap = (table[..., CONFIDENCE] - table[..., OUTCOME]) / n
    excess = gap**2 - 2 * (noise_std / n) ** 2 - y * (1 - y) / (n - 1)
    return np.where(table[..., COUNT] >= 2, n * excess, 0.0).sum(axis=-1) / table[..., COUNT].sum(
        axis=-1
    )


def rms_interval(table: Floats, noise_std: Floats | float = 0.0) -> Interval | None:
    """Return a 95 % interval for sqrt(sum_b (n_b / N) (p_b - E y_b)^2), which `rms_debiased` estimates.

    The models have true frequencies p_b + t u_b, t over STEPS, in three directions u: the observed
    gap, every bin too confident (-p_b), and every bin too cautious (1 - p_b). The last two guard
    where the observed frequencies hide the variance (no wrong answer among few); there a model is
    kept only if the number of right answers in all is no further than MOST_DEVIATIONS from what it
    expects (all are kept where sums are noisy). Along a direction the interval runs from the least
    error under which an estimate as large as the observed one has a share of TAIL, to the largest
    under which one as small has; an estimate in the lowest LUCKIEST_SHARE of a calibrated model's
    counts as that quantile there. The union over directions, and the estimate, are returned. No
    random number is drawn. Coverage is measured, not proven: `fl-dpbayes reproduce
    interval-coverage`.

    Source: Chuang and Lai, "Hybrid resampling methods for confidence intervals", Statistica Sinica
    10 (2000), 1-50, with the moments of the law in place of resampling; Cowan, Cranmer, Gross,
    Vitells, "Power-constrained limits", arXiv 1105.3166, for the upper end.

    `table` and `noise_std`: as in `debiased_mean_square_gap`; noisy sums must hold several a bin.
    None without records.
    """
    occupied = table[:, COUNT] > 0
    if not occupied.any():
        return None
    filled, noise = table[occupied, : OUTCOME + 1], np.broadcast_to(noise_std, len(table))[occupied]
    n = filled[:, COUNT]
    p = np.clip(filled[:, CONFIDENCE] / n, 0, 1)
    gap = np.clip((filled[:, OUTCOME] + p) / (n + 1), 0, 1) - p
    directions = np.stack([gap / max(np.abs(gap).max(), STEPS[1]), -p, 1 - p])
    truth = np.clip(p + STEPS[:, None] * directions[:, None, :], 0, 1)
    observed = float(debiased_mean_square_gap(filled, noise))
    mean, variance, third = square_gap_moments(n, p, truth, noise)
    above = 1 - share_below(observed * n.sum(), mean, variance, third)
    # Luck that a calibrated model seldom has would rule out every model, and leave an interval of
    # no width.
    least = max(
        observed * n.sum(), share_quantile(LUCKIEST_SHARE, mean[0, 0], variance[0, 0], third[0, 0])
    )
    below = share_below(least, mean, variance, third)
    if noise.any():
        # Noisy counts give the law a lower tail that the gamma, bounded below, has not: 82 to 90 %
        # were covered.
        below = np.maximum(below, ndtr((least - mean) / np.sqrt(np.maximum(variance, 1e-18))))
    else:
        most = MOST_DEVIATIONS * np.sqrt((truth * (1 - truth)) @ n) + 1e-9
        kept = np.abs(filled[:, OUTCOME].sum() - truth @ n) <= most
        kept[0] = True
        below, above = np.where(kept, below, 0), np.where(kept, above, 0)
    errors = np.sqrt((truth - p) ** 2 @ n / n.sum())
    upper_tail = TAIL * min(1.0, float(4 * n @ (p * (1 - p))) / FULL_INFORMATION)
    ends = [_ends(*each, upper_tail) for each in zip(errors, below, above, strict=True)]
    estimate = math.sqrt(min(1.0, max(0.0, observed)))
    return Interval(
        min(estimate, *(low for low, _ in ends)), max(estimate, *(high for _, high in ends))
    )


def _ends(errors: Floats, below: Floats, above: Floats, upper_tail: float) -> tuple[float, float]:
    """Return the least and the largest error along one direction that the estimate does not rule out.

    `errors` (S,) ascend; `below` and `above` are the shares of estimates as small as the observed
    one, or as large.
    """
    not_too_small, not_too_large = (
        np.flatnonzero(above >= upper_tail),
        np.flatnonzero(below >= TAIL),
    )
    low = (
        _crossing(errors, above, upper_tail, int(not_too_small[0]), -1)
        if not_too_small.size
        else 1.0
    )
    high = _crossing(errors, below, TAIL, int(not_too_large[-1]), 1) if not_too_large.size else 0.0
    return low, high


def _crossing(errors: Floats, share: Floats, tail: float, inside: int, step: int) -> float:
    """Return the error at which a share falls to `tail`, on the way from a model that is kept to its neighbour.

    Interpolated in normal quantiles, in which a share is nearly linear in the error.
    """
    outside = inside + step
    if not 0 <= outside < len(errors):
        return float(errors[inside])
    kept, lost, wanted = ndtri(np.clip([share[inside], share[outside], tail], 1e-9, 1 - 1e-9))
    if kept <= lost:
        return float(errors[inside])
    return float(
        errors[inside] + (kept - wanted) / (kept - lost) * (errors[outside] - errors[inside])
    )


def square_gap_moments(
    n: Floats, p: Floats, q: Floats, noise_std: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return mean, variance and third central moment of N times the debiased mean square gap.

    With k ~ Binomial(n, q), d = k - n q, v = q (1 - q) and the gap g = q - p a bin contributes

        n g^2 + A (d^2 - n v) + B d,    A = 1 / (n - 1),    B = 2 g + (2 q - 1) A

    and its moments follow from the central moments of d. Noise of standard deviation s on the sums
    of 1, p, y adds, as the normal law of the gap and the first order in the count have it,

        s^2 (B^2 + 4 g^2 + g^4) + 8 s^2 v / n + 8 s^4 / n^2    to the variance,
        24 g^2 (S^2 - (n v)^2) / n + 8 (S^3 - (n v)^3) / n^3    to the third moment,    S = n v + 2 s^2.

    `n`, `p`, `q` and `noise_std` s are (..., B); bins with n < 2 contribute nothing.
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
    mean, variance, third = (
        np.where(estimated, each, 0.0).sum(axis=-1) for each in (m * gap**2, variance, third)
    )
    return mean, variance, third


def share_below(value: Floats | float, mean: Floats, variance: Floats, third: Floats) -> Floats:
    """Return P(X <= value) of the Pearson type III law (a shifted gamma) with three given moments.

    A sum of squared normals, which the square gap nearly is, is that law where all weights are
    equal. A variance of 0 gives 1/2 at the mean: no sum at all then speaks for or against the
    model. Source: Imhof, Biometrika 48 (1961), 419-426, section 4, for sums of squares (Pearson's
    approximation).
    """
    deviation, sign, shape = _gamma_law(variance, third)
    place = np.maximum(shape + np.sqrt(shape) * sign * (value - mean) / deviation, 0.0)
    return np.where(sign > 0, gammainc(shape, place), gammaincc(shape, place))


def share_quantile(share: float, mean: Floats, variance: Floats, third: Floats) -> float:
    """Return x with `share_below(x) = share`, share in (0, 1), of one law."""
    deviation, sign, shape = _gamma_law(variance, third)
    place = np.where(sign > 0, gammaincinv(shape, share), gammainccinv(shape, share))
    return float(mean + sign * deviation * (place - shape) / np.sqrt(shape))


def _gamma_law(variance: Floats, third: Floats) -> tuple[Floats, Floats, Floats]:
    """Return standard deviation, side of the long tail, and shape."""
    deviation = np.sqrt(np.maximum(variance, 1e-18))
    skewness = third / deviation**3
    return (
        deviation,
        np.where(skewness >= 0, 1.0, -1.0),
        4 / np.maximum(np.abs(skewness), SMALLEST_SKEWNESS) ** 2,
    )
