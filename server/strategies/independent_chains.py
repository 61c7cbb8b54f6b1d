"""Strategy: every site runs its own chain to the end, and a rule makes one posterior of them."""

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
from fl_dpbayes.report import AggregationInputs
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy


class IndependentChainsStrategy(PosteriorStrategy):
    """Each chain goes on from its own last state, and the server state never changes.

    All chains of one number start from the same weights. A site that released too few samples for
    the rule is left out, with a warning.

    Attributes:
        rule: The scenario's aggregation rule.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        self.rule = federation.scenario.aggregation
        self._least_samples = self.rule.least_samples(federation.parameters)
        # The last one, by what it was made of: each site, the number of its samples and its weight.
        # The posterior is asked for more than once, and some rules take time.
        self._aggregates: dict[tuple[tuple[str, int, float], ...], Aggregate] = {}
        self._student = None
        model = federation.scenario.model
        if self.rule.inputs is not None:
            # Before any site spends budget, since a file that does not fit ends the run.
            self._student = prepare_student(
                self.rule.inputs,
                federation.roster.task,
                model,
                labelled=self.rule.needs_labels,
            )
            record.aggregation_inputs = AggregationInputs.model_validate(self._student.description)
        # A last layer on a frozen body has no hidden units of its own either, and starts at zero in
        # every chain.
        has_hidden_units = not isinstance(model, LogisticModel) and model.frozen_body is None
        if self.rule.averages_weights and has_hidden_units and self.plan.chains > 1:
            record.warn(warning("different-starts", rule=self.rule.rule, chains=self.plan.chains))

    def start_arrays(self, site: str, chain: int, arrays: Arrays) -> Arrays:
        """Return the site's last state in this chain; before its first reply the chain's start."""
        return self.bank.last(site, chain) or self.initial_state(chain)

    def posterior(self) -> AnySamples | None:
        """Return the rule's posterior of all sites' samples, or None if it cannot form one.

        It is the same at every call.
        """
        usable = self._usable_sites()
        if not usable:
            return None
        try:
            aggregate: Aggregate | None = self._combine(usable)
        except ValueError as error:
            self.record.warn(warning("rule-failed", rule=self.rule.rule, reason=str(error)))
            aggregate = self.combine_usable(usable, self._combine, "left-out-of-posterior")
        if aggregate is None:
            return None
        self.record.warn(*aggregate.warnings)
        return aggregate.samples

    def _combine(self, sites: list[str]) -> Aggregate:
        weights = self.weights_among(sites)
        parts = tuple((site, len(self.bank.sample_chains(site)), weights[site]) for site in sites)
        if parts not in self._aggregates:
            scenario = self.federation.scenario
            starts = [self.initial_state(chain) for chain in range(self.plan.chains)]
            released = Released(
                PerSite(sites, self.bank.stored),
                weights,
                scenario.sampler,
                self.federation.planned_sites,
                np.random.default_rng(scenario.seed),
                tuple(without_prefix("parameters", start) for start in starts),
                self._student,
            )
            self._aggregates = {parts: combine_sites(self.rule, released)}
        aggregate = self._aggregates[parts]
        if aggregate.facts:
            self.record.aggregation_inputs = AggregationInputs.model_validate(aggregate.facts)
        return aggregate

    def last(self) -> AnySamples | None:
        """Return one point per chain.

        Under averaging rules it is the average of its last states, else their mixture.
        """
        if isinstance(self.rule, AveragingRule):
            return self._averaged_last(self.rule)
        points = {}
        for site in self.chain_names():
            stored = self.bank.stored_last_states(site)
            if stored:
                points[site] = stored
        return joined(points, self.weights_among(points)) if points else None

    def _averaged_last(self, rule: AveragingRule) -> PosteriorSamples | None:
        points = []
        for chain in range(self.plan.chains):
            sites = [site for site in self.chain_names() if self.bank.has_last(site, chain)]
            if sites:
                average, warnings, _ = average_of_states(
                    self.bank.states_of(sites, chain),
                    self.initial_state(chain),
                    rule,
                    self.weights_among(sites),
                )
                points.append(point_of(average))
                self.record.warn(*warnings)
        return concatenate(points) if points else None

    def _usable_sites(self) -> list[str]:
        """Name the sites that released enough samples for the rule, and warn of the others."""
        usable = []
        for site in self.chain_names():
            samples = len(self.bank.sample_chains(site))
            if samples >= self._least_samples:
                usable.append(site)
            elif samples > 0:
                self.record.warn(
                    warning(
                        "too-few-for-rule",
                        site,
                        samples=samples,
                        rule=self.rule.rule,
                        least=self._least_samples,
                    )
                )
        return usable
