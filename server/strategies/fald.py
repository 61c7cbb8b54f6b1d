"""Strategy: FALD, federated averaging of Langevin chains."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import FALD, warning
from fl_dpbayes.posterior import (
    HOSPITALS,
    POOLED_ROUNDS,
    DriftMeter,
    PerSite,
    PosteriorSamples,
    StoredSamples,
    average_of_states,
    averaged_temperature,
    check_sums,
    checked_rounds,
    flatten_state,
    log_odds_means,
    point_of,
    pooled_round,
    site_means,
    summed_round,
    target_warnings,
    with_round,
)
from fl_dpbayes.privacy import planned_chain
from fl_dpbayes.protocol import Arrays, without_prefix
from server.check_reply import NO_SAMPLES, CheckedReply
from server.checkpoint import RoundEntry
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy

AVERAGED = "averaged chain"
# In standard deviations of the posterior: with as much, a 95 % interval holds the truth 83 times in
# 100.
LARGEST_DRIFT = 1.0


class FALDStrategy(PosteriorStrategy):
    """Each chain starts from the broadcast state with 1/K of the prior, and states are averaged.

    The averaged states are the samples. `burn_in` and `thinning` of the scenario apply to the
    averaged chain: at most one of its states is kept per round.
    """

    def __init__(self, federation: Federation, record: RunRecord) -> None:
        super().__init__(federation, record)
        rule = federation.scenario.aggregation
        assert isinstance(rule, FALD)
        self._rule = rule
        self._drift = DriftMeter(self.plan.steps_per_round)

    def restore(self, rounds: Sequence[RoundEntry]) -> None:
        """Go on after the last of a run's rounds, of each of which hospitals' scores are kept.

        Args:
            rounds: What the run's store holds of them.

        Raises:
            UserError: If the store does not hold what the run has kept of hospitals.
        """
        super().restore(rounds)
        if self.federation.scenario.hierarchical is not None and self.done_rounds:
            self._check_kept_of_hospitals()

    def next_state(
        self, round_number: int, arrays: Arrays, replies: Mapping[str, CheckedReply]
    ) -> Arrays:
        """Average the sites' last states, and keep the average as a sample after burn-in."""
        chain = self.chain_of(round_number)
        states = self.bank.states_of(list(replies), chain)
        weights = self.weights_among(replies)
        average, warnings, is_mean = average_of_states(states, arrays, self._rule, weights)
        self.record.warn(*warnings)

        steps_after_burn_in = self._steps_after_burn_in(replies)
        positions = PerSite(list(replies), lambda site: without_prefix("parameters", states[site]))
        if self.federation.scenario.hierarchical is not None:
            summed = self._summed_round(arrays, positions, replies)
            self._add_to_pooled_rounds(round_number, summed)
            if steps_after_burn_in > 0:
                self._add_to_hospital_sums(round_number, summed)
        if steps_after_burn_in > 0:
            mean_position = without_prefix("parameters", average)
            self._drift.add(positions, mean_position, self.site_weights)

        temperature = 0.0
        if is_mean:
            temperatures = {site: reply.stretch.temperature for site, reply in replies.items()}
            units = self.federation.roster.units
            temperature = averaged_temperature(temperatures, weights, units)
        sample = _sample(
            state=average,
            is_kept=self._is_kept(steps_after_burn_in),
            weight=max(reply.stretch.last_step_size for reply in replies.values()),
            temperature=temperature,
        )
        self.bank.add(AVERAGED, round_number, chain, sample, average)
        return average

    def _steps_after_burn_in(self, replies: Mapping[str, CheckedReply]) -> int:
        """Return how many steps of the chain lie after its burn-in; 0 or less within it."""
        last_step = max(reply.last_step for reply in replies.values())
        steps_of_chain = last_step % self.plan.chain_steps + 1
        return steps_of_chain - self.federation.scenario.training.burn_in

    def _is_kept(self, steps_after_burn_in: int) -> bool:
        training = self.federation.scenario.training
        is_thinned_in = steps_after_burn_in % training.thinning < training.steps_per_round
        return steps_after_burn_in > 0 and is_thinned_in

    def _summed_round(
        self, arrays: Arrays, positions: Mapping[str, Arrays], replies: Mapping[str, CheckedReply]
    ) -> dict[str, npt.NDArray]:
        """Return what a round adds to the sums of every site that took part."""
        shapes = self.federation.shapes
        units = self.federation.roster.units
        start = flatten_state(without_prefix("parameters", arrays), shapes)
        summed = {}
        for site, reply in replies.items():
            chain = planned_chain(self.plan, units[site])
            position = flatten_state(positions[site], shapes)
            summed[site] = summed_round(chain, reply.last_step, start, position)
        return summed

    def _add_to_pooled_rounds(self, round_number: int, summed: dict[str, npt.NDArray]) -> None:
        """Add a round, burn-in or not, to those that tell how the model's log odds spread."""
        pooled = pooled_round(log_odds_means(site_means(summed)), self.plan.total_rounds)
        rounds = with_round(self.bank.last(POOLED_ROUNDS, 0) or {}, pooled)
        self.bank.add(POOLED_ROUNDS, round_number, 0, NO_SAMPLES, rounds)

    def _check_kept_of_hospitals(self) -> None:
        """Refuse sums of hospitals, and pooled rounds, that are not those of the rounds so far."""
        scenario = self.federation.scenario
        parameters = self.federation.parameters
        sums = self.bank.last(HOSPITALS, 0) or {}
        pooled = self.bank.last(POOLED_ROUNDS, 0) or {}
        with self.record.store.reading():
            checked_rounds(pooled, range(self.done_rounds, self.done_rounds + 1), parameters)
            if self.done_rounds > scenario.training.burn_in:
                check_sums(sums, scenario, parameters)
            elif sums:
                raise ValueError("sums of hospitals are there before the burn-in's end")

    def _add_to_hospital_sums(self, round_number: int, summed: dict[str, npt.NDArray]) -> None:
        """Add a round after burn-in to the sums of which the posterior over hospitals is made."""
        sums: dict[str, npt.NDArray] = {**(self.bank.last(HOSPITALS, 0) or {})}
        for site, row in summed.items():
            sums[site] = sums.get(site, 0.0) + row
        self.bank.add(HOSPITALS, round_number, 0, NO_SAMPLES, sums)

    def chain_names(self) -> list[str]:
        """Name the one averaged chain."""
        return [AVERAGED]

    def posterior(self) -> StoredSamples | None:
        """Return the averaged states after burn-in, and warn where they are no posterior draws."""
        self.record.warn(
            *target_warnings(self._rule, self.site_weights, self.federation.roster.units)
        )
        drift = self._drift.drift()
        if drift is not None and drift > LARGEST_DRIFT:
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


def _sample(state: Arrays, is_kept: bool, weight: float, temperature: float) -> PosteriorSamples:
    """Return a state as one sample, or as none if it is not kept."""
    count = int(is_kept)
    return PosteriorSamples(
        arrays={name: array[:count] for name, array in point_of(state).arrays.items()},
        weights=np.full(count, weight),
        temperatures=np.full(count, temperature),
    )
