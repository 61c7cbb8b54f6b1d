"""The federation's one model with a posterior over hospitals on its intercept: predictions for any hospital."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.posterior.chains import unflatten
from fl_dpbayes.posterior.hierarchical.effects import clipped_score, log_odds_means, logistic_effects
from fl_dpbayes.posterior.hierarchical.levels import Effects, HospitalPosterior
from fl_dpbayes.posterior.hierarchical.mixture import NormalMixture
from fl_dpbayes.posterior.hierarchical.sums import HospitalMeans
from fl_dpbayes.posterior.samples import PosteriorSamples

Floats = npt.NDArray[np.float64]
# How many values of a hospital's effect predictions average over.
NODES = 32
# E sigmoid(x + tau z) is close to sigmoid(x / sqrt(1 + .346 tau^2)).
ATTENUATION = 0.346


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
        """Return the effect of a training hospital as if it were new: what all others say of one of its group."""
        kept, effects = np.array([name != site for name in self.sites]), self.posterior.effects
        if not kept.any():
            raise UserError(f"{site} trained alone, so nothing is known of hospitals but by its own records")
        group = int(effects.groups[self.sites.index(site)])
        names, numbers = np.unique(effects.groups[kept], return_inverse=True)
        others = Effects(effects.estimates[kept], effects.variances[kept], numbers)
        posterior = HospitalPosterior(
            others, two_levels=self.posterior.two_levels, largest_sd=self.posterior.largest_sd
        )
        known = names.tolist()
        return posterior.of_new(known.index(group) if group in known else None)

    @property
    def group_names(self) -> list[str]:
        """The groups that training hospitals are of, in order."""
        return sorted(set(self.groups.values()))

    @cached_property
    def conditional(self) -> Floats:
        """The log odds within a hospital of effect 0, (1 + D,).

        Slopes fitted across hospitals are marginal: within one they are larger by sqrt(1 + .346 tau^2), about the
        covariates' mean, where the level is that of the hospital.
        """
        spread = self.posterior.between_hospitals.mean_square + self.posterior.between_groups.mean_square
        longer = float(np.sqrt(1 + ATTENUATION * spread))
        p = expit(self.covariates @ self.state)
        middle = np.average(self.covariates[:, 1:], axis=0, weights=p * (1 - p))
        slopes = self.state[1:]
        return np.concatenate([[self.state[0] - (longer - 1) * (middle @ slopes)], longer * slopes])

    def samples(self, effect: NormalMixture | Floats, shapes: Mapping[str, tuple[int, ...]]) -> PosteriorSamples:
        """Return parameters of the model, of these shapes, whose average prediction integrates over an effect."""
        nodes = effect.nodes(NODES) if isinstance(effect, NormalMixture) else effect
        intercepts = self.conditional[0] + nodes
        slopes = np.tile(self.conditional[1:], (len(nodes), 1))
        draws = np.column_stack([-slopes / 2, slopes / 2, -intercepts / 2, intercepts / 2])
        return PosteriorSamples(unflatten(draws, shapes), np.ones(len(nodes)), np.zeros(len(nodes)))

    def rates(self, effects: Floats, covariates: Floats | None = None) -> Floats:
        """Return the rate of class 1 over covariates (N, 1 + D), the public ones by default, at effects (M,)."""
        found = (self.covariates if covariates is None else covariates) @ self.conditional
        return np.array([expit(found + effect).mean() for effect in np.atleast_1d(effects)])

    def rate_interval(
        self, effect: NormalMixture, level: float, covariates: Floats | None = None
    ) -> tuple[float, float, float]:
        """Return the expected rate and its interval, without the chance of single patients, which is not in it."""
        low, high = self.rates(np.array(effect.interval(level)), covariates)
        return float(self.rates(effect.nodes(NODES), covariates).mean()), float(low), float(high)


def fit_hospitals(
    means: HospitalMeans, groups: Mapping[str, str], covariates: Floats, clip_norm: float, largest_sd: float
) -> HospitalModel:
    """Fit the posterior over hospitals to what a softmax model of two classes released.

    `means`: of its flat parameters, weights (2, D) then biases (2). `groups`: site -> group, empty for one level.
    `covariates`: public, (N, D). `clip_norm`: C, infinite where nothing was clipped.
    """
    found, inputs = log_odds_means(means), np.column_stack([np.ones(len(covariates)), covariates])
    names = sorted({groups[site] for site in means.sites}) if groups else [""]
    numbers = np.array([names.index(groups.get(site, "")) for site in means.sites])
    score = clipped_score(inputs, found.centre, clip_norm / np.sqrt(2))
    effects = logistic_effects(found, score, numbers)
    posterior = HospitalPosterior(effects, two_levels=bool(groups), largest_sd=largest_sd)
    return HospitalModel(means.sites, {site: groups[site] for site in means.sites if groups}, posterior,
                         found.centre, inputs)  # fmt: skip


def check_known(model: HospitalModel, site: str | None, group: str | None) -> None:
    """Check that a hospital is one that trained, and a group one of theirs, or raise UserError with the names."""
    names = (("--site", "hospitals", site, list(model.sites)), ("--group", "groups", group, model.group_names))
    for key, kind, given, known in names:
        if given is not None and given not in known:
            shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
            said = f"{key} {given[:60]!r} is none of the run's training {kind} ({shown or 'none'})"
            raise UserError(f"{said}: give one of them, or leave it out for a new one")
