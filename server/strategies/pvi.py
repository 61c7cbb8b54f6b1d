"""Strategy: partitioned variational inference, whose site factors the server keeps."""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.config.aggregation import PVI, prior_scale
from fl_dpbayes.config.errors import RunWarning, warning
from fl_dpbayes.posterior.chains import unflatten
from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.rules.combine import posterior_aggregate
from fl_dpbayes.posterior.rules.pvi import PVIState, update_from_samples
from fl_dpbayes.posterior.samples import PerSite, PosteriorSamples, point_of
from fl_dpbayes.protocol.arrays import Arrays, check_cavity, prefixed
from fl_dpbayes.samplers.planned import planned_step_sizes
from server.check_reply import CheckedReply
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy

ENOUGH_EVIDENCE = 0.95
MOST_STIFFNESS = 0.4


class PVIStrategy(PosteriorStrategy):
    """Each round every site samples its likelihood times its cavity, starting from the mean of the global q.

    The factors follow from the bank alone, by replaying its rounds: sites keep nothing between rounds, none of them
    can present a factor that its released samples do not have, and a server that was stopped finds them again.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        rule = federation.scenario.aggregation
        assert isinstance(rule, PVI)
        self._draws, self._damping = rule.draws, rule.damping or 1 / federation.planned_sites
        self._rounds, self._refined = 0, self._prior()

    def initial_state(self, chain: int) -> Arrays:
        """Return q's mean after as many rounds, or the model's initial weights before the first factor.

        Hidden units need not be zero but must agree between sites: the prior's mean would not tell them apart.
        """
        self._refine(chain)
        state = super().initial_state(0)
        return state | prefixed("parameters", self._mean()) if self._refined.factors else state

    def cavity(self, site: str) -> Arrays:
        """Return q without the site's own factor, as it stood when the round's start was formed."""
        return self._arrays(self._refined.cavity(site))

    def next_state(self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]) -> Arrays:
        """Update the factors of the sites that answered, and return q's mean."""
        return self.initial_state(round_number)

    def posterior(self) -> PosteriorSamples | None:
        """Return draws from q, the same at every call, or None if no site has a factor."""
        self._refine(self.plan.total_rounds)
        if not self._refined.factors:
            return None
        self.record.warn(*self._factor_warnings(), *self._step_warnings())
        generator = np.random.default_rng(self.federation.scenario.seed)
        draws = self._refined.posterior.sample(self._draws, generator)
        return posterior_aggregate(draws, self.federation.shapes, ()).samples.in_memory()

    def _factor_warnings(self) -> tuple[RunWarning, ...]:
        """Say how much evidence is used and how noisy factors are; the remedy of the one worsens the other."""
        used = 1 - (1 - self._damping) ** self.plan.total_rounds
        if used >= ENOUGH_EVIDENCE:
            return (*self._refined.warnings, *self._refined.noisy_factors)
        short = {"rounds": self.plan.total_rounds, "damping": self._damping, "used": used}
        negative = self._refined.negative
        if not negative:
            return (warning("evidence-unused", **short), *self._refined.warnings)
        worst = max(negative, key=lambda site: negative[site])
        directions = len(self._refined.posterior.precision_mean)
        noisy = warning("evidence-unused-noisy", **short, negative=negative[worst], directions=directions, worst=worst)
        return (noisy, *self._refined.warnings)

    def _step_warnings(self) -> tuple[RunWarning, ...]:
        # A site's chain feels the whole of q over its own few units: at step a its stationary variance in a direction
        # of precision L is 1 / (1 - a L / (2 n)) times too large, and beyond a L / n = 2 it grows without end.
        if self.plan.sampler.state_vectors != ("parameters",):
            return ()
        smallest = min(self.federation.roster.training, key=lambda member: member.card.units).card
        stiffness = float(planned_step_sizes(self.plan).max() * self._refined.posterior.precision.max())
        if stiffness / smallest.units <= MOST_STIFFNESS:
            return ()
        long = stiffness / smallest.units
        return (warning("step-too-long", units=smallest.units, smallest=smallest.name, stiffness=long),)

    def last(self) -> PosteriorSamples | None:
        """Return q's mean, or None if no site has a factor."""
        self._refine(self.plan.total_rounds)
        return point_of(prefixed("parameters", self._mean())) if self._refined.factors else None

    def _prior(self) -> PVIState:
        parameters = self.federation.parameters
        precision = np.full(parameters, prior_scale(self.federation.scenario.sampler) ** -2)
        return PVIState(NaturalGaussian(precision, np.zeros(parameters)))

    def _refine(self, rounds: int) -> None:
        if rounds < self._rounds:
            self._rounds, self._refined = 0, self._prior()
        for number in range(self._rounds + 1, rounds + 1):
            self._refined = self._updated(self._refined, number)
            self._rounds = number

    def _updated(self, state: PVIState, round_number: int) -> PVIState:
        # What one site sent must not cost the others their round, whose privacy is spent, nor the rounds to come: a
        # cavity that is too sharp for the planned steps makes every other chain diverge.
        sites = [site for site in self.site_weights if self._samples(site, round_number) is not None]
        while sites:
            try:
                updated = self._combined(state, sites, round_number)
            except ValueError as error:
                sites = self._fitting(state, sites, round_number, error)
                continue
            # Beyond a L / n = 2 (2 - alpha) with friction alpha, step size times precision over units, a chain on
            # N(m, 1/L) diverges: beyond 2 for Langevin steps w <- w - a d, 2 (1 + beta) with m <- beta m + d.
            if self._stiffness(updated) < 2 * (2 - self.plan.sampler.momentum_lost):
                return updated
            sharpest = max(sites, key=lambda site: updated.factors[site].precision.max())
            self.record.warn(warning("old-factor-too-sharp", sharpest, round=round_number))
            sites = [site for site in sites if site != sharpest]
        return state

    def _fitting(self, state: PVIState, sites: list[str], round_number: int, error: ValueError) -> list[str]:
        fitting = self.fitting(
            sites, lambda of: self._combined(state, of, round_number), "old-factor", round=round_number
        )
        if fitting != sites:
            return fitting
        # Each fits alone and all together do not: the one that went furthest is what makes them not fit.
        furthest = max(sites, key=lambda site: self._extent(state, site, round_number))
        self.record.warn(warning("old-factor-jointly", furthest, round=round_number, reason=str(error)))
        return [site for site in sites if site != furthest]

    def _extent(self, state: PVIState, site: str, round_number: int) -> float:
        factor = self._combined(state, [site], round_number).factors[site]
        return max(float(np.abs(factor.precision).max()), float(np.abs(factor.precision_mean).max()))

    def _stiffness(self, state: PVIState) -> float:
        step_size = float(planned_step_sizes(self.plan).max())
        return max(
            step_size * float(state.cavity(member.card.name).precision.max()) / member.card.units
            for member in self.federation.roster.training
        )

    def _combined(self, state: PVIState, sites: list[str], round_number: int) -> PVIState:
        samples = PerSite(sites, lambda site: self._samples(site, round_number))
        updated = update_from_samples(state, samples, damping=self._damping)
        for site in self.site_weights:
            check_cavity(self._arrays(updated.cavity(site)), self.federation.shapes)
        return updated

    def _samples(self, site: str, round_number: int) -> PosteriorSamples | None:
        samples = self.bank.round_samples(site, round_number, self.chain_of(round_number))
        if samples is None:
            return None
        # The order of the parameters in q must not depend on that in a file.
        arrays = {name: samples.arrays[name] for name in self.federation.shapes}
        return PosteriorSamples(arrays, samples.weights, samples.temperatures)

    def _mean(self) -> Arrays:
        mean = unflatten(self._refined.posterior.mean[np.newaxis], self.federation.shapes)
        return {name: array[0] for name, array in mean.items()}

    def _arrays(self, gaussian: NaturalGaussian) -> Arrays:
        rows = unflatten(np.stack([gaussian.mean, gaussian.precision]), self.federation.shapes)
        return prefixed("mean", {name: array[0] for name, array in rows.items()}) | prefixed(
            "precision", {name: array[1] for name, array in rows.items()}
        )
