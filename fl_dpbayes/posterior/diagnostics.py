"""Has a chain converged: split R-hat and effective sample size of a scalar quantity.

Source: Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021, "Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis 16(2).
"""

import numpy as np
import numpy.typing as npt
from scipy import fft
from scipy.special import ndtri

Draws = npt.NDArray[np.float64]


def rank_normalised(draws: Draws) -> Draws:
    """Replace draws by normal scores of their pooled ranks.

        z = Phi^-1((rank - 3/8) / (S + 1/4)),    S the number of all draws (eq. 14)

    Heavy tails then do not hide a difference.

    Args:
        draws: Shape (chains, draws).

    Returns:
        z, shape (chains, draws).
    """
    _, places, ties = np.unique(draws, return_inverse=True, return_counts=True)
    # Equal draws share the mean of their ranks.
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[places].reshape(draws.shape)
    return ndtri((ranks - 0.375) / (draws.size + 0.25))


def split_r_hat(draws: Draws) -> float:
    """Return the potential scale reduction of chains that are each cut in halves.

        R = sqrt(((N - 1) / N W + B / N) / W)

    B and W are the between- and within-chain variances (eqs. 1-4).

    Args:
        draws: `rank_normalised`, shape (chains, 4 or more draws).

    Returns:
        R, near 1 where the halves agree; the paper asks for less than 1.01. NaN if all draws are
        equal.
    """
    halves = _split(draws)
    count = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean()
    between = count * halves.mean(axis=1).var(ddof=1)
    if within == 0:
        return float("nan") if between == 0 else float("inf")
    return float(np.sqrt(((count - 1) / count * within + between / count) / within))


def effective_sample_size(draws: Draws) -> float:
    """Return how many independent draws would estimate the mean as well.

        S / (1 + 2 sum_t rho_t)

    S is the number of draws, rho_t the autocorrelation over all split chains (eqs. 10-13), the sum
    cut by Geyer's initial monotone sequence.

    Args:
        draws: Shape (chains, 4 or more draws).

    Returns:
        At most S log10(S); NaN if all draws are equal.
    """
    halves = _split(draws)
    chains, count = halves.shape
    covariance = _autocovariance(halves).mean(axis=0)
    within = covariance[0] * count / (count - 1)
    total = within * (count - 1) / count + halves.mean(axis=1).var(ddof=1)
    if total == 0:
        return float("nan")
    correlation = 1 - (within - covariance * count / (count - 1)) / total
    correlation[0] = 1.0
    pairs = correlation[: count // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0)
    positive = pairs[: negative[0]] if len(negative) else pairs
    integrated_time = 2 * np.minimum.accumulate(positive).sum() - 1
    size = chains * count
    return float(size / max(integrated_time, 1 / np.log10(size)))


def _split(draws: Draws) -> Draws:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]]).astype(np.float64)


def _autocovariance(chains: Draws) -> Draws:
    count = chains.shape[1]
    # So long that lags do not wrap round.
    length = fft.next_fast_len(2 * count)
    centred = chains - chains.mean(axis=1, keepdims=True)
    spectrum = fft.rfft(centred, length, axis=1)
    return fft.irfft(np.abs(spectrum) ** 2, length, axis=1)[:, :count] / count
