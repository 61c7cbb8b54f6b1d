"""Have the chains mixed, and at the planned temperature? Asked of released samples only."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.config.sampler import SGD, SGHMC, Adam, has_temperature
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.posterior.convergence import (
    CANNOT_SHOW,
    ENOUGH_SAMPLES_PER_CHAIN,
    NOT_MIXED,
    summarise_convergence,
    temperature_warning,
    warning,
)
from fl_dpbayes.posterior.rules import predbayes
from fl_dpbayes.posterior.samples import StoredSamples
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy

# The quantities that are looked at are drawn alike in every run, so that runs can be compared.
QUANTITIES_SEED = 0


def convergence_rows(strategy: PosteriorStrategy, *, hot: bool) -> list[dict[str, Any]]:
    """Summarise the mixing of every chain that the server holds samples of.

    Args:
        strategy: the run's strategy, after its last round.
        hot: chains were hotter than planned.

    Returns:
        One row per site (under averaging rules one for the averaged chain) with the figures and a sentence, empty where
        nothing speaks against the chains. No row where the sampler is no Markov chain on the posterior, or the rule
        makes one point of its states.
    """
    scenario = strategy.federation.scenario
    # Sites that start anew from the server's state in every round send no chain, and one point needs none.
    unchained = not scenario.aggregation.shows_mixing or _is_optimiser(scenario)
    if not has_temperature(scenario.sampler) or unchained:
        return []
    rows = []
    for name in strategy.chain_names():
        samples = strategy.bank.stored(name)
        if samples is None:
            continue
        chains = strategy.bank.sample_chains(name)
        found = summarise_convergence(_vectors(samples), chains, np.random.default_rng(QUANTITIES_SEED))
        rows.append({"site": name, **asdict(found), "warning": warning(found, hot=hot)})
    return rows


def _vectors(samples: StoredSamples) -> Iterator[npt.NDArray[np.float32]]:
    for part in samples.parts():
        for number in range(len(part)):
            yield np.concatenate([array[number].ravel() for array in part.arrays.values()])


def convergence_warnings(rows: list[dict[str, Any]]) -> list[str]:
    """Say each distinct sentence of `convergence_rows` once, with the sites it holds for.

    Where some of the chains with few samples have visibly not mixed, one sentence is said of all of these chains.
    """
    said = [row for row in rows if row["warning"]]
    few = [row for row in said if row["samples_per_chain"] < ENOUGH_SAMPLES_PER_CHAIN]
    unknown = [row for row in few if CANNOT_SHOW in row["warning"]]
    apart = [row for row in few if NOT_MIXED in row["warning"]]
    sentences = {row["site"]: row["warning"] for row in said}
    if unknown and apart:
        worst = ", ".join(row["site"] for row in apart)
        one = f"{unknown[0]['warning']} At {worst} they already show that it has not."
        sentences |= {row["site"]: one for row in (*unknown, *apart)}
    sites: dict[str, list[str]] = {}
    for site, sentence in sentences.items():
        sites.setdefault(sentence, []).append(site)
    return [f"{', '.join(names)}: {sentence}" for sentence, names in sites.items()]


def _is_optimiser(scenario: Scenario) -> bool:
    """Say whether the sampler only descends; with noise for a temperature gradient descent is Langevin dynamics."""
    privacy = scenario.privacy
    tempered = privacy.coupling != "constant" if isinstance(privacy, PrivacyPlan) else privacy.temperature is not None
    return isinstance(scenario.sampler, Adam) or (isinstance(scenario.sampler, SGD) and not tempered)


def optimiser_warnings(scenario: Scenario) -> list[str]:
    """Say once where the kept states are those of an optimiser, except under rules that make one point of them."""
    if not _is_optimiser(scenario) or scenario.aggregation.makes_point:
        return []
    return [
        f"The samples are states of the optimiser {scenario.sampler.kind}, not posterior samples: their average may "
        "predict well, but how far they spread is not the posterior's uncertainty."
    ]


def _levers(scenario: Scenario) -> str:
    """Say what cools a chain; temperature goes as step size over friction."""
    match scenario.sampler:
        case SGHMC(friction=friction) if friction < 1:
            return f"Smaller steps, more friction than {friction:g}"
        case SGD(momentum=momentum) if momentum > 0:
            return f"Smaller steps, less momentum than {momentum:g}"
        case _:
            return "Smaller steps"


def mixture_warnings(strategy: PosteriorStrategy) -> tuple[str, ...]:
    """Say once where the mixture joins Langevin samples of sites at different temperatures; nothing is read but these.

    Args:
        strategy: the run's strategy.

    Returns:
        At most one sentence.
    """
    scenario = strategy.federation.scenario
    tempered = has_temperature(scenario.sampler) and not _is_optimiser(scenario)
    if not scenario.aggregation.joins_temperatures or not tempered:
        return ()
    stored = {name: samples for name in strategy.chain_names() if (samples := strategy.bank.stored(name)) is not None}
    return predbayes.temperature_warnings(stored)


def temperature_warnings(strategy: PosteriorStrategy, record: RunRecord) -> list[str]:
    """Say once where the floor of the noise made chains hotter than the plan's temperature.

    Args:
        strategy: the run's strategy.
        record: what happened; it has each site's mean temperature, weighted by step size.

    Returns:
        At most one sentence, of the hottest site, with the number of such sites.
    """
    privacy = strategy.plan.privacy
    if not isinstance(privacy, PrivacyPlan) or privacy.coupling != "floor" or privacy.temperature is None:
        return []
    means = {
        member.card.name: record.temperature(member.card.name)[0] for member in strategy.federation.roster.training
    }
    levers = _levers(strategy.federation.scenario)
    texts = {
        site: text
        for site, mean in means.items()
        if mean is not None and (text := temperature_warning(privacy.temperature, mean, levers))
    }
    if not texts:
        return []
    hottest = max(texts, key=lambda site: means[site] or 0.0)
    others = f", the hottest of {len(texts)} such sites" if len(texts) > 1 else ""
    return [f"{hottest}{others}: {texts[hottest]}"]
