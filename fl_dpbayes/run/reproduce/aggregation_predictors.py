"""The predictors of `aggregation`: every rule on its chains, all records in one place, and each hospital by itself."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.aggregation import (
    Aggregation,
    Consensus,
    FedAvg,
    FedBE,
    Mixture,
    Product,
)
from fl_dpbayes.models.build import build_model
from fl_dpbayes.posterior.rules import predbayes
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.site_weights import weigh_sites
from fl_dpbayes.privacy.events import History
from fl_dpbayes.report.warnings import sentence
from fl_dpbayes.run.reproduce.aggregation_chains import (
    STEPS,
    Budget,
    Chains,
    ChainSettings,
    averaged_chain,
    central_chain,
    fedpa_point,
    independent_chains,
    plan_of,
)
from fl_dpbayes.run.reproduce.aggregation_sites import Hospitals
from fl_dpbayes.run.reproduce.classification import probabilities_of

Floats = npt.NDArray[np.float64]
DRAWS = 50
FEDPA_ROUNDS = 10
CENTRAL, ALONE, PRODUCTS = "all records in one place", "each hospital alone", "consensus-full, product-full"
FALD, FALD_FEW, FEDPA = f"fald, {STEPS} rounds", "fald, 6 rounds", f"fedpa, {FEDPA_ROUNDS} rounds"
HALFWAY, PREDICTIONS = "predbayes, beta 0.5", "predbayes, beta 1"
RULES: Mapping[str, Aggregation] = {
    "mixture": Mixture(),
    "fedavg": FedAvg(rule="fedavg", move_bound="none"),
    "fedbe": FedBE(rule="fedbe"),
    "consensus-uniform": Consensus(rule="consensus-uniform", draws=DRAWS),
    "consensus-diagonal": Consensus(rule="consensus-diagonal", draws=DRAWS),
    "product-diagonal": Product(rule="product-diagonal", draws=DRAWS),
    "product-diagonal, divided": Product(rule="product-diagonal", prior="divided", draws=DRAWS),
}
PVI = "pvi, 10 rounds"
DISTILLED_STROKES, DISTILLED_NOISE = "distillation, strokes", "distillation, noise"
SHARING = (CENTRAL, FALD, FALD_FEW, FEDPA, *RULES, HALFWAY, PREDICTIONS, ALONE)
METHODS = (CENTRAL, FALD, FALD_FEW, FEDPA, PVI, *RULES, HALFWAY, PREDICTIONS, DISTILLED_STROKES, DISTILLED_NOISE, ALONE)


@dataclass(frozen=True)
class Predictor:
    """What one method predicts for every test record.

    Attributes:
        method: its name.
        probabilities: shape (P, N, classes): one predictor, or one per hospital where each is by itself.
        history: of the site that paid most.
        warnings: what the rule says of its assumptions.
    """

    method: str
    probabilities: Floats
    history: History
    warnings: tuple[str, ...] = ()


def predictors(
    hospitals: Hospitals, chosen: Mapping[str, ChainSettings], budget: Budget, seed: int
) -> Iterator[Predictor]:
    """Run the chains that the methods need, each once, and give every method's predictions.

    Args:
        hospitals: the sites.
        chosen: method -> settings of its chains; methods with the same settings share their chains.
        budget: of each site.
        seed: of noise and draws.

    Yields:
        Predictors in the order of `SHARING`, those that are in `chosen`.
    """

    @functools.cache
    def chains(settings: ChainSettings, share: float) -> Chains:
        return independent_chains(hospitals, settings, budget, share, seed)

    @functools.cache
    def of_sites(settings: ChainSettings) -> Floats:
        samples = chains(settings, 1.0).samples
        return np.stack([predicted(hospitals, samples[site]) for site in hospitals.training])

    single: dict[str, Callable[[ChainSettings], Chains]] = {
        CENTRAL: lambda settings: central_chain(hospitals, settings, budget, seed),
        FALD: lambda settings: averaged_chain(hospitals, settings, budget, STEPS, seed),
        FALD_FEW: lambda settings: averaged_chain(hospitals, settings, budget, 6, seed),
        FEDPA: lambda settings: fedpa_point(hospitals, settings, budget, FEDPA_ROUNDS, seed),
    }
    for method in SHARING:
        if method not in chosen:
            continue
        settings = chosen[method]
        if method in single:
            found = single[method](settings)
            (samples,) = found.samples.values()
            yield Predictor(method, predicted(hospitals, samples)[np.newaxis], found.history)
        elif method in (HALFWAY, PREDICTIONS, ALONE):
            of_site, history = of_sites(settings), chains(settings, 1.0).history
            warnings: tuple[str, ...] = ()
            if method != ALONE:
                ends = predbayes.product_and_mixture(of_site)
                of_site = predbayes.between(ends, 0.5 if method == HALFWAY else 1.0)[np.newaxis]
                warnings = tuple(map(sentence, predbayes.temperature_warnings(chains(settings, 1.0).samples)))
            yield Predictor(method, of_site, history, warnings)
        else:
            yield _by_rule(method, hospitals, settings, budget, chains, seed)


def _by_rule(
    method: str,
    hospitals: Hospitals,
    settings: ChainSettings,
    budget: Budget,
    chains: Callable[[ChainSettings, float], Chains],
    seed: int,
) -> Predictor:
    # Imported here: the server's side loads Flower, which only the methods that run need.
    from fl_dpbayes.posterior.rules.combine import Released, combine_sites

    rule, sites = RULES[method], len(hospitals.training)
    share = rule.prior_share(sites)
    found = chains(settings, share)
    units = {name: len(records.labels) for name, records in hospitals.training.items()}
    sampler = plan_of(settings, budget, prior_share=share).sampler
    weights, _ = weigh_sites(rule, units)
    aggregate = combine_sites(rule, Released(found.samples, weights, sampler, sites, np.random.default_rng(seed)))
    samples = aggregate.samples.in_memory()
    warnings = tuple(map(sentence, aggregate.warnings))
    return Predictor(method, predicted(hospitals, samples)[np.newaxis], found.history, warnings)


def predicted(hospitals: Hospitals, samples: PosteriorSamples) -> Floats:
    """Return what samples predict for every test record, shape (N, classes)."""
    return probabilities_of(build_model(hospitals.model, hospitals.task, seed=0), samples, hospitals.test.features)
