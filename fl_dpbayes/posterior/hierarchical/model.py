"""The federation's one model with a posterior over hospitals on its intercept: predictions for any hospital."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.config.rule import SyntheticInputs
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.task import StandardFeatures, Task
from fl_dpbayes.posterior.chains import unflatten
from fl_dpbayes.posterior.hierarchical.distribution import Distribution, Floats
from fl_dpbayes.posterior.hierarchical.effects import clipped_score, log_odds_means, logistic_effects
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior
from fl_dpbayes.posterior.hierarchical.sums import site_means
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.student import prepare_student

# How many values of a hospital's effect, of equal weight, predictions average over.
NODES = 32
# E sigmoid(x + tau z) is close to sigmoid(x / sqrt(1 + .346 tau^2)).
ATTENUATION = 0.346
# The variance of an estimate that says nothing: no log odds are as far apart as its root.
UNKNOWN = 1e4
LEVEL = 0.9


@dataclass(frozen=True)
class HospitalModel:
    """What predicts for hospitals: `posterior` of the `sites`' effects, in their order, and the model that they shift.

    `groups`: their names, in order, none for one level. `state`: the averaged state's log odds, intercept first,
    (1 + D,). `covariates`: public ones, with a first column of 1, (N, 1 + D).
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
        at, effects = self.sites.index(site), self.posterior.effects
        variances = np.where(np.arange(len(self.sites)) == at, UNKNOWN, effects.variances)
        return HospitalPosterior(replace(effects, variances=variances), self.posterior.largest_sd).of_hospital(at)

    @cached_property
    def conditional(self) -> Floats:
        """The log odds within a hospital of effect 0, (1 + D,).

        Slopes fitted across hospitals are marginal: within one they are larger by sqrt(1 + .346 tau^2), about the
        covariates' mean, where the level is that of the hospital. tau is the posterior's median, where data tell it.
        """
        spreads = enumerate(self.posterior.spreads)
        told = [spread.median for level, spread in spreads if self.posterior.identified(level)]
        longer = float(np.sqrt(1 + ATTENUATION * np.square(told).sum()))
        p = expit(self.covariates @ self.state)
        middle = np.average(self.covariates[:, 1:], axis=0, weights=p * (1 - p))
        slopes = self.state[1:]
        return np.concatenate([[self.state[0] - (longer - 1) * (middle @ slopes)], longer * slopes])

    def samples(self, effect: Distribution, shapes: Mapping[str, tuple[int, ...]]) -> PosteriorSamples:
        """Return parameters of the model, of these shapes, whose average prediction integrates over an effect."""
        odds = np.tile(self.conditional, (NODES, 1))
        odds[:, 0] += _nodes(effect)
        intercept, slopes = odds[:, :1] / 2, odds[:, 1:] / 2
        draws = np.hstack([-slopes, slopes, -intercept, intercept])
        return PosteriorSamples(unflatten(draws, shapes), np.ones(NODES), np.zeros(NODES))

    def rate(self, effect: Distribution, covariates: Floats | None = None) -> tuple[float, tuple[float, float]]:
        """Return the rate of class 1 that is expected of an effect, and its 90 % interval, without patients' chance.

        `covariates`: over which it is the rate, (N, 1 + D); None: the public ones.
        """
        odds = (self.covariates if covariates is None else covariates) @ self.conditional
        low, high, *rates = (float(expit(odds + theta).mean()) for theta in (*effect.interval(LEVEL), *_nodes(effect)))
        return float(np.mean(rates)), (low, high)

    def said_rate(self, effect: Distribution, covariates: Floats | None = None) -> str:
        """Say the same in words."""
        rate, (low, high) = self.rate(effect, covariates)
        return f"rate of class 1 {rate:.3f} ({LEVEL:.0%}: {low:.3f} to {high:.3f})"

    def described(self) -> list[dict[str, Any]]:
        """Say how hospitals differ, as the summary's `hospitals` has it: the spreads, and new hospitals' rates."""
        found = self.posterior
        rows: list[dict[str, Any]] = [
            {"of": f"standard deviation between {name}", "value": spread.median, "interval": spread.interval(LEVEL),
             "among": found.counts[level], "identified": found.identified(level)}
            for level, (name, spread) in enumerate(zip(("hospitals", "groups"), found.spreads, strict=True))
        ]  # fmt: skip
        for group in ("", *self.groups):
            rate, ends = self.rate(self.effect(group=group))
            of = f"rate of class 1 at a new hospital{group and ' of '}{group}"
            rows.append({"of": of, "value": rate, "interval": ends})
        return rows if self.groups else [rows[0], *rows[2:]]


def _nodes(effect: Distribution) -> Floats:
    return effect.quantiles((np.arange(NODES) + 0.5) / NODES)


def public_covariates(scenario: Scenario, task: Task) -> Floats:
    """Return what the model's layer sees of the inputs that the scenario declares public, after a 1, (N, 1 + D).

    Synthetic ones of a declared geometry are normal numbers of its spread: that is what the geometry says of records.
    Raises UserError as `prepare_student` does.
    """
    assert scenario.hierarchical is not None
    public, features = scenario.hierarchical.public, scenario.model.features
    if isinstance(public, SyntheticInputs) and isinstance(features, StandardFeatures):
        drawn = np.random.default_rng(public.seed).standard_normal((public.count, len(features.centers)))
        return with_intercept(features.spread * drawn)
    return with_intercept(prepare_student(public, task, scenario.model, labelled=False).features)


def with_intercept(inputs: npt.NDArray) -> Floats:
    """Put a column of 1 before inputs (N, ...), (N, 1 + D)."""
    return np.column_stack([np.ones(len(inputs)), inputs.reshape(len(inputs), -1)])


def fit_hospitals(rows: Mapping[str, npt.NDArray], scenario: Scenario, covariates: Floats) -> HospitalModel:
    """Fit the posterior over hospitals to the sums of what softmax models of two classes released, by site.

    `rows`: as `summed_round` adds them, of flat parameters, weights (2, D) then biases (2). `covariates`: as above.
    """
    section, clip_norm, means = scenario.hierarchical, scenario.privacy.clip_norm, log_odds_means(site_means(rows))
    assert section is not None
    of_sites = [scenario.sites[site].group or "" for site in means.sites]
    groups = tuple(sorted(set(of_sites))) if section.group else ()
    numbers = np.array(list(map(groups.index, of_sites))) if groups else None
    score = clipped_score(covariates, means.centre, (clip_norm or np.inf) / np.sqrt(2))
    posterior = HospitalPosterior(logistic_effects(means, score, numbers), section.largest_sd)
    return HospitalModel(means.sites, groups, posterior, means.centre, covariates)
