"""The federation's one model with a posterior over hospitals on its intercept: predictions for any hospital."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.config import Scenario
from fl_dpbayes.posterior.chains import unflatten
from fl_dpbayes.posterior.hierarchical.distribution import Distribution, Floats
from fl_dpbayes.posterior.hierarchical.effects import (
    UNKNOWN,
    clipped_score,
    log_odds_means,
    site_effects,
    site_means,
)
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior
from fl_dpbayes.posterior.samples import PosteriorSamples

# How many values of a hospital's effect, of equal weight, predictions average over.
NODES, COVARIATES = 32, 2000
SHARES, MEDIAN = (np.arange(NODES) + 0.5) / NODES, np.array(0.5)
# E sigmoid(x + tau z) is close to sigmoid(x / sqrt(1 + .346 tau^2)).
ATTENUATION = 0.346
# In widest standard deviations from the median: what lies farther is of a hostile or broken site.
FARTHEST = 3.0
LEVEL = 0.9


@dataclass(frozen=True)
class HospitalModel:
    """What predicts for hospitals: `posterior` of the `sites`' effects, in their order, and the model that they shift.

    `groups`: in order, none for one level. `state`: averaged log odds, intercept first, (1 + D,).
    `covariates`: public ones, with a first column of 1, (N, 1 + D).
    """

    sites: tuple[str, ...]
    groups: tuple[str, ...]
    posterior: HospitalPosterior
    state: Floats
    covariates: Floats

    def effect(self, site: str | None = None, group: str | None = None) -> Distribution:
        """Return the posterior of a training hospital's effect, or a new one's: of a group, new ones too, or of any."""
        if site in self.sites:
            return self.posterior.of_hospital(self.sites.index(site))
        if self.groups and not group:
            return self.posterior.of_any()
        return self.posterior.of_new(self.groups.index(group) if group in self.groups else None)

    def without(self, site: str) -> Distribution:
        """Return the effect of a training hospital as the others alone foretell it."""
        at, known = self.sites.index(site), self.posterior
        variances = np.where(np.arange(len(self.sites)) == at, UNKNOWN, known.variances)
        return HospitalPosterior(
            known.estimates, variances, known.groups, known.largest_sd
        ).of_hospital(at)

    @cached_property
    def conditional(self) -> Floats:
        """The log odds within a hospital of effect 0, (1 + D,).

        Slopes fitted across hospitals are marginal: within one they are larger by sqrt(1 + .346
        tau^2), about centred features' mean. tau is the posterior's median, where data tell it.
        """
        medians = np.array([spread.quantiles(MEDIAN) for spread in self.posterior.spreads])
        longer = np.sqrt(1 + ATTENUATION * np.square(medians) @ self.posterior.identified)
        return np.append(self.state[:1], longer * self.state[1:])

    def samples(
        self, effect: Distribution, shapes: Mapping[str, tuple[int, ...]]
    ) -> PosteriorSamples:
        """Return parameters of the model, of these shapes, whose average prediction integrates over an effect."""
        slopes = np.tile(self.conditional[1:] / 2, (NODES, 1))
        intercepts = (self.conditional[0] + effect.quantiles(SHARES)) / 2
        draws = np.column_stack([-slopes, slopes, -intercepts, intercepts])
        return PosteriorSamples(unflatten(draws, shapes), np.ones(NODES), np.zeros(NODES))

    def rate(
        self, effect: Distribution, covariates: Floats | None = None
    ) -> tuple[float, tuple[float, float]]:
        """Return the rate of class 1 that is expected of an effect, and its 90 % interval, without patients' chance.

        `covariates`: over which it is the rate, (N, 1 + D); None: the public ones.
        """
        odds = (self.covariates if covariates is None else covariates) @ self.conditional
        thetas = (*effect.interval(LEVEL), *effect.quantiles(SHARES))
        low, high, *rates = (float(expit(odds + theta).mean()) for theta in thetas)
        return float(np.mean(rates)), (low, high)

    def said_rate(self, effect: Distribution, covariates: Floats | None = None) -> str:
        """Say the same in words."""
        rate, (low, high) = self.rate(effect, covariates)
        return f"rate of class 1 {rate:.3f} ({LEVEL:.0%}: {low:.3f} to {high:.3f})"

    def described(self) -> list[dict[str, Any]]:
        """Say how hospitals differ, as the summary's `hospitals` has it: the spreads, and new hospitals' rates."""
        found, names = self.posterior, ("hospitals", "groups")[: 1 + bool(self.groups)]
        rows: list[dict[str, Any]] = [
            {
                "of": f"standard deviation between {name}",
                "value": float(spread.quantiles(MEDIAN)),
                "interval": spread.interval(LEVEL),
                "among": count,
                "identified": enough,
            }
            for name, spread, count, enough in zip(
                names, found.spreads, found.counts, found.identified, strict=False
            )
        ]
        for group in ("", *self.groups):
            name, (rate, ends) = (
                f"a new hospital{group and ' of '}{group}",
                self.rate(self.effect(group=group)),
            )
            rows.append({"of": f"rate of class 1 at {name}", "value": rate, "interval": ends})
        return rows


def with_intercept(inputs: npt.NDArray) -> Floats:
    """Put a column of 1 before inputs (N, ...), (N, 1 + D)."""
    return np.column_stack([np.ones(len(inputs)), inputs.reshape(len(inputs), -1)])


def fit_hospitals(rows: Mapping[str, npt.NDArray], scenario: Scenario) -> HospitalModel:
    """Fit the posterior over hospitals to the sums of what softmax models of two classes released, by site.

    `rows`: as `summed_round` adds them, of flat parameters, weights (2, D) then biases (2).
    """
    section, means, sites = (
        scenario.hierarchical,
        log_odds_means(site_means(rows)),
        tuple(sorted(rows)),
    )
    assert section is not None
    state, clip_norm = means.states.mean(axis=0), scenario.privacy.clip_norm or np.inf
    # Made up of the declared geometry: features that are centred and of one scale.
    made_up = np.random.default_rng(0).standard_normal((COVARIATES, len(state) - 1))
    covariates = with_intercept(made_up * getattr(scenario.model.features, "spread", 1.0))
    of_sites = [scenario.sites[site].group or "" for site in sites]
    groups = tuple(sorted(set(of_sites))) if section.group else ()
    numbers = np.array(list(map(groups.index, of_sites))) if groups else None
    estimates, variances = site_effects(
        means, clipped_score(covariates, state, clip_norm / np.sqrt(2))
    )
    centre = np.median(estimates)
    far = np.abs(estimates - centre) > FARTHEST * np.sqrt(section.largest_sd**2 + variances)
    effects = np.where(far, centre, estimates), np.where(far, UNKNOWN, variances)
    return HospitalModel(
        sites, groups, HospitalPosterior(*effects, numbers, section.largest_sd), state, covariates
    )
