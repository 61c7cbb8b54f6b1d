"""Have a site's chains mixed, and at the planned temperature: figures, and warnings.

Everything is computed from released samples, so it costs no privacy. Two limits to keep in mind:
agreement in the quantities looked at does not prove convergence; and chains of a network may
disagree in weight space while they predict alike, since permuting hidden units changes the weights
and not the function.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import PrivacyPlan, RunWarning, Scenario, warning
from fl_dpbayes.posterior.diagnostics import effective_sample_size, rank_normalised, split_r_hat
from fl_dpbayes.posterior.rules import predbayes
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.posterior.samples import StoredSamples

# Below it too few draws fall into a half for R-hat or the autocorrelation time to mean much: R-hat
# of one perfectly mixed chain of 50 exceeds 1.1 in 1 % of quantities, of 20 in 8 %.
ENOUGH_SAMPLES_PER_CHAIN = 50
FEWEST_SAMPLES = 4
CHANCE_SHARE = 0.05
# The Monte Carlo error of a mean is then a fifth of the posterior's standard deviation.
FEW_EFFECTIVE_SAMPLES = 30
# The quantities that are looked at are drawn alike in every run, so that runs can be compared.
QUANTITIES_SEED = 0
PROJECTIONS = 32
COORDINATES = 32
HOT = 1.05  # times the planned temperature
# Constant noise averages states as DP-SGD does, mixed or not: a note says that of every such run.
OF_MIXING = {"few-samples", "not-mixed", "few-independent"}


@dataclass(frozen=True)
class ConvergenceSummary:
    """How well the chains of one site agree, over a fixed set of scalar quantities.

    R-hat is rank-normalised and split; effective sample sizes are of all chains together. They are
    None where no chain has four samples, or no quantity moves.

    Attributes:
        chains: Chains that were compared.
        samples_per_chain: Samples of each.
        quantities: Functions of the parameters that were looked at.
        r_hat_max: Largest R-hat.
        r_hat_median: Median R-hat.
        r_hat_above_1_01: Share of quantities with R-hat above 1.01.
        r_hat_above_1_1: Share of quantities with R-hat above 1.1.
        effective_samples_min: Least effective sample size.
        effective_samples_median: Median effective sample size.
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


@dataclass(frozen=True)
class ConvergenceRow:
    """What is said of a site's chains, or of the averaged chain.

    Attributes:
        site: Name of the site or chain.
        summary: The figures.
        warning: None where nothing speaks against the chains.
    """

    site: str
    summary: ConvergenceSummary
    warning: RunWarning | None


def summarise_convergence(
    samples: Iterable[npt.NDArray[np.floating]],
    chains: npt.NDArray[np.integer],
    generator: np.random.Generator,
) -> ConvergenceSummary:
    """Summarise how well one site's chains have mixed.

    Chains are cut to their last L samples, L the length of the shortest; a chain with fewer than
    half the samples of the longest (one that the budget cut off) is left out.

    Args:
        samples: Shape (d,) each, in the order in which each chain made them; M >= 0 are looked at
            one by one.
        chains: Number of the chain to which each belongs, shape (M,).
        generator: Draws the quantities that are looked at.

    Returns:
        The figures.
    """
    quantities = _quantities(samples, generator)
    rows = _equal_chains(chains)
    chain_count, per_chain = rows.shape
    if per_chain < FEWEST_SAMPLES:
        return ConvergenceSummary(chains=chain_count, samples_per_chain=per_chain, quantities=0)
    scores = [rank_normalised(draws) for draws in np.moveaxis(quantities[rows], 2, 0)]
    r_hat = np.array([split_r_hat(draws) for draws in scores])
    effective_samples = np.array([effective_sample_size(draws) for draws in scores])
    moving = ~np.isnan(r_hat)
    if not moving.any():
        return ConvergenceSummary(
            chains=chain_count, samples_per_chain=per_chain, quantities=len(scores)
        )
    r_hat = r_hat[moving]
    effective_samples = effective_samples[moving]
    return ConvergenceSummary(
        chains=chain_count,
        samples_per_chain=per_chain,
        quantities=len(scores),
        r_hat_max=float(r_hat.max()),
        r_hat_median=float(np.median(r_hat)),
        r_hat_above_1_01=float((r_hat > 1.01).mean()),
        r_hat_above_1_1=float((r_hat > 1.1).mean()),
        effective_samples_min=float(effective_samples.min()),
        effective_samples_median=float(np.median(effective_samples)),
    )


def mixing_warning(summary: ConvergenceSummary, *, hot: bool = False) -> RunWarning | None:
    """Say what is wrong with the chains, if anything.

    Args:
        summary: The figures of one site.
        hot: Whether the run is hotter than planned; larger steps are then no advice.

    Returns:
        A warning, or None.
    """
    per_chain = summary.samples_per_chain
    few_samples = warning(
        "few-samples", samples=per_chain, least=ENOUGH_SAMPLES_PER_CHAIN, chains=summary.chains
    )
    if per_chain < FEWEST_SAMPLES:
        return few_samples
    if summary.r_hat_max is None:
        return warning("not-moved")
    assert summary.r_hat_median is not None
    assert summary.r_hat_above_1_1 is not None
    assert summary.effective_samples_median is not None
    disagreement = {
        "chains": summary.chains,
        "share": summary.r_hat_above_1_1,
        "largest": summary.r_hat_max,
        "hot": hot,
    }
    # R-hat is about 1 + (F - 1) / L, F(1, L) distributed by chance, so that one quantity in twenty
    # exceeds 1 + 3 / L.
    if summary.r_hat_median > 1.1 + 3 / per_chain:
        return warning("not-mixed", certain=True, **disagreement)
    if per_chain < ENOUGH_SAMPLES_PER_CHAIN:
        return few_samples
    if summary.r_hat_above_1_1 > CHANCE_SHARE:
        return warning("not-mixed", certain=False, **disagreement)
    if summary.effective_samples_median < FEW_EFFECTIVE_SAMPLES:
        return warning(
            "few-independent",
            samples=summary.chains * per_chain,
            effective=summary.effective_samples_median,
        )
    return None


def one_sample_warning(samples: int, rule: str = "") -> RunWarning | None:
    """Say what a posterior of a single sample is not.

    Args:
        samples: How many it has.
        rule: Its rule, where that makes one point by design.

    Returns:
        A warning, or None of more samples.
    """
    if samples != 1:
        return None
    return warning("one-point", rule=rule) if rule else warning("one-sample")


def convergence_rows(
    scenario: Scenario, bank: PosteriorBank, names: Iterable[str], *, hot: bool
) -> list[ConvergenceRow]:
    """Summarise the mixing of chains.

    Args:
        scenario: Of the run.
        bank: With the released samples.
        names: Of the sites, or of the averaged chain.
        hot: Whether the chains are hotter than planned.

    Returns:
        One row per name with samples. None where the sampler is no Markov chain on the posterior,
        or the rule makes one point of its states.
    """
    # Sites that start anew in every round send no chain, and one point needs none.
    if not scenario.sampler.has_temperature or not scenario.aggregation.shows_mixing:
        return []
    if _is_optimiser(scenario):
        return []
    rows = []
    for name in names:
        samples = bank.stored(name)
        if samples is None:
            continue
        summary = summarise_convergence(
            samples=_vectors(samples),
            chains=bank.sample_chains(name),
            generator=np.random.default_rng(QUANTITIES_SEED),
        )
        row_warning = mixing_warning(summary, hot=hot)
        if row_warning is not None and row_warning.kind in OF_MIXING and _averages(scenario):
            row_warning = None
        rows.append(ConvergenceRow(name, summary, row_warning))
    return rows


def convergence_warnings(rows: Iterable[ConvergenceRow]) -> list[RunWarning]:
    """Say each distinct warning of `convergence_rows` once, with the sites it holds for.

    Where some of the chains with few samples have visibly not mixed, one warning is of all of these
    chains.
    """
    with_warning = [row for row in rows if row.warning is not None]
    warnings = {row.site: row.warning for row in with_warning if row.warning is not None}
    short = [
        row.site for row in with_warning if row.summary.samples_per_chain < ENOUGH_SAMPLES_PER_CHAIN
    ]
    unknown = [site for site in short if warnings[site].kind == "few-samples"]
    not_mixed = [site for site in short if warnings[site].kind == "not-mixed"]
    if unknown and not_mixed:
        common = warning(
            "few-samples", **dict(warnings[unknown[0]].values), apart=", ".join(not_mixed)
        )
        warnings |= dict.fromkeys((*unknown, *not_mixed), common)
    sites: dict[RunWarning, list[str]] = {}
    for site, of_site in warnings.items():
        sites.setdefault(of_site, []).append(site)
    return [
        warning(of_sites.kind, **dict(of_sites.values), of=", ".join(names))
        for of_sites, names in sites.items()
    ]


def optimiser_warnings(scenario: Scenario) -> list[RunWarning]:
    """Say once where the kept states are those of an optimiser.

    Rules that make one point of them need no such warning.
    """
    if not _is_optimiser(scenario) or scenario.aggregation.makes_point:
        return []
    return [warning("optimiser", sampler=scenario.sampler.kind)]


def mixture_warnings(
    scenario: Scenario, bank: PosteriorBank, names: Iterable[str]
) -> tuple[RunWarning, ...]:
    """Say once where the mixture joins Langevin samples of sites at different temperatures."""
    tempered = scenario.sampler.has_temperature and not _is_optimiser(scenario)
    if not scenario.aggregation.joins_temperatures or not tempered:
        return ()
    samples_of_site = {}
    for name in names:
        samples = bank.stored(name)
        if samples is not None:
            samples_of_site[name] = samples
    return predbayes.temperature_warnings(samples_of_site)


def temperature_warnings(scenario: Scenario, means: Mapping[str, float | None]) -> list[RunWarning]:
    """Say once where the floor of the noise made chains hotter than planned.

    At temperature T a chain samples p(w | D)^(1/T), about sqrt(T) times as wide.

    Args:
        scenario: Of the run.
        means: Site -> its mean temperature, weighted by a_t; None where it has none.

    Returns:
        At most one warning, of the hottest, with the number of sites.
    """
    privacy = scenario.privacy
    if not isinstance(privacy, PrivacyPlan) or privacy.coupling != "floor":
        return []
    planned = privacy.temperature
    if planned is None:
        return []
    hot = {site: mean for site, mean in means.items() if mean is not None and mean > HOT * planned}
    if not hot:
        return []
    hottest = max(hot, key=lambda site: hot[site])
    return [
        warning(
            "hot",
            site=hottest,
            sites=len(hot),
            planned=planned,
            mean=hot[hottest],
            **scenario.sampler.levers,
        )
    ]


def _is_optimiser(scenario: Scenario) -> bool:
    """Say whether the sampler only descends.

    With noise for a temperature gradient descent is Langevin dynamics.
    """
    privacy = scenario.privacy
    tempered = privacy.temperature is not None
    if isinstance(privacy, PrivacyPlan):
        tempered = privacy.coupling != "constant"
    return scenario.sampler.only_descends and not (tempered and scenario.sampler.has_temperature)


def _averages(scenario: Scenario) -> bool:
    """Say whether the noise is planned without a temperature, so that states are only averaged."""
    privacy = scenario.privacy
    return isinstance(privacy, PrivacyPlan) and privacy.coupling == "constant"


def _vectors(samples: StoredSamples) -> Iterator[npt.NDArray[np.floating]]:
    """Read samples one by one as vectors, (d,)."""
    for part in samples.parts():
        for arrays in zip(*part.arrays.values(), strict=True):
            yield np.concatenate([array.ravel() for array in arrays])


def _equal_chains(chains: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """Return row numbers of the samples to compare, shape (chains, samples per chain)."""
    rows = [np.flatnonzero(chains == chain) for chain in np.unique(chains)]
    longest = max(map(len, rows), default=0)
    long_enough = [row for row in rows if 2 * len(row) >= longest]
    shortest = min(map(len, long_enough), default=0)
    last_rows = [row[len(row) - shortest :] for row in long_enough]
    return np.array(last_rows, dtype=np.intp).reshape(len(long_enough), shortest)


def _quantities(
    samples: Iterable[npt.NDArray[np.floating]], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return some coordinates, and signed sums of all over consecutive blocks, shape (M, Q).

    The blocks are a sparse random projection (feature hashing): every parameter enters one, at a
    cost of M d.
    """
    rows: list[npt.NDArray[np.float64]] = []
    for sample in samples:
        if not rows:
            dimensions = len(sample)
            coordinates = generator.choice(dimensions, min(COORDINATES, dimensions), replace=False)
            signs = generator.choice(np.array([-1.0, 1.0], dtype=np.float32), dimensions)
            blocks = min(PROJECTIONS, dimensions)
            starts = np.linspace(0, dimensions, blocks, endpoint=False).astype(np.intp)
        projections = np.add.reduceat(sample * signs, starts, dtype=np.float64)
        rows.append(np.concatenate([sample[coordinates].astype(np.float64), projections]))
    return np.array(rows, dtype=np.float64)
