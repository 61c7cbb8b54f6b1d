"""The interval of the root-mean-square calibration error, by inverting a test.

A bootstrap from the observed frequencies fails for confident models: with 30 right answers out of 30 it draws nothing
but right answers, and reports a sure error of almost 0. Here a value of the error is kept if the observed estimate is
not extreme under a model that errs so much.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, OUTCOME, Floats
from fl_dpbayes.calibration.errors import debiased_mean_square_gap
from fl_dpbayes.calibration.intervals import Interval
from fl_dpbayes.calibration.rms_distribution import share_below, share_quantile, square_gap_moments

STEPS = np.concatenate([[0.0], np.geomspace(2e-3, 1.0, 39)])
# A little less than 2.5 %: the models are fitted to the data, and at 2.5 % a few confident models of 50 to 200 records
# were covered at 93 to 94 %.
TAIL = 0.0225
# Confidences p have information sum_b 4 n_b p_b (1 - p_b). Below this much a few large atoms make up the law of the
# estimate: the share above the observed one is then asked to be smaller in proportion.
ENOUGH = 10.0
# Right answers in all, in standard deviations, beyond which a model of one-sided error is not kept (2.5 %, two-sided).
FAR = 2.24
# An estimate below this quantile of a calibrated model's is taken for it at the upper end: one standard deviation.
LUCK = 0.16


def rms_interval(table: Floats, noise_std: Floats | float = 0.0) -> Interval | None:
    """Return a 95 % interval for sqrt(sum_b (n_b / N) (p_b - E y_b)^2), which `rms_debiased` estimates.

    The models have true frequencies p_b + t u_b, t over STEPS, in three directions u: the observed gap, every bin too
    confident (-p_b), and every bin too cautious (1 - p_b). The last two guard where the observed frequencies hide the
    variance (no wrong answer among few); there a model is kept only if the number of right answers in all is no
    further than FAR from what it expects (all are kept where sums are noisy).
    Along a direction the interval runs from the least error under which an
    estimate as large as the observed one has a share of TAIL, to the largest under which one as small has; an estimate
    in the lowest LUCK of a calibrated model's counts as that quantile there. The union
    over directions, and the estimate, are returned. No random number is drawn. Coverage is measured, not proven:
    `fl-dpbayes reproduce interval-coverage`.

    Args:
        table: sums of 1, p, y per bin, shape (B, >= 3); noisy sums must hold several records per bin.
        noise_std: standard deviation of independent Gaussian noise on the sums, one value or shape (B,); 0 for exact
            sums.

    Returns:
        The interval, or None without records.

    Source: Chuang and Lai, "Hybrid resampling methods for confidence intervals", Statistica Sinica 10 (2000), 1-50,
    with the moments of the law in place of resampling; Cowan, Cranmer, Gross, Vitells, "Power-constrained limits",
    arXiv 1105.3166, for the upper end.
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
    # Luck that a calibrated model seldom has would rule out every model, and leave an interval of no width.
    least = max(observed * n.sum(), share_quantile(LUCK, mean[0, 0], variance[0, 0], third[0, 0]))
    below = share_below(least, mean, variance, third)
    if noise.any():
        # Noisy counts give the law a lower tail that the gamma, bounded below, has not: 82 to 90 % were covered.
        below = np.maximum(below, ndtr((least - mean) / np.sqrt(np.maximum(variance, 1e-18))))
    else:
        kept = _explains_the_total(filled, truth)
        kept[0] = True
        below, above = np.where(kept, below, 0), np.where(kept, above, 0)
    errors = np.sqrt((truth - p) ** 2 @ n / n.sum())
    upper_tail = TAIL * min(1.0, float(4 * n @ (p * (1 - p))) / ENOUGH)
    ends = [_ends(*each, upper_tail) for each in zip(errors, below, above, strict=True)]
    estimate = math.sqrt(min(1.0, max(0.0, observed)))
    return Interval(min(estimate, *(low for low, _ in ends)), max(estimate, *(high for _, high in ends)))


def _explains_the_total(filled: Floats, truth: Floats) -> npt.NDArray[np.bool_]:
    """Tell for each model whether the number of right answers in all is no surprise under it."""
    n = filled[:, COUNT]
    variance = (truth * (1 - truth)) @ n
    away = np.abs(filled[:, OUTCOME].sum() - truth @ n)
    return np.asarray(away <= FAR * np.sqrt(variance) + 1e-9)


def _ends(errors: Floats, below: Floats, above: Floats, upper_tail: float) -> tuple[float, float]:
    """Return the least and the largest error along one direction that the estimate does not rule out.

    Args:
        errors: error of each model, ascending, shape (S,).
        below: share of estimates that are as small as the observed one, or smaller.
        above: share of those that are as large, or larger.
        upper_tail: the least share above that keeps a model.
    """
    not_too_small, not_too_large = np.flatnonzero(above >= upper_tail), np.flatnonzero(below >= TAIL)
    low = _crossing(errors, above, upper_tail, int(not_too_small[0]), -1) if not_too_small.size else 1.0
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
    return float(errors[inside] + (kept - wanted) / (kept - lost) * (errors[outside] - errors[inside]))
