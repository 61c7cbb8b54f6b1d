"""Have a site's chains mixed, and at the planned temperature: figures, and warnings.

Everything is computed from released samples, so it costs no privacy. Two limits to keep in mind:
agreement in the quantities looked at does not prove convergence; and chains of a network may
disagree in weight space while they predict alike, since permuting hidden units changes the weights
and not the function.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import PrivacyPlan, RunWarning, Scenario, warning
from fl_dpbayes.posterior.diagnostics import effective_sample_size, rank_normalised, split_r_hat
from fl_dpbayes.posterior.rules import predbayes
from fl_dpbayes.posterior.sample_store import PosteriorBank

# Below it too few draws fall into a half for R-hat or the autocorrelation time to mean much: R-hat
# of one perfectly mixed chain of 50 exceeds 1.1 in 1 % of quantities, of 20 in 8 %.
ENOUGH_SAMPLES_PER_CHAIN = 50
CHANCE_SHARE = 0.05
# The Monte Carlo error of a mean is then a fifth of the posterior's standard deviation.
FEW_EFFECTIVE_SAMPLES = 30
# The quantities that are looked at are drawn alike in every run, so that runs can be compared.
QUANTITIES_SEED = 0
PROJECTIONS, COORDINATES = 32, 32
HOT = 1.05  # times the planned temperature


@dataclass(frozen=True)
class ConvergenceSummary:
    """How well the chains of one site agree, over a fixed set of scalar quantities of the parameters.

    R-hat is rank-normalised and split, `r_hat_above_` the share of quantities above a value;
    effective sample sizes are of all chains together. They are None where no chain has four
    samples, or no quantity moves.
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
    samples: Iterable[npt.NDArray[np.floating]],
    chains: npt.NDArray[np.integer],
    generator: np.random.Generator,
) -> ConvergenceSummary:
    """Summarise how well one site's chains have mixed.

    Chains are cut to their last L samples, L the length of the shortest; a chain with fewer than
    half the samples of the longest (one that the budget cut off) is left out. `samples`: (d,) each,
    in the order in which each chain made them; M >= 0 are looked at one by one. `chains`: number of
    the chain to which each belongs, shape (M,).
    """
    quantities, rows = _quantities(samples, generator), _equal_chains(chains)
    chain_count, per_chain = rows.shape
    if per_chain < 4:
        return ConvergenceSummary(chain_count, per_chain, quantities=0)
    scores = list(map(rank_normalised, np.moveaxis(quantities[rows], 2, 0)))
    r_hat, effective = (
        np.array(list(map(figure, scores))) for figure in (split_r_hat, effective_sample_size)
    )
    moving = ~np.isnan(r_hat)
    if not moving.any():
        return ConvergenceSummary(chain_count, per_chain, len(scores))
    r_hat, effective = r_hat[moving], effective[moving]
    figures = [
        r_hat.max(),
        np.median(r_hat),
        (r_hat > 1.01).mean(),
        (r_hat > 1.1).mean(),
        effective.min(),
    ]
    return ConvergenceSummary(
        chain_count, per_chain, len(scores), *map(float, [*figures, np.median(effective)])
    )


def mixing_warning(summary: ConvergenceSummary, *, hot: bool = False) -> RunWarning | None:
    """Say what is wrong with the chains, if anything.

    Of a run that is `hot` larger steps are no advice.
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
    apart = {
        "chains": chains,
        "share": summary.r_hat_above_1_1,
        "largest": summary.r_hat_max,
        "hot": hot,
    }
    # R-hat is about 1 + (F - 1) / L, F(1, L) distributed by chance, so that one quantity in twenty
    # exceeds 1 + 3 / L.
    if summary.r_hat_median > 1.1 + 3 / per_chain:
        return warning("not-mixed", certain=True, **apart)
    if per_chain < ENOUGH_SAMPLES_PER_CHAIN:
        return few
    if summary.r_hat_above_1_1 > CHANCE_SHARE:
        return warning("not-mixed", certain=False, **apart)
    if summary.effective_samples_median < FEW_EFFECTIVE_SAMPLES:
        return warning(
            "few-independent",
            samples=chains * per_chain,
            effective=summary.effective_samples_median,
        )
    return None


def one_sample_warning(samples: int, rule: str = "") -> RunWarning | None:
    """Say what a posterior of a single sample is not, by `rule` where that makes one point by design."""
    said = warning("one-point", rule=rule) if rule else warning("one-sample")
    return said if samples == 1 else None


def convergence_rows(
    scenario: Scenario, bank: PosteriorBank, names: Iterable[str], *, hot: bool
) -> list[dict[str, Any]]:
    """Summarise the mixing of the chains of these names, sites or the averaged chain.

    `hot`: hotter than planned.

    Returns one row per name with the figures and a warning, None where nothing speaks against the
    chains. No row where the sampler is no Markov chain on the posterior, or the rule makes one
    point of its states.
    """
    # Sites that start anew in every round send no chain, and one point needs none.
    if (
        not scenario.sampler.has_temperature
        or not scenario.aggregation.shows_mixing
        or _is_optimiser(scenario)
    ):
        return []
    rows = []
    for name in names:
        if (samples := bank.stored(name)) is not None:
            generator = np.random.default_rng(QUANTITIES_SEED)
            states = (
                state
                for part in samples.parts()
                for state in zip(*part.arrays.values(), strict=True)
            )
            vectors = (np.concatenate([array.ravel() for array in state]) for state in states)
            found = summarise_convergence(vectors, bank.sample_chains(name), generator)
            rows.append({"site": name, **asdict(found), "warning": mixing_warning(found, hot=hot)})
    return rows


def convergence_warnings(rows: list[dict[str, Any]]) -> list[RunWarning]:
    """Say each distinct warning of `convergence_rows` once, with the sites it holds for.

    Where some of the chains with few samples have visibly not mixed, one warning is of all of these
    chains.
    """
    said = {row["site"]: row["warning"] for row in rows if row["warning"]}
    few = [
        row["site"]
        for row in rows
        if row["site"] in said and row["samples_per_chain"] < ENOUGH_SAMPLES_PER_CHAIN
    ]
    unknown, apart = (
        [site for site in few if said[site].kind == kind] for kind in ("few-samples", "not-mixed")
    )
    if unknown and apart:
        one = warning("few-samples", **dict(said[unknown[0]].values), apart=", ".join(apart))
        said |= dict.fromkeys((*unknown, *apart), one)
    sites: dict[RunWarning, list[str]] = {}
    for site, found in said.items():
        sites.setdefault(found, []).append(site)
    return [
        warning(found.kind, **dict(found.values), of=", ".join(names))
        for found, names in sites.items()
    ]


def _is_optimiser(scenario: Scenario) -> bool:
    """Say whether the sampler only descends.

    With noise for a temperature gradient descent is Langevin dynamics.
    """
    privacy = scenario.privacy
    tempered = (
        privacy.coupling != "constant"
        if isinstance(privacy, PrivacyPlan)
        else privacy.temperature is not None
    )
    return scenario.sampler.only_descends and not (tempered and scenario.sampler.has_temperature)


def optimiser_warnings(scenario: Scenario) -> list[RunWarning]:
    """Say once where the kept states are those of an optimiser, except under rules that make one point of them."""
    said = _is_optimiser(scenario) and not scenario.aggregation.makes_point
    return [warning("optimiser", sampler=scenario.sampler.kind)] if said else []


def mixture_warnings(
    scenario: Scenario, bank: PosteriorBank, names: Iterable[str]
) -> tuple[RunWarning, ...]:
    """Say once where the mixture joins Langevin samples of sites at different temperatures."""
    tempered = scenario.sampler.has_temperature and not _is_optimiser(scenario)
    if not scenario.aggregation.joins_temperatures or not tempered:
        return ()
    stored = {name: samples for name in names if (samples := bank.stored(name)) is not None}
    return predbayes.temperature_warnings(stored)


def temperature_warnings(scenario: Scenario, means: Mapping[str, float | None]) -> list[RunWarning]:
    """Say once where the floor of the noise made chains hotter than planned: of the hottest, with the number of sites.

    At temperature T a chain samples p(w | D)^(1/T), about sqrt(T) times as wide. `means`: by site,
    weighted by a_t.
    """
    privacy = scenario.privacy
    if (
        not isinstance(privacy, PrivacyPlan)
        or privacy.coupling != "floor"
        or privacy.temperature is None
    ):
        return []
    hot = {
        site: mean
        for site, mean in means.items()
        if mean is not None and mean > HOT * privacy.temperature
    }
    chain = {
        "planned": privacy.temperature,
        "mean": max(hot.values(), default=0.0),
        **scenario.sampler.levers,
    }
    return (
        [warning("hot", site=max(hot, key=hot.__getitem__), sites=len(hot), **chain)] if hot else []
    )


def _equal_chains(chains: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """Row numbers of the samples to compare, shape (chains, samples per chain)."""
    rows = [np.flatnonzero(chains == chain) for chain in np.unique(chains)]
    longest = max(map(len, rows), default=0)
    rows = [row for row in rows if 2 * len(row) >= longest]
    shortest = min(map(len, rows), default=0)
    return np.array([row[len(row) - shortest :] for row in rows], dtype=np.intp).reshape(
        len(rows), shortest
    )


def _quantities(
    samples: Iterable[npt.NDArray[np.floating]], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Some coordinates, and sums of all coordinates with random signs over consecutive blocks, shape (M, Q).

    The blocks are a sparse random projection (feature hashing): every parameter enters one, at a
    cost of M d.
    """
    rows: list[npt.NDArray[np.float64]] = []
    for sample in samples:
        if not rows:
            dimensions = len(sample)
            coordinates = generator.choice(dimensions, min(COORDINATES, dimensions), replace=False)
            signs = generator.choice(np.array([-1.0, 1.0], dtype=np.float32), dimensions)
            starts = np.linspace(
                0, dimensions, min(PROJECTIONS, dimensions), endpoint=False
            ).astype(np.intp)
        projections = np.add.reduceat(sample * signs, starts, dtype=np.float64)
        rows.append(np.concatenate([sample[coordinates].astype(np.float64), projections]))
    return np.array(rows, dtype=np.float64)
