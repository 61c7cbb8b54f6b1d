"""Strategy: every site runs its own chain to the end.

A rule makes one posterior of what all of them released.
"""

import numpy as np

from fl_dpbayes.config import AveragingRule, LogisticModel, warning
from fl_dpbayes.posterior import (
    Aggregate,
    AnySamples,
    PerSite,
    PosteriorSamples,
    Released,
    average_of_states,
    combine_sites,
    concatenate,
    joined,
    point_of,
    prepare_student,
)
from fl_dpbayes.protocol import Arrays, without_prefix
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy


class IndependentChainsStrategy(PosteriorStrategy):
    """Each chain continues from its own last state, and all chains of one number start from the same weights.

    The server state never changes. A site that released too few samples for the rule is left out,
    with a warning.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        scenario, task = federation.scenario, federation.roster.task
        self.rule, model = scenario.aggregation, scenario.model
        self._least = self.rule.least_samples(federation.parameters)
        self._combined_last: tuple[object, Aggregate] | None = None
        self._student = None
        if self.rule.inputs is not None:
            # Before any site spends budget, since a file that does not fit ends the run.
            self._student = prepare_student(
                self.rule.inputs, task, model, labelled=self.rule.needs_labels
            )
            record.aggregation_inputs = dict(self._student.description)
        # A last layer on a frozen body has no hidden units of its own either, and starts at zero in
        # every chain.
        unaligned = not isinstance(model, LogisticModel) and model.frozen_body is None
        if self.rule.averages_weights and unaligned and self.plan.chains > 1:
            record.warn(warning("different-starts", rule=self.rule.rule, chains=self.plan.chains))

    def start_arrays(self, site: str, chain: int, arrays: Arrays) -> Arrays:
        """Return the last state that the site released in this chain, or the chain's start before its first reply."""
        return self.bank.last(site, chain) or self.initial_state(chain)

    def posterior(self) -> AnySamples | None:
        """Return the rule's posterior of all sites' samples, the same at every call, or None if it cannot form one."""
        usable = self._usable_sites()
        if not usable:
            return None
        try:
            aggregate: Aggregate | None = self._combined(usable)
        except ValueError as error:
            self.record.warn(warning("rule-failed", rule=self.rule.rule, reason=str(error)))
            aggregate = self.of_fitting(usable, self._combined, "left-out-of-posterior")
        if aggregate is None:
            return None
        self.record.warn(*aggregate.warnings)
        return aggregate.samples

    def _combined(self, sites: list[str]) -> Aggregate:
        # The posterior is asked for more than once, and some rules take time.
        weights = self.weights_among(sites)
        key = [(site, len(self.bank.sample_chains(site)), weights[site]) for site in sites]
        if self._combined_last is None or self._combined_last[0] != key:
            states = map(self.initial_state, range(self.plan.chains))
            starts = tuple(without_prefix("parameters", state) for state in states)
            samples, planned = PerSite(sites, self.bank.stored), self.federation.planned_sites
            sampler, generator = (
                self.federation.scenario.sampler,
                np.random.default_rng(self.federation.scenario.seed),
            )
            released = Released(
                samples, weights, sampler, planned, generator, starts, self._student
            )
            self._combined_last = key, combine_sites(self.rule, released)
        aggregate = self._combined_last[1]
        if aggregate.facts:
            self.record.aggregation_inputs = dict(aggregate.facts)
        return aggregate

    def last(self) -> AnySamples | None:
        """Return one point per chain: under averaging rules the average of its last states, else their mixture."""
        if isinstance(self.rule, AveragingRule):
            return self._averaged_last(self.rule)
        present = {
            site: points
            for site in self.chain_names()
            if (points := self.bank.stored_last_states(site))
        }
        return joined(present, self.weights_among(present)) if present else None

    def _averaged_last(self, rule: AveragingRule) -> PosteriorSamples | None:
        points = []
        for chain in range(self.plan.chains):
            sites = [site for site in self.chain_names() if self.bank.has_last(site, chain)]
            if sites:
                states = self.bank.states_of(sites, chain)
                average, warnings, _ = average_of_states(
                    states, self.initial_state(chain), rule, self.weights_among(sites)
                )
                points.append(point_of(average))
                self.record.warn(*warnings)
        return concatenate(points) if points else None

    def _usable_sites(self) -> list[str]:
        released = {site: len(self.bank.sample_chains(site)) for site in self.chain_names()}
        for site, count in released.items():
            if 0 < count < self._least:
                few = {"samples": count, "rule": self.rule.rule, "least": self._least}
                self.record.warn(warning("too-few-for-rule", site, **few))
        return [site for site, count in released.items() if count >= self._least]
