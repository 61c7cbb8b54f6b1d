"""Strategy: FALD, federated averaging of Langevin chains."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import FALD, warning
from fl_dpbayes.posterior import (
    HOSPITALS,
    DriftMeter,
    PerSite,
    PosteriorSamples,
    StoredSamples,
    average_of_states,
    averaged_temperature,
    flatten_state,
    point_of,
    summed_round,
    target_warnings,
)
from fl_dpbayes.privacy import planned_chain
from fl_dpbayes.protocol import Arrays, without_prefix
from server.check_reply import CheckedReply
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.rounds import NOTHING
from server.strategies.strategy import PosteriorStrategy

AVERAGED = "averaged chain"
# In standard deviations of the posterior: with as much, a 95 % interval holds the truth 83 times in
# 100.
LARGEST_DRIFT = 1.0


class FALDStrategy(PosteriorStrategy):
    """Each chain starts from the broadcast state with 1/K of the prior.

    The averaged states are the samples.

    `burn_in` and `thinning` of the scenario apply to the averaged chain: at most one of its states
    is kept per round.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        rule = federation.scenario.aggregation
        assert isinstance(rule, FALD)
        self._rule = rule
        self._drift = DriftMeter(self.plan.steps_per_round)

    def next_state(
        self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]
    ) -> Arrays:
        """Average the sites' last states, and keep the average as a sample after burn-in."""
        chain = self.chain_of(round_number)
        states = self.bank.states_of(list(replies), chain)
        weights = self.weights_among(replies)
        state, warnings, is_mean = average_of_states(states, arrays, self._rule, weights)
        self.record.warn(*warnings)
        training, last_step = (
            self.federation.scenario.training,
            max(reply.last_step for reply in replies.values()),
        )
        beyond = last_step % self.plan.chain_steps + 1 - training.burn_in
        if beyond > 0:
            positions = PerSite(
                list(replies), lambda site: without_prefix("parameters", states[site])
            )
            self._drift.add(positions, without_prefix("parameters", state), self.site_weights)
            if self.federation.scenario.hierarchical is not None:
                self._add_to_sums(round_number, arrays, positions, replies)
        heat = {site: reply.stretch.temperature for site, reply in replies.items()}
        units = self.federation.roster.units
        temperature = averaged_temperature(heat, weights, units) if is_mean else 0.0
        kept = int(beyond > 0 and beyond % training.thinning < training.steps_per_round)
        size = max(reply.stretch.last_step_size for reply in replies.values())
        arrays = {name: array[:kept] for name, array in point_of(state).arrays.items()}
        sample = PosteriorSamples(arrays, np.full(kept, size), np.full(kept, temperature))
        self.bank.add(AVERAGED, round_number, chain, sample, state)
        return state

    def _add_to_sums(
        self,
        round_number: int,
        arrays: Arrays,
        stepped: Mapping[str, Arrays],
        replies: Mapping[str, CheckedReply],
    ) -> None:
        shapes, units = self.federation.shapes, self.federation.roster.units
        sums: dict[str, npt.NDArray] = {**(self.bank.last(HOSPITALS, 0) or {})}
        start = flatten_state(without_prefix("parameters", arrays), shapes)
        for site, reply in replies.items():
            planned, state = (
                planned_chain(self.plan, units[site]),
                flatten_state(stepped[site], shapes),
            )
            sums[site] = sums.get(site, 0.0) + summed_round(planned, reply.last_step, start, state)
        self.bank.add(HOSPITALS, round_number, 0, NOTHING, sums)

    def chain_names(self) -> list[str]:
        """Name the one averaged chain."""
        return [AVERAGED]

    def posterior(self) -> StoredSamples | None:
        """Return the averaged states after burn-in.

        Say where they are not draws of the posterior.
        """
        self.record.warn(
            *target_warnings(self._rule, self.site_weights, self.federation.roster.units)
        )
        if (drift := self._drift.drift() or 0.0) > LARGEST_DRIFT:
            self.record.warn(warning("drift", steps=self.plan.steps_per_round, drift=drift))
        return self.bank.stored(AVERAGED)

    def averaged_temperature(self) -> float | None:
        """Return the mean temperature of the averaged states.

        None before the first, and where they have none.
        """
        stored = self.bank.stored(AVERAGED)
        if stored is None or not (stored.temperatures > 0).all():
            return None
        return float(np.average(stored.temperatures, weights=stored.weights))

    def last(self) -> PosteriorSamples | None:
        """Return the last averaged state of each chain."""
        return self.points_of(AVERAGED)
