"""Have a site's chains mixed, and at the planned temperature: figures, and warnings.

Everything is computed from released samples, so it costs no privacy. Two limits to keep in mind: agreement in the
quantities looked at does not prove convergence; and chains of a network may disagree in weight space while they predict
alike, since permuting hidden units changes the weights and not the function.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.diagnostics import effective_sample_size, rank_normalised, split_r_hat

# Below it too few draws fall into a half for R-hat or the autocorrelation time to mean much: R-hat of one perfectly
# mixed chain of 50 exceeds 1.1 in 1 % of quantities, of 20 in 8 %.
ENOUGH_SAMPLES_PER_CHAIN = 50
CHANCE_SHARE = 0.05
# The Monte Carlo error of a mean is then a fifth of the posterior's standard deviation.
FEW_EFFECTIVE_SAMPLES = 30
PROJECTIONS = 32
COORDINATES = 32


@dataclass(frozen=True)
class ConvergenceSummary:
    """How well the chains of one site agree, over a fixed set of scalar quantities of the parameters.

    The figures are None where no chain has four samples, or no quantity moves.

    Attributes:
        chains: number of chains compared.
        samples_per_chain: how many samples of each were used.
        quantities: number of scalar quantities that were looked at.
        r_hat_max: largest rank-normalised split R-hat.
        r_hat_median: its median.
        r_hat_above_1_01: share of the quantities with R-hat above 1.01, in [0, 1].
        r_hat_above_1_1: share of the quantities with R-hat above 1.1, in [0, 1].
        effective_samples_min: smallest effective sample size, all chains together.
        effective_samples_median: its median.
    """

    chains: int
    samples_per_chain: int
    quantities: int
    r_hat_max: float | None = None
    r_hat_median: float | None = None
    r_hat_above_1_01: float | None = None
    r_hat_above_1_1: float | None = None
    effective_samples_min: float | None = None
    effective_samples_median: float | None = None


def summarise_convergence(
    samples: Iterable[npt.NDArray[np.floating]], chains: npt.NDArray[np.integer], generator: np.random.Generator
) -> ConvergenceSummary:
    """Summarise how well one site's chains have mixed.

    Chains are cut to their last L samples, L the length of the shortest; a chain with fewer than half the samples of
    the longest (one that the budget cut off) is left out.

    Args:
        samples: released samples in the order in which each chain made them, each of shape (d,), finite; M >= 0 of
            them, such as a matrix (M, d), are looked at one by one.
        chains: number of the chain to which each belongs, shape (M,).
        generator: draws which coordinates and which random projections are looked at; seed it alike to compare runs.

    Returns:
        The summary.

    Raises:
        ValueError: if lengths differ.
    """
    quantities = _quantities(samples, generator)
    if chains.shape != quantities.shape[:1]:
        raise ValueError(f"{len(quantities)} samples and chain numbers {chains.shape}: give one chain number each")
    rows = _equal_chains(chains)
    chain_count, per_chain = rows.shape
    if per_chain < 4:
        return ConvergenceSummary(chain_count, per_chain, quantities=0)
    draws = quantities[rows]
    scores = [rank_normalised(draws[:, :, number]) for number in range(draws.shape[2])]
    r_hat = np.array([split_r_hat(score) for score in scores])
    moving = ~np.isnan(r_hat)
    if not moving.any():
        return ConvergenceSummary(chain_count, per_chain, quantities=len(scores))
    effective = np.array([effective_sample_size(score) for score in scores])[moving]
    r_hat = r_hat[moving]
    return ConvergenceSummary(
        chain_count,
        per_chain,
        quantities=len(scores),
        r_hat_max=float(r_hat.max()),
        r_hat_median=float(np.median(r_hat)),
        r_hat_above_1_01=float((r_hat > 1.01).mean()),
        r_hat_above_1_1=float((r_hat > 1.1).mean()),
        effective_samples_min=float(effective.min()),
        effective_samples_median=float(np.median(effective)),
    )


def mixing_warning(summary: ConvergenceSummary, *, hot: bool = False) -> RunWarning | None:
    """Say what is wrong with the chains; None where nothing speaks against them.

    Args:
        summary: from `summarise_convergence`.
        hot: the run was hotter than planned, so that larger steps are no advice.
    """
    per_chain, chains = summary.samples_per_chain, summary.chains
    few = warning("few-samples", samples=per_chain, least=ENOUGH_SAMPLES_PER_CHAIN, chains=chains)
    if per_chain < 4:
        return few
    if summary.r_hat_max is None:
        return warning("not-moved")
    assert summary.r_hat_median is not None
    assert summary.r_hat_above_1_1 is not None
    assert summary.effective_samples_median is not None
    apart = {"chains": chains, "share": summary.r_hat_above_1_1, "largest": summary.r_hat_max, "hot": hot}
    # R-hat is about 1 + (F - 1) / L, F(1, L) distributed by chance, so that one quantity in twenty exceeds 1 + 3 / L.
    if summary.r_hat_median > 1.1 + 3 / per_chain:
        return warning("not-mixed", certain=True, **apart)
    if per_chain < ENOUGH_SAMPLES_PER_CHAIN:
        return few
    if summary.r_hat_above_1_1 > CHANCE_SHARE:
        return warning("not-mixed", certain=False, **apart)
    if summary.effective_samples_median < FEW_EFFECTIVE_SAMPLES:
        return warning("few-independent", samples=chains * per_chain, effective=summary.effective_samples_median)
    return None


def one_sample_warning(samples: int, rule: str = "") -> RunWarning | None:
    """Say what a posterior of a single sample is not, by `rule` where that makes one point by design."""
    if samples != 1:
        return None
    return warning("one-point", rule=rule) if rule else warning("one-sample")


def is_hot(planned: float, mean: float) -> bool:
    """Say whether privacy's noise made a chain more than 5 % hotter than planned.

    At temperature T the chain samples p(w | D)^(1/T), whose standard deviations are about sqrt(T) times as wide.

    Args:
        planned: tau of the couplings `langevin` and `floor`.
        mean: T_t of a site's chain, its mean weighted by step size.
    """
    return mean > 1.05 * planned


def _equal_chains(chains: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """Row numbers of the samples to compare, shape (chains, samples per chain)."""
    rows = [np.flatnonzero(chains == chain) for chain in np.unique(chains)]
    longest = max(map(len, rows), default=0)
    rows = [row for row in rows if 2 * len(row) >= longest]
    shortest = min(map(len, rows), default=0)
    return np.array([row[len(row) - shortest :] for row in rows], dtype=np.intp).reshape(len(rows), shortest)


def _quantities(samples: Iterable[npt.NDArray[np.floating]], generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Some coordinates, and sums of all coordinates with random signs over consecutive blocks, shape (M, Q).

    The blocks are a sparse random projection (feature hashing): every parameter enters one, at a cost of M d.
    """
    rows: list[npt.NDArray[np.float64]] = []
    for sample in samples:
        if not rows:
            dimensions = len(sample)
            coordinates = generator.choice(dimensions, min(COORDINATES, dimensions), replace=False)
            signs = generator.choice(np.array([-1.0, 1.0], dtype=np.float32), dimensions)
            starts = np.linspace(0, dimensions, min(PROJECTIONS, dimensions), endpoint=False).astype(np.intp)
        projections = np.add.reduceat(sample * signs, starts, dtype=np.float64)
        rows.append(np.concatenate([sample[coordinates].astype(np.float64), projections]))
    return np.array(rows, dtype=np.float64)
