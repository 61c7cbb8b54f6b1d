"""Have a run's chains mixed, and at the planned temperature? Asked of released samples only."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.posterior.convergence import ENOUGH_SAMPLES_PER_CHAIN, is_hot, mixing_warning, summarise_convergence
from fl_dpbayes.posterior.rules import predbayes
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.posterior.samples import StoredSamples

# The quantities that are looked at are drawn alike in every run, so that runs can be compared.
QUANTITIES_SEED = 0


def convergence_rows(
    scenario: Scenario, bank: PosteriorBank, names: Iterable[str], *, hot: bool
) -> list[dict[str, Any]]:
    """Summarise the mixing of the chains of these names, sites or the averaged chain; `hot`: hotter than planned.

    Returns:
        One row per name with the figures and a warning, None where nothing speaks against the chains. No row where the
        sampler is no Markov chain on the posterior, or the rule makes one point of its states.
    """
    # Sites that start anew from the server's state in every round send no chain, and one point needs none.
    unchained = not scenario.aggregation.shows_mixing or _is_optimiser(scenario)
    if not scenario.sampler.has_temperature or unchained:
        return []
    rows = []
    for name in names:
        samples = bank.stored(name)
        if samples is None:
            continue
        chains = bank.sample_chains(name)
        found = summarise_convergence(_vectors(samples), chains, np.random.default_rng(QUANTITIES_SEED))
        rows.append({"site": name, **asdict(found), "warning": mixing_warning(found, hot=hot)})
    return rows


def _vectors(samples: StoredSamples) -> Iterator[npt.NDArray[np.float32]]:
    for part in samples.parts():
        for number in range(len(part)):
            yield np.concatenate([array[number].ravel() for array in part.arrays.values()])


def convergence_warnings(rows: list[dict[str, Any]]) -> list[RunWarning]:
    """Say each distinct warning of `convergence_rows` once, with the sites it holds for.

    Where some of the chains with few samples have visibly not mixed, one warning is of all of these chains.
    """
    said = {row["site"]: row["warning"] for row in rows if row["warning"]}
    few = [row["site"] for row in rows if row["site"] in said and row["samples_per_chain"] < ENOUGH_SAMPLES_PER_CHAIN]
    unknown = [site for site in few if said[site].kind == "few-samples"]
    apart = [site for site in few if said[site].kind == "not-mixed"]
    if unknown and apart:
        one = warning("few-samples", **dict(said[unknown[0]].values), apart=", ".join(apart))
        said |= dict.fromkeys((*unknown, *apart), one)
    sites: dict[RunWarning, list[str]] = {}
    for site, found in said.items():
        sites.setdefault(found, []).append(site)
    return [warning(found.kind, **dict(found.values), of=", ".join(names)) for found, names in sites.items()]


def _is_optimiser(scenario: Scenario) -> bool:
    """Say whether the sampler only descends; with noise for a temperature gradient descent is Langevin dynamics."""
    privacy = scenario.privacy
    tempered = privacy.coupling != "constant" if isinstance(privacy, PrivacyPlan) else privacy.temperature is not None
    return scenario.sampler.only_descends and not (tempered and scenario.sampler.has_temperature)


def optimiser_warnings(scenario: Scenario) -> list[RunWarning]:
    """Say once where the kept states are those of an optimiser, except under rules that make one point of them."""
    if not _is_optimiser(scenario) or scenario.aggregation.makes_point:
        return []
    return [warning("optimiser", sampler=scenario.sampler.kind)]


def mixture_warnings(scenario: Scenario, bank: PosteriorBank, names: Iterable[str]) -> tuple[RunWarning, ...]:
    """Say once where the mixture joins Langevin samples of sites at different temperatures."""
    tempered = scenario.sampler.has_temperature and not _is_optimiser(scenario)
    if not scenario.aggregation.joins_temperatures or not tempered:
        return ()
    stored = {name: samples for name in names if (samples := bank.stored(name)) is not None}
    return predbayes.temperature_warnings(stored)


def temperature_warnings(scenario: Scenario, means: Mapping[str, float | None]) -> list[RunWarning]:
    """Say once where the floor of the noise made chains hotter than planned: of the hottest, with the number of sites.

    `means`: site -> mean temperature of its chain, weighted by step size.
    """
    privacy = scenario.privacy
    if not isinstance(privacy, PrivacyPlan) or privacy.coupling != "floor" or privacy.temperature is None:
        return []
    hot = {site: mean for site, mean in means.items() if mean is not None and is_hot(privacy.temperature, mean)}
    if not hot:
        return []
    site = max(hot, key=lambda site: hot[site])
    chain = {"planned": privacy.temperature, "mean": hot[site], **scenario.sampler.levers}
    return [warning("hot", site=site, sites=len(hot), **chain)]
