"""The scenario's section `[aggregation]`: one record per rule, and what a rule asks of the sites' chains.

The rules that average weights or precisions rely on hidden units that mean the same at every site: all chains of one
number start from the same broadcast weights. The mixture needs no such alignment.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.distillation import Distillation, PredBayes
from fl_dpbayes.config.plural import counted
from fl_dpbayes.config.pvi_plan import LEAST_SAMPLES
from fl_dpbayes.config.sampler import GaussianPrior, LaplacePrior, Sampler
from fl_dpbayes.config.site_weighing import LargestShare, SiteWeights, cannot_be_kept

Draws = Annotated[int, Field(ge=1, le=10_000)]


def _bound_or_none(value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value != "none" and not (number and value >= 1):
        raise ValueError(f"move_bound is {value!r}: give a number from 1 on, or 'none'")
    return value


MoveBound = Annotated[float | Literal["none"], BeforeValidator(_bound_or_none)]


class Mixture(Config):
    """All samples of all sites, site k with the share w_k (an ensemble; wide, never too sure).

    `largest_share`, here and below: no site's weight is above it, whatever size the site declares.
    """

    rule: Literal["mixture"] = "mixture"
    site_weights: SiteWeights = "units"
    largest_share: LargestShare = None


class AveragingRule(Config):
    """An average of states, which can be made robust against hostile or broken sites.

    `robust`: the median over sites of each parameter, or the mean without the `trimmed` least and greatest values.
    A median of many noisy states has pi/2 times the variance of their mean, and nobody knows whose posterior it
    samples, so the states of a robust FALD have no temperature. `move_bound`: of three sites or more none moves the
    average more than so many times as far as the median site; honest sites hardly ever do
    (docs/results/hostile-site), and an average in which one was shortened has no temperature.
    """

    site_weights: SiteWeights = "units"
    largest_share: LargestShare = None
    robust: Literal["none", "median", "trimmed-mean"] = "none"
    trimmed: PositiveInt | None = None
    move_bound: MoveBound = 2.0

    @model_validator(mode="after")
    def _robust_fits(self) -> "AveragingRule":
        if (self.robust == "trimmed-mean") != (self.trimmed is not None):
            raise ValueError(
                "trimmed, the number of bad sites to bear, must be given exactly with robust 'trimmed-mean'"
            )
        if self.robust != "none" and self.site_weights != "uniform":
            raise ValueError(
                f"robust {self.robust!r} counts all sites alike, since with a weight one site could claim the most: "
                "set site_weights = 'uniform'"
            )
        return self


class FALD(AveragingRule):
    """Federated averaging of Langevin chains: the states are averaged after every round."""

    rule: Literal["fald"]


class FedAvg(AveragingRule):
    """The average of the sites' posterior means: one point, for reference."""

    rule: Literal["fedavg"]


class FedBE(Config):
    """The sites' means, their average, and `draws` around it with `spread` times the sites' standard deviation."""

    rule: Literal["fedbe"]
    site_weights: SiteWeights = "units"
    largest_share: LargestShare = None
    draws: Annotated[int, Field(ge=0, le=10_000)] = 10
    spread: Annotated[float, Field(ge=0)] = 1.0


class Consensus(Config):
    """Consensus Monte Carlo: each of `draws` is an average of one draw per site, weighed by the sites' precisions."""

    rule: Literal["consensus-full", "consensus-diagonal", "consensus-uniform"]
    draws: Draws = 100


class Product(Config):
    """The product of the sites' Gaussians, from which `draws` are taken.

    `prior`: each site targets 1/K of it (`fractional`), or the whole, which the product then divides out (`divided`).
    """

    rule: Literal["product-full", "product-diagonal"]
    prior: Literal["fractional", "divided"] = "fractional"
    draws: Draws = 100


class FedPA(Config):
    """Posterior averaging: after every round the server moves along the sites' deltas, weighed by their precisions.

    Rounds of which no sample is kept (`training.burn_in`) are FedAvg's. The result is one point. `shrinkage` is rho in
    prior standard deviations, 0 for FedAvg's deltas; without `learning_rate` it is 1 / (1 + (l - 1) rho) for l samples
    a round, with which no direction overshoots.
    """

    rule: Literal["fedpa"]
    shrinkage: Annotated[float, Field(ge=0)] = 1.0
    learning_rate: PositiveFloat | None = None


class PVI(Config):
    """Partitioned variational inference: q(w) = p(w) prod_k t_k(w), diagonal, of which `draws` are taken.

    Each round every site samples its likelihood times q without its own factor, which then moves by `damping` towards
    what was found: without it by 1/K, with which K sites that all learn the same do not overshoot together.
    `training.burn_in` and `thinning` count the steps of a round, since each has another target.
    """

    rule: Literal["pvi"]
    damping: Annotated[float, Field(gt=0, le=1)] | None = None
    draws: Draws = 100


Aggregation = Annotated[
    Mixture | FALD | FedAvg | FedBE | FedPA | Consensus | Product | PVI | Distillation | PredBayes,
    Field(discriminator="rule"),
]


def with_default_rule(content: Any) -> Any:
    """Name a scenario's aggregation rule where it names none.

    FALD, the best where all were measured (README, "Which aggregation rule"); the mixture for samplers whose states are
    no posterior samples, which cannot be averaged.

    Args:
        content: a scenario as parsed, of any form.

    Returns:
        The content with `aggregation.rule`.
    """
    section = content.get("aggregation", {}) if isinstance(content, dict) else None
    if not isinstance(section, dict) or "rule" in section:
        return content
    sampler = content.get("sampler")
    kind = sampler.get("kind", "") if isinstance(sampler, dict) else ""
    rule = "mixture" if str(kind).removeprefix("dp-") in ("bbp", "mc-dropout") else "fald"
    return content | {"aggregation": {"rule": rule} | section}


def prior_share(rule: Aggregation, sites: int) -> float:
    """Return the share s of the prior that each site must target under a rule.

    Args:
        rule: the scenario's choice.
        sites: number of training sites K, >= 1.

    Returns:
        1 for the rules on whole local posteriors, for the divided prior and for PVI, whose cavity holds the prior;
        1/K (convention A) for all others.
    """
    match rule:
        case Mixture() | Product(prior="divided") | PVI() | Distillation() | PredBayes():
            return 1.0
        case _:
            return 1.0 / sites


def weighing(rule: Aggregation) -> SiteWeights:
    """Say how a rule weighs sites; those that weigh by precision count all alike in what they average plainly."""
    match rule:
        case Consensus() | Product() | FedPA() | PVI() | PredBayes():
            return "uniform"
        case _:
            return rule.site_weights


def largest_share(rule: Aggregation) -> float | None:
    """Return the greatest weight that a rule lets a site have, None where nothing bounds it."""
    match rule:
        case Consensus() | Product() | FedPA() | PVI() | PredBayes():
            return None
        case _:
            return rule.largest_share


def point_rule(rule: Aggregation) -> str:
    """Name a rule that makes one point of whatever it is given, and no posterior; else return an empty text."""
    return rule.rule if isinstance(rule, FedAvg | FedPA | Distillation | PredBayes) else ""


def least_samples(rule: Aggregation, parameters: int) -> int:
    """Return how many samples of a site a rule needs to use it.

    Args:
        rule: the scenario's choice.
        parameters: number of the model's parameters, d.

    Returns:
        d + 4 for precision matrices, 5 for precisions of single parameters (PVI: in each round), else 1.
    """
    match rule.rule:
        case "consensus-full" | "product-full":
            return parameters + 4
        case "consensus-diagonal" | "product-diagonal" | "pvi":
            return LEAST_SAMPLES
        case _:
            return 1


def check_aggregation(rule: Aggregation, sampler: Sampler, training_sites: int) -> None:
    """Check that a rule fits the chains that it is to combine.

    Args:
        rule: the scenario's choice.
        sampler: the sites' algorithm.
        training_sites: number of training sites K.

    Raises:
        ValueError: naming what does not fit, and the remedy.
    """
    if isinstance(rule, FALD) and sampler.draws_samples:
        raise ValueError(
            f"aggregation.rule 'fald' averages states, which are no posterior samples of sampler.kind "
            f"{sampler.kind!r}: choose rule 'mixture'"
        )
    if isinstance(rule, Consensus | Product | FedPA | PVI) and not sampler.has_temperature:
        raise ValueError(
            f"aggregation.rule {rule.rule!r} needs the spread of samples at a known temperature, which sampler.kind "
            f"{sampler.kind!r} does not have: choose rule 'mixture', 'fedavg' or 'fedbe'"
        )
    if isinstance(rule, Product) and isinstance(sampler.prior, LaplacePrior):
        raise ValueError(
            f"aggregation.rule {rule.rule!r} multiplies Gaussians, and sampler.prior.kind 'laplace' is none: choose "
            "prior.kind 'gaussian' or 'flat', or a consensus rule"
        )
    if isinstance(rule, FedPA) and not isinstance(sampler.prior, GaussianPrior):
        raise ValueError(
            f"aggregation.rule 'fedpa' measures in standard deviations of a Gaussian prior, and sampler.prior.kind is "
            f"{sampler.prior.kind!r}: choose prior.kind 'gaussian'"
        )
    if isinstance(rule, PVI) and not isinstance(sampler.prior, GaussianPrior):
        raise ValueError(
            f"aggregation.rule 'pvi' refines a Gaussian prior, and sampler.prior.kind is {sampler.prior.kind!r}: "
            "choose prior.kind 'gaussian'"
        )
    if isinstance(rule, AveragingRule) and rule.trimmed is not None and 2 * rule.trimmed >= training_sites:
        raise ValueError(
            f"aggregation.trimmed is {rule.trimmed} for {training_sites} training sites: it must be below half of them"
        )
    share = largest_share(rule)
    if share is not None and cannot_be_kept(share, training_sites):
        least = math.ceil(1e6 / training_sites) / 1e6
        raise ValueError(
            f"aggregation.largest_share is {share:g}, but {counted(training_sites, 'training site')} share 1, so one "
            f"has at least {least:g}: raise it to {least:g} or more, or leave it out and set site_weights = 'uniform'"
        )


def prior_scale(sampler: Sampler) -> float:
    """Return the standard deviation of a Gaussian prior, infinite for a flat one."""
    return sampler.prior.scale if isinstance(sampler.prior, GaussianPrior) else float("inf")
