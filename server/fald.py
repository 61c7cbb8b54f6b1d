"""Strategy: FALD, federated averaging of Langevin chains."""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.aggregation.fald import averaged_temperature
from fl_dpbayes.aggregation_section import FALD
from fl_dpbayes.posterior.samples import PosteriorSamples, concatenate
from fl_dpbayes.posterior.stored_samples import StoredSamples
from fl_dpbayes.protocol.arrays import Arrays
from fl_dpbayes.protocol.plan import TrainingPlan
from fl_dpbayes.scenario import training_plan
from server.check_reply import CheckedReply
from server.robust_average import average_of_states
from server.strategy import PosteriorStrategy, point_of

AVERAGED = "averaged chain"


class FALDStrategy(PosteriorStrategy):
    """Each chain starts from the broadcast state with 1/K of the prior; the averaged states are the samples.

    `burn_in` and `thinning` of the scenario apply to the averaged chain: at most one of its states is kept per round.
    """

    def site_plan(self, sites: int) -> TrainingPlan:
        """Return the scenario's plan with 1/K of the prior (convention A); sites send their last state only."""
        plan = training_plan(self.federation.scenario, prior_share=1.0 / sites, chain_start="broadcast")
        return plan.model_copy(update={"burn_in": 0, "thinning": plan.chain_steps})

    def start_arrays(self, site: str, chain: int, arrays: Arrays) -> Arrays:
        """Return the averaged state of the last round."""
        return arrays

    def next_state(self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]) -> Arrays:
        """Average the sites' last states, and keep the average as a sample after burn-in."""
        rule = self.federation.scenario.aggregation
        assert isinstance(rule, FALD)
        states = self.bank.states_of(list(replies), self.chain_of(round_number))
        state, warnings = average_of_states(states, arrays, rule, self.site_weights)
        for warning in warnings:
            self.record.warn(warning)
        last_step = max(reply.last_step for reply in replies.values())
        temperature = averaged_temperature(
            {site: reply.stretch.temperature for site, reply in replies.items()}, self.site_weights
        )
        kept = self._is_kept(last_step + 1)
        size = max(reply.stretch.last_step_size for reply in replies.values())
        sample = PosteriorSamples(
            arrays={name: array[: int(kept)] for name, array in point_of(state).arrays.items()},
            weights=np.full(int(kept), size),
            temperatures=np.full(int(kept), temperature),
        )
        self.bank.add(AVERAGED, round_number, self.chain_of(round_number), sample, state)
        return state

    def _is_kept(self, steps: int) -> bool:
        training = self.federation.scenario.training
        beyond = (steps - 1) % self.plan.chain_steps + 1 - training.burn_in
        return beyond > 0 and beyond % training.thinning < training.steps_per_round

    def chain_names(self) -> list[str]:
        """Name the one averaged chain."""
        return [AVERAGED]

    def posterior(self) -> StoredSamples | None:
        """Return the averaged states after burn-in."""
        return self.bank.stored(AVERAGED)

    def last(self) -> PosteriorSamples | None:
        """Return the last averaged state of each chain."""
        states = [point_of(state) for state in self.bank.last_states(AVERAGED)]
        return concatenate(states) if states else None
