"""Strategy: every site runs its own chain to the end; a rule makes one posterior of what all of them released."""

from collections.abc import Callable, Iterable

import numpy as np

from fl_dpbayes.config.aggregation import FedAvg, Mixture, least_samples, prior_share
from fl_dpbayes.config.distillation import DistillingRule
from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.scenario import training_plan
from fl_dpbayes.config.task import LogisticModel
from fl_dpbayes.config.warning import warning
from fl_dpbayes.posterior.robust_average import average_of_states
from fl_dpbayes.posterior.rules.aggregate import Aggregate
from fl_dpbayes.posterior.rules.combine_sites import combine_sites
from fl_dpbayes.posterior.rules.mixture import combine_stored
from fl_dpbayes.posterior.samples import PosteriorSamples, concatenate, point_of
from fl_dpbayes.posterior.site_samples import SiteSamples
from fl_dpbayes.posterior.stored_samples import AnySamples, StoredSamples
from fl_dpbayes.protocol.arrays import Arrays, without_prefix
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy


class IndependentChainsStrategy(PosteriorStrategy):
    """Each chain continues from its own last state, and all chains of one number start from the same weights.

    The server state never changes. A site that released too few samples for the rule is left out, with a warning.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        self.rule = federation.scenario.aggregation
        self._least = least_samples(self.rule, federation.parameters)
        model = federation.scenario.model
        on_predictions = isinstance(self.rule, Mixture | DistillingRule)
        # A last layer on a frozen body has no hidden units of its own either, and starts at zero in every chain.
        aligned = on_predictions or isinstance(model, LogisticModel) or model.frozen_body is not None
        if self.plan.chains > 1 and not aligned:
            record.warn(warning("different-starts", rule=self.rule.rule, chains=self.plan.chains))

    def site_plan(self, sites: int) -> TrainingPlan:
        """Return the scenario's plan with the share of the prior that the rule asks for."""
        scenario = self.federation.scenario
        return training_plan(scenario, prior_share=prior_share(scenario.aggregation, sites), chain_start="own_last")

    def start_arrays(self, site: str, chain: int, arrays: Arrays) -> Arrays:
        """Return the last state that the site released in this chain, or the chain's start before its first reply."""
        return self.bank.last(site, chain) or self.initial_state(chain)

    def posterior(self) -> AnySamples | None:
        """Return the rule's posterior of all sites' samples, the same at every call, or None if it cannot form one."""
        usable = self._usable_sites()
        if not usable:
            return None
        if isinstance(self.rule, Mixture):
            return combine_stored(_present(usable, self.bank.stored), self.site_weights)
        try:
            aggregate = self._combined(usable)
        except ValueError as error:
            self.record.warn(warning("rule-failed", rule=self.rule.rule, reason=str(error)))
            fitting = self.fitting(usable, self._combined, "left-out-of-posterior")
            if not fitting or fitting == usable:
                return None
            aggregate = self._combined(fitting)
        self.record.warn(*aggregate.warnings)
        return aggregate.samples

    def _combined(self, sites: list[str]) -> Aggregate:
        scenario = self.federation.scenario
        return combine_sites(
            self.rule,
            SiteSamples(sites, self.bank.samples),
            self.site_weights,
            sampler=scenario.sampler,
            sites=self.federation.planned_sites,
            start=self._mean_start(),
            generator=np.random.default_rng(scenario.seed),
        )

    def last(self) -> AnySamples | None:
        """Return one point per chain: FedAvg's average of its last states, else the mixture of them over sites."""
        if isinstance(self.rule, FedAvg):
            return self._averaged_last(self.rule)
        present = _present(self.chain_names(), self.bank.stored_last_states)
        return combine_stored(present, self.site_weights) if present else None

    def _averaged_last(self, rule: FedAvg) -> PosteriorSamples | None:
        points = []
        for chain in range(self.plan.chains):
            sites = [site for site in self.chain_names() if self.bank.has_last(site, chain)]
            if sites:
                states = self.bank.states_of(sites, chain)
                average, warnings, _ = average_of_states(states, self.initial_state(chain), rule, self.site_weights)
                points.append(point_of(average))
                self.record.warn(*warnings)
        return concatenate(points) if points else None

    def _mean_start(self) -> Arrays:
        starts = [without_prefix("parameters", self.initial_state(chain)) for chain in range(self.plan.chains)]
        return {name: np.mean([start[name] for start in starts], axis=0, dtype=np.float32) for name in starts[0]}

    def _usable_sites(self) -> list[str]:
        released = {site: len(self.bank.sample_chains(site)) for site in self.chain_names()}
        for site, count in released.items():
            if 0 < count < self._least:
                few = {"samples": count, "rule": self.rule.rule, "least": self._least}
                self.record.warn(warning("too-few-for-rule", site, **few))
        return [site for site, count in released.items() if count >= self._least]


def _present(sites: Iterable[str], stored: Callable[[str], StoredSamples | None]) -> dict[str, StoredSamples]:
    return {site: samples for site in sites if (samples := stored(site)) is not None}
