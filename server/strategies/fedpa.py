"""Strategy: FedPA, federated posterior averaging."""

from collections.abc import Mapping

from fl_dpbayes.config import FedPA, RunWarning, TrainingPlan, prior_scale
from fl_dpbayes.errors import UserError
from fl_dpbayes.posterior import PerSite, PosteriorSamples, average_states, state_warnings
from fl_dpbayes.posterior.rules import fedpa
from fl_dpbayes.protocol import Arrays, prefixed, without_prefix
from server.check_reply import NO_SAMPLES, CheckedReply
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy

SERVER_STATE = "server state"


class FedPAStrategy(PosteriorStrategy):
    """Each round starts from the broadcast state, and the server takes one step along the deltas.

    Each chain has 1/K of the prior. A momentum or moment of a site's chain does not outlive the
    round: it belongs to that site's own posterior.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        rule = federation.scenario.aggregation
        assert isinstance(rule, FedPA)
        self._shrinkage = rule.shrinkage
        self._learning_rate = _learning_rate(rule, self.plan)

    def next_state(
        self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]
    ) -> Arrays:
        """Take one step along the sites' deltas, or average last states if no sample is kept."""
        chain = self.chain_of(round_number)
        sampled = [
            site
            for site in replies
            if self.bank.round_samples(site, round_number, chain) is not None
        ]
        if sampled:
            parameters = self._server_step(sampled, round_number, chain, arrays)
        else:
            states = self.bank.states_of(list(replies), chain)
            self.record.warn(*state_warnings(states))
            average = average_states(states, self.site_weights)
            parameters = without_prefix("parameters", average)
        state = self.initial_state(chain) | prefixed("parameters", parameters)
        self.bank.add(SERVER_STATE, round_number, chain, NO_SAMPLES, state)
        return state

    def _server_step(
        self, sites: list[str], round_number: int, chain: int, arrays: Arrays
    ) -> Arrays:
        """Return the server's parameters after one step along the sites' deltas."""

        def step(sites: list[str]) -> tuple[Arrays, tuple[RunWarning, ...]]:
            return fedpa.server_step(
                without_prefix("parameters", arrays),
                PerSite(sites, lambda site: self.bank.round_samples(site, round_number, chain)),
                self.site_weights,
                shrinkage=self._shrinkage,
                prior_scale=prior_scale(self.federation.scenario.sampler),
                learning_rate=self._learning_rate,
            )

        try:
            parameters, warnings = step(sites)
        except ValueError as error:
            of_usable = self.combine_usable(sites, step, "left-out", round=round_number)
            if of_usable is None:
                raise UserError(f"round {round_number}: {error}") from None
            parameters, warnings = of_usable
        self.record.warn(*warnings)
        return parameters

    def posterior(self) -> PosteriorSamples | None:
        """Return the server's last state of each chain: FedPA gives points."""
        return self.last()

    def last(self) -> PosteriorSamples | None:
        """Return the server's last state of each chain."""
        return self.points_of(SERVER_STATE)


def _learning_rate(rule: FedPA, plan: TrainingPlan) -> float:
    """Return the rule's learning rate, or one over the steepest slope that a step can meet.

    The slope is 1 + (M - 1) s for M samples a round and shrinkage s.

    Raises:
        UserError: A round keeps too few samples, or the rule's learning rate is not stable.
    """
    steps = plan.steps_per_round
    samples = max(
        plan.kept_before(end) - plan.kept_before(end - steps)
        for end in range(steps, plan.chain_steps + 1, steps)
    )
    if samples < 2:
        raise UserError(
            "aggregation.rule 'fedpa' needs at least 2 samples of each site in a round, "
            f"training keeps {samples}: lower thinning, or take more steps per round"
        )
    steepest = 1 + (samples - 1) * rule.shrinkage
    learning_rate = rule.learning_rate or 1 / steepest
    if learning_rate >= 2 / steepest:
        raise UserError(
            f"aggregation.learning_rate is {learning_rate:g}: with {samples} samples a round and "
            f"shrinkage {rule.shrinkage:g} steps grow without end unless it is below "
            f"{2 / steepest:.3g}; leave it out for a stable one"
        )
    return learning_rate
