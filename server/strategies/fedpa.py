"""Strategy: FedPA, federated posterior averaging."""

from collections.abc import Mapping

from fl_dpbayes.config import FedPA, RunWarning, prior_scale
from fl_dpbayes.errors import UserError
from fl_dpbayes.posterior import PerSite, PosteriorSamples, average_states, state_warnings
from fl_dpbayes.posterior.rules import fedpa
from fl_dpbayes.protocol import Arrays, prefixed, without_prefix
from server.check_reply import CheckedReply
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy

SERVER_STATE = "server state"


class FedPAStrategy(PosteriorStrategy):
    """Each round starts from the broadcast state with 1/K of the prior.

    The server takes one step along the deltas.

    A momentum or moment of a site's chain does not outlive the round: it belongs to that site's own
    posterior.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        rule = federation.scenario.aggregation
        assert isinstance(rule, FedPA)
        steps = self.plan.steps_per_round
        ends = range(steps, self.plan.chain_steps + 1, steps)
        samples = max(
            self.plan.kept_before(end) - self.plan.kept_before(end - steps) for end in ends
        )
        if samples < 2:
            raise UserError(
                "aggregation.rule 'fedpa' needs at least 2 samples of each site in a round, "
                f"training keeps {samples}: "
                "lower thinning, or take more steps per round"
            )
        steepest = 1 + (samples - 1) * rule.shrinkage
        self._shrinkage, self._learning_rate = rule.shrinkage, rule.learning_rate or 1 / steepest
        if self._learning_rate >= 2 / steepest:
            raise UserError(
                f"aggregation.learning_rate is {self._learning_rate:g}: with {samples} samples a "
                "round and shrinkage "
                f"{rule.shrinkage:g} steps grow without end unless it is below {2 / steepest:.3g}; leave it out for a "
                "stable one"
            )

    def next_state(
        self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]
    ) -> Arrays:
        """Take one step along the sites' deltas, or average their last states if no sample of the round is kept."""
        chain = self.chain_of(round_number)
        sampled = [
            site
            for site in replies
            if self.bank.round_samples(site, round_number, chain) is not None
        ]
        if sampled:
            moved = self._moved(sampled, round_number, chain, arrays)
        else:
            states = self.bank.states_of(list(replies), chain)
            self.record.warn(*state_warnings(states))
            moved = without_prefix("parameters", average_states(states, self.site_weights))
        state = self.initial_state(chain) | prefixed("parameters", moved)
        nothing = next(iter(replies.values())).samples
        self.bank.add(SERVER_STATE, round_number, chain, nothing, state)
        return state

    def _moved(self, sites: list[str], round_number: int, chain: int, arrays: Arrays) -> Arrays:
        def combined(of: list[str]) -> tuple[Arrays, tuple[RunWarning, ...]]:
            return fedpa.server_step(
                without_prefix("parameters", arrays),
                PerSite(of, lambda site: self.bank.round_samples(site, round_number, chain)),
                self.site_weights,
                shrinkage=self._shrinkage,
                prior_scale=prior_scale(self.federation.scenario.sampler),
                learning_rate=self._learning_rate,
            )

        try:
            moved, warnings = combined(sites)
        except ValueError as error:
            found = self.of_fitting(sites, combined, "left-out", round=round_number)
            if found is None:
                raise UserError(f"round {round_number}: {error}") from None
            moved, warnings = found
        self.record.warn(*warnings)
        return moved

    def posterior(self) -> PosteriorSamples | None:
        """Return the server's last state of each chain: FedPA gives points."""
        return self.last()

    def last(self) -> PosteriorSamples | None:
        """Return the server's last state of each chain."""
        return self.points_of(SERVER_STATE)
