"""The federation's one model with a posterior over hospitals on its intercept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.config import Scenario, StandardFeatures
from fl_dpbayes.posterior.chains import unflatten
from fl_dpbayes.posterior.hierarchical.distribution import Distribution, Floats
from fl_dpbayes.posterior.hierarchical.effects import (
    UNKNOWN,
    Effects,
    Means,
    PooledRounds,
    log_odds_means,
    site_effects,
    site_means,
)
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior
from fl_dpbayes.posterior.hierarchical.made_up import (
    LARGEST_EFFECT,
    score_curve,
    stretch_distribution,
    stretched,
)
from fl_dpbayes.posterior.samples import PosteriorSamples

# How many values of a hospital's effect, of equal weight, predictions average over.
NODES = 32
COVARIATES = 2000
SHARES = (np.arange(NODES) + 0.5) / NODES
MEDIAN = np.array(0.5)
# In widest standard deviations from the median: what lies farther is of a hostile or broken site.
FARTHEST = 3.0
LEVEL = 0.9
# The stretch of made-up patients is uncertain: estimates are made at each of these shares of it.
STRETCH_SHARES = (np.arange(5) + 0.5) / 5


@dataclass(frozen=True)
class ExpectedRate:
    """The rate of class 1 that is expected, without the chance of patients.

    Attributes:
        rate: Its mean.
        interval: Of 90 %.
    """

    rate: float
    interval: tuple[float, float]

    def words(self, quantity: str) -> str:
        """Return the rate and its interval in words.

        Args:
            quantity: What the rate is, as of `rate_in_words`.

        Returns:
            One sentence, without its full stop.
        """
        low, high = self.interval
        return f"{quantity}: {self.rate:.3f} ({LEVEL:.0%} interval: {low:.3f} to {high:.3f})"


def rate_in_words(class_names: Sequence[str], patients: str, hospital: str) -> str:
    """Name a hospital's rate in full: of what, among whom, where.

    Args:
        class_names: Of both classes; none where they are only numbers.
        patients: Among whom it is.
        hospital: Where it is.

    Returns:
        Its name.
    """
    event = class_names[1] if class_names else "class 1"
    return f"rate of {event} among {patients} of {hospital}"


@dataclass(frozen=True)
class Spread:
    """How much hospitals, or groups of them, differ.

    Attributes:
        between: What differs.
        standard_deviation: Its posterior's median, in log odds.
        interval: Of 90 %.
        count: How many of them there are.
        identified: False where the prior says it rather than the hospitals.
    """

    between: str
    standard_deviation: float
    interval: tuple[float, float]
    count: int
    identified: bool


@dataclass(frozen=True)
class HospitalModel:
    """What predicts for hospitals: the posterior of their effects, and the model that they shift.

    Attributes:
        sites: Training hospitals, in the posterior's order.
        groups: In the posterior's order, none for one level.
        posterior: Of the effects.
        state: Averaged log odds at a hospital of effect 0, intercept first, shape (1 + D,).
        covariates: Public ones, with a first column of 1, shape (N, 1 + D).
    """

    sites: tuple[str, ...]
    groups: tuple[str, ...]
    posterior: HospitalPosterior
    state: Floats
    covariates: Floats

    def effect(self, site: str | None = None, group: str | None = None) -> Distribution:
        """Return the posterior of a hospital's effect.

        Args:
            site: A training hospital; any other name, or None, is a new hospital.
            group: A new hospital's group; one that did not train is a new group, and without any it
                may be of each.

        Returns:
            The posterior, in log odds.
        """
        if site in self.sites:
            return self.posterior.of_hospital(self.sites.index(site))
        if self.groups and not group:
            return self.posterior.of_any()
        return self.posterior.of_new(self.groups.index(group) if group in self.groups else None)

    def without(self, site: str) -> Distribution:
        """Return the effect of a training hospital as all others foretell it."""
        return self.posterior.without(self.sites.index(site))

    def samples(
        self, effect: Distribution, shapes: Mapping[str, tuple[int, ...]]
    ) -> PosteriorSamples:
        """Return parameters whose average prediction integrates over an effect.

        Args:
            effect: Of a hospital.
            shapes: Parameter -> its shape in the softmax model of two classes.

        Returns:
            NODES samples of equal weight, without a temperature.
        """
        slopes = np.tile(self.state[1:] / 2, (NODES, 1))
        intercepts = (self.state[0] + effect.quantiles(SHARES)) / 2
        draws = np.column_stack([-slopes, slopes, -intercepts, intercepts])
        return PosteriorSamples(
            arrays=unflatten(draws, shapes), weights=np.ones(NODES), temperatures=np.zeros(NODES)
        )

    def rate(self, effect: Distribution, covariates: Floats | None = None) -> ExpectedRate:
        """Return the rate of class 1 that is expected of an effect.

        Args:
            effect: Of a hospital.
            covariates: Over which it is the rate, shape (N, 1 + D); None for the public ones.

        Returns:
            The rate and its interval.
        """
        log_odds = (self.covariates if covariates is None else covariates) @ self.state

        def rate_at(theta: float) -> float:
            return float(expit(log_odds + theta).mean())

        low, high = effect.interval(LEVEL)
        rates = [rate_at(theta) for theta in effect.quantiles(SHARES)]
        return ExpectedRate(rate=float(np.mean(rates)), interval=(rate_at(low), rate_at(high)))

    @property
    def spreads(self) -> tuple[Spread, ...]:
        """The differences between hospitals and, where they are grouped, between groups."""
        posterior = self.posterior
        names = ("hospitals", "groups") if self.groups else ("hospitals",)
        return tuple(
            Spread(
                between=name,
                standard_deviation=float(posterior.spreads[level].quantiles(MEDIAN)),
                interval=posterior.spreads[level].interval(LEVEL),
                count=posterior.counts[level],
                identified=posterior.identified[level],
            )
            for level, name in enumerate(names)
        )

    @property
    def new_hospital_rates(self) -> dict[str, ExpectedRate]:
        """The rate at a new hospital of any group (""), and at one of each group."""
        return {group: self.rate(self.effect(group=group)) for group in ("", *self.groups)}


def with_intercept(inputs: npt.NDArray) -> Floats:
    """Put a column of 1 before inputs: shape (N, ...) -> (N, 1 + D)."""
    return np.column_stack([np.ones(len(inputs)), inputs.reshape(len(inputs), -1)])


@dataclass(frozen=True)
class _Federation:
    """What the hospitals of a run released, in log odds.

    Attributes:
        means: Of the rounds after burn-in.
        state: The averaged state, shape (1 + D,).
        states: The states after burn-in at which scores were taken, shape (T, 1 + D).
        covariates: Made-up patients', not stretched, shape (N, 1 + D).
        clip_norm: Of a record's score of the log odds, infinite where nothing is clipped.
        group_of_site: Each hospital's, none for one level.
        largest_sd: No spread is larger.
    """

    means: Means
    state: Floats
    states: Floats
    covariates: Floats
    clip_norm: float
    group_of_site: tuple[str, ...]
    largest_sd: float

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups' names in order."""
        return tuple(sorted(set(self.group_of_site)))

    def effects(self, patients: Floats) -> Effects:
        """Estimate the hospitals' effects, given made-up patients, shape (N, 1 + D)."""
        curve = score_curve(
            covariates=patients, state=self.state, states=self.states, clip_norm=self.clip_norm
        )
        return self._without_far(site_effects(self.means, curve))

    def levels(self, fits: Sequence[Effects]) -> HospitalPosterior:
        """Return the posterior of the effects given one set of estimates or more."""
        groups = None
        if self.group_of_site:
            groups = np.array([self.groups.index(group) for group in self.group_of_site])
        return HospitalPosterior(fits, groups=groups, largest_sd=self.largest_sd)

    def _without_far(self, effects: Effects) -> Effects:
        """Say nothing of a hospital that is hostile or broken, as far as it is off."""
        centre = np.median(effects.estimates)
        reach = FARTHEST * np.sqrt(self.largest_sd**2 + effects.variances)
        far = np.abs(effects.estimates - centre) > reach
        return Effects(
            estimates=np.where(far, centre, effects.estimates),
            variances=np.where(far, UNKNOWN, effects.variances),
        )


def fit_hospitals(
    rows: Mapping[str, npt.NDArray], rounds: PooledRounds, scenario: Scenario
) -> HospitalModel:
    """Fit the posterior over hospitals to the sums of what softmax models of two classes released.

    Args:
        rows: Site -> its rounds' sums as of `summed_round`, added up, of flat parameters: weights
            (2, D), then biases (2).
        rounds: The pooled scores of all rounds, burn-in included.
        scenario: With a section on hierarchical models.

    Returns:
        What predicts for hospitals.
    """
    sites = tuple(sorted(rows))
    means = log_odds_means(site_means(rows))
    return fit_log_odds(sites, means=means, rounds=rounds, scenario=scenario)


def fit_log_odds(
    sites: tuple[str, ...], means: Means, rounds: PooledRounds, scenario: Scenario
) -> HospitalModel:
    """Fit the posterior over hospitals to what they released, in log odds.

    Args:
        sites: The hospitals.
        means: Of their clipped scores after burn-in, in the same order.
        rounds: The pooled scores of all rounds, burn-in included.
        scenario: With a section on hierarchical models.

    Returns:
        What predicts for hospitals.
    """
    round_of_chain = np.arange(len(rounds.states)) % scenario.training.rounds
    states = rounds.states[round_of_chain >= scenario.training.burn_in]
    federation = _federation(sites, means=means, states=states, scenario=scenario)
    stretch = stretch_distribution(
        covariates=federation.covariates,
        state=federation.state,
        rounds=rounds,
        clip_norm=federation.clip_norm,
    )
    fits = [
        federation.effects(stretched(federation.covariates, federation.state, value))
        for value in stretch.quantiles(STRETCH_SHARES)
    ]
    return HospitalModel(
        sites=sites,
        groups=federation.groups,
        posterior=federation.levels(fits),
        state=federation.state,
        covariates=stretched(federation.covariates, federation.state, stretch.mean),
    )


def expected_effects(sites: tuple[str, ...], means: Means, scenario: Scenario) -> Floats:
    """Return where hospitals are thought to be while they train.

    By made-up patients that are not stretched, so about a tenth too near together: estimates hold
    wherever scores were taken. A site that is hostile or broken cannot push itself or others beyond
    what the score's curve covers.

    Args:
        sites: The hospitals.
        means: Of their clipped scores after burn-in so far, in the same order.
        scenario: With a section on hierarchical models.

    Returns:
        Their effects around their mean, shape (K,).
    """
    state = means.states.mean(axis=0)
    federation = _federation(sites, means=means, states=state[None], scenario=scenario)
    effects = federation.levels([federation.effects(federation.covariates)]).mean_effects
    centred = np.nan_to_num(effects - effects.mean(), nan=0.0)
    return np.clip(centred, -LARGEST_EFFECT, LARGEST_EFFECT)


def _federation(
    sites: tuple[str, ...], means: Means, states: Floats, scenario: Scenario
) -> _Federation:
    section = scenario.hierarchical
    assert section is not None
    group_of_site = tuple(scenario.sites[site].group or "" for site in sites)
    state = means.states.mean(axis=0)
    # Made up of the declared geometry: features that are centred and of one scale.
    made_up = np.random.default_rng(0).standard_normal((COVARIATES, len(state) - 1))
    features = scenario.model.features
    spread = features.spread if isinstance(features, StandardFeatures) else 1.0
    return _Federation(
        means=means,
        state=state,
        states=states,
        covariates=with_intercept(made_up * spread),
        # The two rows of a record's softmax gradient are opposite.
        clip_norm=(scenario.privacy.clip_norm or np.inf) / np.sqrt(2),
        group_of_site=group_of_site if section.group else (),
        largest_sd=section.largest_sd,
    )
