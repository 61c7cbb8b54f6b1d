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
from fl_dpbayes.posterior.hierarchical.effects import clipped_score, log_odds_means, logistic_effects
from fl_dpbayes.posterior.hierarchical.levels import HospitalPosterior
from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture
from fl_dpbayes.posterior.hierarchical.sums import HospitalMeans
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.student import prepare_student

Floats = npt.NDArray[np.float64]
# How many values of a hospital's effect predictions average over.
NODES = 32
# E sigmoid(x + tau z) is close to sigmoid(x / sqrt(1 + .346 tau^2)).
ATTENUATION = 0.346
# The variance of an estimate that says nothing: no log odds are as far apart as its root.
UNKNOWN = 1e4


@dataclass(frozen=True)
class HospitalModel:
    """What predicts for hospitals: `posterior` of the `sites`' effects, in their order, and the model that they shift.

    `groups`: site -> group, empty for one level. `state`: the averaged state's log odds, intercept first, (1 + D,).
    `covariates`: public ones, with a first column of 1, (N, 1 + D).
    """

    sites: tuple[str, ...]
    groups: Mapping[str, str]
    posterior: HospitalPosterior
    state: Floats
    covariates: Floats

    def effect(self, site: str | None = None, group: str | None = None) -> NormalMixture:
        """Return the posterior of a training hospital's effect, or of a new one's, of a known group or of any."""
        if site in self.sites:
            return self.posterior.of_hospital(self.sites.index(site))
        known = self.group_names
        return self.posterior.of_new(known.index(group) if group in known else None)

    def without(self, site: str) -> NormalMixture:
        """Return the effect of a training hospital as the others alone foretell it."""
        at, whole = self.sites.index(site), self.posterior
        variances = whole.effects.variances.copy()
        variances[at] = UNKNOWN
        effects = replace(whole.effects, variances=variances)
        others = HospitalPosterior(effects, two_levels=whole.two_levels, largest_sd=whole.largest_sd)
        return others.of_hospital(at)

    @property
    def group_names(self) -> list[str]:
        """The groups that training hospitals are of, in order."""
        return sorted(set(self.groups.values()))

    @cached_property
    def conditional(self) -> Floats:
        """The log odds within a hospital of effect 0, (1 + D,).

        Slopes fitted across hospitals are marginal: within one they are larger by sqrt(1 + .346 tau^2), about the
        covariates' mean, where the level is that of the hospital. tau is the posterior's median, where data tell it.
        """
        told = [one for one in (self.posterior.between_hospitals, self.posterior.between_groups) if one.identified]
        longer = float(np.sqrt(1 + ATTENUATION * sum(spread.quantile(0.5) ** 2 for spread in told)))
        p = expit(self.covariates @ self.state)
        middle = np.average(self.covariates[:, 1:], axis=0, weights=p * (1 - p))
        slopes = self.state[1:]
        return np.concatenate([[self.state[0] - (longer - 1) * (middle @ slopes)], longer * slopes])

    def samples(self, effect: NormalMixture, shapes: Mapping[str, tuple[int, ...]]) -> PosteriorSamples:
        """Return parameters of the model, of these shapes, whose average prediction integrates over an effect."""
        intercepts = self.conditional[0] + effect.nodes(NODES)
        slopes = np.tile(self.conditional[1:], (NODES, 1))
        draws = np.column_stack([-slopes / 2, slopes / 2, -intercepts / 2, intercepts / 2])
        return PosteriorSamples(unflatten(draws, shapes), np.ones(NODES), np.zeros(NODES))

    def rate_interval(
        self, effect: NormalMixture, level: float, covariates: Floats | None = None
    ) -> tuple[float, float, float]:
        """Return the rate of class 1 that is expected of an effect, and its interval, without the chance of patients.

        `covariates`: over which it is the rate, (N, 1 + D); None: the public ones.
        """
        odds = (self.covariates if covariates is None else covariates) @ self.conditional
        rates = [float(expit(odds + theta).mean()) for theta in (*effect.interval(level), *effect.nodes(NODES))]
        return float(np.mean(rates[2:])), rates[0], rates[1]

    def described(self, level: float = 0.9) -> list[dict[str, Any]]:
        """Say how hospitals differ, as the summary's `hospitals` has it: spreads, new hospitals, and the sites."""
        spreads = {"hospitals": self.posterior.between_hospitals}
        spreads |= {"groups": self.posterior.between_groups} if self.groups else {}
        rows: list[dict[str, Any]] = [
            {"kind": "sd", "of": name, "value": spread.quantile(0.5), "interval": spread.interval(level),
             "among": spread.count, "identified": spread.identified}
            for name, spread in spreads.items()
        ]  # fmt: skip
        known = [("new", name, self.effect(group=name)) for name in ["", *self.group_names]]
        for kind, name, effect in [*known, *(("site", site, self.effect(site)) for site in self.sites)]:
            rate, *ends = self.rate_interval(effect, level)
            rows.append({"kind": kind, "of": name, "value": rate, "interval": ends})
        return rows


def public_covariates(scenario: Scenario, task: Task) -> Floats:
    """Return what the model's layer sees of the inputs that the scenario declares public, (N, D).

    Synthetic ones of a declared geometry are normal numbers of its spread: that is what the geometry says of records.
    Raises UserError as `prepare_student` does.
    """
    assert scenario.hierarchical is not None
    public, features = scenario.hierarchical.public, scenario.model.features
    if isinstance(public, SyntheticInputs) and isinstance(features, StandardFeatures):
        drawn = np.random.default_rng(public.seed).standard_normal((public.count, len(features.centers)))
        return features.spread * drawn
    found = prepare_student(public, task, scenario.model, labelled=False).features
    return found.reshape(len(found), -1).astype(np.float64)


def fit_hospitals(means: HospitalMeans, scenario: Scenario, covariates: Floats) -> HospitalModel:
    """Fit the posterior over hospitals to what a softmax model of two classes released; `covariates` as above.

    `means`: of its flat parameters, weights (2, D) then biases (2).
    """
    section, clip_norm = scenario.hierarchical, scenario.privacy.clip_norm or np.inf
    assert section is not None
    found, inputs = log_odds_means(means), np.column_stack([np.ones(len(covariates)), covariates])
    groups = {site: group for site in means.sites if (group := scenario.sites[site].group) is not None}
    names = sorted(set(groups.values()))
    numbers = np.array([names.index(groups[site]) if groups else 0 for site in means.sites])
    effects = logistic_effects(found, clipped_score(inputs, found.centre, clip_norm / np.sqrt(2)), numbers)
    posterior = HospitalPosterior(effects, two_levels=bool(groups), largest_sd=section.largest_sd)
    return HospitalModel(means.sites, groups, posterior, found.centre, inputs)
