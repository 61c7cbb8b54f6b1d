"""The scenario's section `[aggregation]`: one record per rule, what it asks of the sites' chains.

The rules that average weights or precisions rely on hidden units that mean the same at every site:
all chains of one number start from the same broadcast weights. The mixture needs no such alignment.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from fl_dpbayes.config.accepting import Accepting, Keys
from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.rule import PublicInputs, Rule, WeighedRule, register_rule
from fl_dpbayes.config.sampler import GaussianPrior, LaplacePrior, Sampler

Draws = Annotated[int, Field(ge=1, le=10_000)]


def _number_or(*, key: str, word: str, least: float, most: float, allowed: str) -> BeforeValidator:
    """Let a key be a number from `least` to `most`, or the word."""

    def check(value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != word and not (is_number and least <= value <= most):
            raise ValueError(f"{key} is {value!r}: give a number from {allowed}, or {word!r}")
        return value

    return BeforeValidator(check)


MoveBound = Annotated[
    float | Literal["none"],
    _number_or(key="move_bound", word="none", least=1, most=float("inf"), allowed="1 on"),
]
Beta = Annotated[
    float | Literal["fitted"],
    _number_or(key="beta", word="fitted", least=0, most=1, allowed="0 (mixture) to 1 (product)"),
]


@register_rule
class Mixture(WeighedRule):
    """All samples of all sites, site k with the share w_k (an ensemble; wide, never too sure).

    `largest_share`, here and below: no site's weight is above it, whatever size the site declares;
    1 lifts it. Without it the bound is 1.2 / K for K >= 3 training sites, and a half for averages
    of states, whose moves are bounded as well. A site that is held to it is named.
    """

    whole_prior = True
    averages_weights = False
    joins_temperatures = True
    rule: Literal["mixture"] = "mixture"


class AveragingRule(WeighedRule):
    """An average of states, which can be made robust against hostile or broken sites.

    `robust`: the median over sites of each parameter, or the mean without the `trimmed` least and
    greatest values. A median of many noisy states has pi/2 times the variance of their mean, and
    nobody knows whose posterior it samples, so the states of a robust FALD have no temperature.
    `move_bound`: of three sites or more none moves the average more than so many times as far as
    the median site; honest sites hardly ever do (docs/results/hostile-site), and an average in
    which one was shortened has no temperature.
    """

    share_times = math.inf
    robust: Literal["none", "median", "trimmed-mean"] = "none"
    trimmed: PositiveInt | None = None
    move_bound: MoveBound = 2.0

    def _check_keys(self) -> None:
        if (self.robust == "trimmed-mean") != (self.trimmed is not None):
            raise ValueError(
                "trimmed, the number of bad sites to bear, is given exactly with robust "
                "'trimmed-mean'"
            )
        if self.robust != "none" and self.site_weights != "uniform":
            raise ValueError(
                f"robust {self.robust!r} counts all sites alike: set site_weights = 'uniform'"
            )

    def check(self, sampler: Sampler, training_sites: int) -> None:
        """Check also that sites are enough to trim."""
        if self.trimmed is not None and 2 * self.trimmed >= training_sites:
            raise ValueError(
                f"aggregation.trimmed is {self.trimmed} for {training_sites} training sites: it "
                "must be below half of them"
            )
        super().check(sampler, training_sites)


@register_rule
class FALD(AveragingRule):
    """Federated averaging of Langevin chains: the states are averaged after every round.

    Sites weigh as n_k^`size_power`. Each adds its own noise, so a small site's mean gradient is
    mostly noise: above 1 the average is less noisy and targets a posterior in which records of
    large sites count more. A move of mere noise is then longer at large sites, which `move_bound`
    must allow.
    """

    own_rounds = True
    rule: Literal["fald"] = "fald"
    size_power: Annotated[float, Field(ge=0, le=2)] = 1.0

    @property
    def power(self) -> float:
        """The power of its size that a site weighs as."""
        return self.size_power

    def _check_keys(self) -> None:
        if self.size_power != 1 and self.site_weights == "uniform":
            raise ValueError(
                f"size_power {self.size_power:g} weighs by size: remove it, or "
                "site_weights = 'uniform'"
            )
        super()._check_keys()

    def site_plan(self, plan: TrainingPlan) -> TrainingPlan:
        """Let sites send their last state only.

        Burn-in and thinning are those of the averaged chain.
        """
        return plan.model_copy(update={"burn_in": 0, "thinning": plan.chain_steps})

    def check(self, sampler: Sampler, training_sites: int) -> None:
        """Check also that states are posterior samples."""
        if sampler.draws_samples:
            raise ValueError(
                "aggregation.rule 'fald' averages states, which are no posterior samples of "
                f"sampler.kind {sampler.kind!r}: choose rule 'mixture'"
            )
        super().check(sampler, training_sites)


@register_rule
class FedAvg(AveragingRule):
    """The average of the sites' posterior means: one point, for reference."""

    makes_point = True
    shows_mixing = False
    rule: Literal["fedavg"] = "fedavg"


@register_rule
class FedBE(WeighedRule):
    """The sites' means, their average, and draws around it.

    The `draws` have `spread` times the sites' standard deviation.
    """

    rule: Literal["fedbe"] = "fedbe"
    draws: Annotated[int, Field(ge=0, le=10_000)] = 10
    spread: Annotated[float, Field(ge=0)] = 1.0


class PrecisionRule(Rule):
    """A rule that weighs sites by their precisions, of the form after its name's hyphen."""

    needs_temperature = True
    draws: Draws = 100

    @property
    def code(self) -> str:
        """Name the rule without its form."""
        return self.rule.partition("-")[0]

    @property
    def form(self) -> str:
        """Say of which form the precisions are: full, diagonal or uniform."""
        return self.rule.partition("-")[2]

    def least_samples(self, parameters: int) -> int:
        """Return d + 4 for precision matrices and 5 for precisions of single parameters."""
        return {"full": parameters + 4, "diagonal": 5, "uniform": 1}[self.form]


@register_rule
class Consensus(PrecisionRule):
    """Consensus Monte Carlo: averages of one draw per site.

    Each of `draws` is such an average, weighed by the sites' precisions.
    """

    rule: Literal["consensus-full", "consensus-diagonal", "consensus-uniform"]


@register_rule
class Product(PrecisionRule):
    """The product of the sites' Gaussians, from which `draws` are taken.

    `prior`: each site targets 1/K of it (`fractional`), or the whole, which the product then
    divides out (`divided`).
    """

    rule: Literal["product-full", "product-diagonal"]
    prior: Literal["fractional", "divided"] = "fractional"

    def prior_share(self, sites: int) -> float:
        """Return the whole for the divided prior."""
        return 1.0 if self.prior == "divided" else super().prior_share(sites)

    def check(self, sampler: Sampler, training_sites: int) -> None:
        """Check also that the prior is a Gaussian or flat."""
        super().check(sampler, training_sites)
        if isinstance(sampler.prior, LaplacePrior):
            raise ValueError(
                f"aggregation.rule {self.rule!r} multiplies Gaussians, and sampler.prior.kind "
                "'laplace' is none: choose prior.kind 'gaussian' or 'flat', or a consensus rule"
            )


@register_rule
class FedPA(Rule):
    """Posterior averaging: after every round the server moves along the sites' deltas.

    The deltas are weighed by the sites' precisions. Rounds of which no sample is kept
    (`training.burn_in`) are FedAvg's. The result is one point. `shrinkage` is rho in prior standard
    deviations, 0 for FedAvg's deltas; without `learning_rate` it is 1 / (1 + (l - 1) rho) for l
    samples a round, with which no direction overshoots.
    """

    makes_point = True
    own_rounds = True
    shows_mixing = False
    needs_temperature = True
    rule: Literal["fedpa"] = "fedpa"
    shrinkage: Annotated[float, Field(ge=0)] = 1.0
    learning_rate: PositiveFloat | None = None

    def check(self, sampler: Sampler, training_sites: int) -> None:
        """Check also that the prior is a Gaussian."""
        super().check(sampler, training_sites)
        if not isinstance(sampler.prior, GaussianPrior):
            raise ValueError(
                "aggregation.rule 'fedpa' needs a Gaussian prior, and sampler.prior.kind is "
                f"{sampler.prior.kind!r}: choose prior.kind 'gaussian'"
            )


class DistillingRule(Rule):
    """A rule on the sites' predictions at `public` inputs, which one network learns to imitate.

    `iterations` bounds the L-BFGS iterations of that fit. docs/proofs/distillation.md measures the
    kinds of inputs.
    """

    whole_prior = True
    makes_point = True
    averages_weights = False
    public: Accepting[PublicInputs, Keys] = Field(
        description="for example --set aggregation.public.kind=synthetic --set "
        "aggregation.public.pattern=strokes, or "
        "a file of public records (README, Aggregation)"
    )
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 500

    @property
    def inputs(self) -> PublicInputs:
        """The inputs that the server needs."""
        return self.public


@register_rule
class Distillation(WeighedRule, DistillingRule):
    """The mixture of the sites' samples, distilled.

    It is as cautious as the mixture, with the cost of one network.
    """

    rule: Literal["distillation"] = "distillation"


@register_rule
class PredBayes(DistillingRule):
    """beta-PredBayes: between the mixture and the product of the sites' predictions, distilled.

    `beta` 0 is the mixture, 1 the product. `fitted` chooses the beta with the least loss on public
    records with labels.
    """

    rule: Literal["predbayes"] = "predbayes"
    beta: Beta = 0.25

    @property
    def needs_labels(self) -> bool:
        """Whether the server's inputs must have labels, as where `beta` is fitted."""
        return self.beta == "fitted"

    def _check_keys(self) -> None:
        if self.needs_labels and self.public.kind != "file":
            raise ValueError(
                "beta 'fitted' needs public records with labels: give public of kind "
                "'file', or a number"
            )


def with_default_rule(content: Any) -> Any:
    """Name a scenario's aggregation rule where it names none.

    FALD, the best where all were measured (README, "Which aggregation rule"); the mixture for
    samplers whose states are no posterior samples, which cannot be averaged. Returns the content
    with `aggregation.rule`.
    """
    section = content.get("aggregation", {}) if isinstance(content, dict) else None
    if not isinstance(section, dict) or "rule" in section:
        return content
    sampler = content.get("sampler")
    kind = sampler.get("kind", "") if isinstance(sampler, dict) else ""
    rule = "mixture" if str(kind).removeprefix("dp-") in ("bbp", "mc-dropout") else "fald"
    return content | {"aggregation": {"rule": rule} | section}


def prior_scale(sampler: Sampler) -> float:
    """Return the standard deviation of a Gaussian prior, infinite for a flat one."""
    return sampler.prior.scale if isinstance(sampler.prior, GaussianPrior) else float("inf")
