"""The private chains of `aggregation`: each site's own, those that are averaged between rounds, and one on all records.

Every step is taken by the function that a hospital's client calls, and states are combined by the functions that the
server's strategies call; only the messages between them are left out.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import arrays_to_vector, to_vector, vector_to_arrays
from fl_dpbayes.models.priors import Cavity
from fl_dpbayes.posterior.averages import average_states
from fl_dpbayes.posterior.rules import fedpa
from fl_dpbayes.posterior.rules.fald import averaged_temperature
from fl_dpbayes.posterior.samples import PosteriorSamples, concatenate
from fl_dpbayes.posterior.site_weights import unit_weights
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.solve import SolvedNoise, solve_plan
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.protocol.arrays import Arrays
from fl_dpbayes.run.reproduce.aggregation_sites import Hospitals
from fl_dpbayes.run.reproduce.closer_recalibration_sites import Labelled
from fl_dpbayes.samplers.chain import ChainResult, ChainStart, run_chain
from fl_dpbayes.samplers.minibatch import TrainingRecords
from fl_dpbayes.samplers.planned import PlannedChain

STEPS, BURN_IN, THINNING = 60, 30, 2
PRIOR_SCALE = 1.0
CENTRAL = "central"


@dataclass(frozen=True)
class ChainSettings:
    """What is chosen for a chain: step size a and clip norm C. The noise is what the budget asks for."""

    step_size: float
    clip_norm: float


@dataclass(frozen=True)
class Budget:
    """What one hospital may spend on a whole chain."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Chains:
    """Released samples by site (or of the one chain that all sites share), and what each site's chain cost."""

    samples: Mapping[str, PosteriorSamples]
    history: History


def plan_of(settings: ChainSettings, budget: Budget, *, prior_share: float, rounds: int = 1) -> TrainingPlan:
    """Make the plan of a chain: full batches, so that its accounting is exact, and a Gaussian prior.

    Args:
        settings: of the chain.
        budget: of the whole chain.
        prior_share: s in (0, 1].
        rounds: a divisor of the number of steps.

    Returns:
        The plan.
    """
    return TrainingPlan.model_validate(
        {
            "rounds": rounds, "steps_per_round": STEPS // rounds, "burn_in": BURN_IN, "thinning": THINNING,
            "prior_share": prior_share, "chain_start": "broadcast",
            "sampler": {
                "kind": "dp-sgld", "step_size": {"kind": "constant", "initial": settings.step_size},
                "prior": {"kind": "gaussian", "scale": PRIOR_SCALE},
            },
            "privacy": {**asdict(budget), "clip_norm": settings.clip_norm, "sampling_rate": 1.0},
        }
    )  # fmt: skip


def independent_chains(
    hospitals: Hospitals, settings: ChainSettings, budget: Budget, prior_share: float, seed: int
) -> Chains:
    """Run each site's chain to its end; the same seed gives all settings the same noise.

    Args:
        hospitals: the sites.
        settings: of every chain.
        budget: of each site.
        prior_share: s in (0, 1].
        seed: of the noise.

    Returns:
        Each site's samples after burn-in.
    """
    plan = plan_of(settings, budget, prior_share=prior_share)
    solved = solved_noise(plan)
    samples = {
        name: SiteChain(hospitals, name, records, plan, solved, seed).from_start()
        for name, records in hospitals.training.items()
    }
    return Chains(samples, solved.history)


def central_chain(hospitals: Hospitals, settings: ChainSettings, budget: Budget, seed: int) -> Chains:
    """Run one chain on all training records in one place, at the budget that a single site has.

    Args:
        hospitals: whose records are pooled.
        settings: of the chain.
        budget: of the chain.
        seed: of the noise.

    Returns:
        The chain's samples under the name `central`.
    """
    sites = hospitals.training.values()
    pooled = Labelled(np.concatenate([s.features for s in sites]), np.concatenate([s.labels for s in sites]))
    plan = plan_of(settings, budget, prior_share=1.0)
    solved = solved_noise(plan)
    return Chains({CENTRAL: SiteChain(hospitals, CENTRAL, pooled, plan, solved, seed).from_start()}, solved.history)


def averaged_chain(hospitals: Hospitals, settings: ChainSettings, budget: Budget, rounds: int, seed: int) -> Chains:
    """Run FALD: every round starts at the average of the sites' last states, and that average is the sample.

    Args:
        hospitals: the sites.
        settings: of every chain.
        budget: of each site.
        rounds: a divisor of the number of steps.
        seed: of the noise.

    Returns:
        The averaged chain's samples after burn-in under the name `averaged chain`.
    """
    plan = plan_of(settings, budget, prior_share=1 / len(hospitals.training), rounds=rounds)
    solved = solved_noise(plan)
    sites = {
        name: SiteChain(hospitals, name, records, plan, solved, seed) for name, records in hospitals.training.items()
    }
    units = {name: len(records.labels) for name, records in hospitals.training.items()}
    weights = unit_weights(units)
    state, kept = next(iter(sites.values())).start, []
    for first in range(0, STEPS, plan.steps_per_round):
        ends = {name: site.stretch(first, plan.steps_per_round, state) for name, site in sites.items()}
        state = average_states({name: end.last for name, end in ends.items()}, weights)
        # Like the strategy: at most one state is kept per round.
        beyond = first + plan.steps_per_round - BURN_IN
        if beyond > 0 and beyond % THINNING < plan.steps_per_round:
            temperature = averaged_temperature({name: end.temperature for name, end in ends.items()}, weights, units)
            arrays = {name: array[np.newaxis] for name, array in state.items()}
            kept.append(PosteriorSamples(arrays, np.ones(1), np.array([temperature])))
    return Chains({"averaged chain": concatenate(kept)}, solved.history)


def fedpa_point(hospitals: Hospitals, settings: ChainSettings, budget: Budget, rounds: int, seed: int) -> Chains:
    """Run FedPA: rounds of burn-in average states, later ones step along the sites' deltas; the result is one point.

    Args:
        hospitals: the sites.
        settings: of every chain.
        budget: of each site.
        rounds: a divisor of the number of steps that leaves each round at least two samples.
        seed: of the noise.

    Returns:
        The server's last state under the name `server state`.
    """
    plan = plan_of(settings, budget, prior_share=1 / len(hospitals.training), rounds=rounds)
    solved = solved_noise(plan)
    sites = {
        name: SiteChain(hospitals, name, records, plan, solved, seed) for name, records in hospitals.training.items()
    }
    uniform = dict.fromkeys(sites, 1.0)
    state = next(iter(sites.values())).start
    for first in range(0, STEPS, plan.steps_per_round):
        ends = {name: site.stretch(first, plan.steps_per_round, state) for name, site in sites.items()}
        counts = {len(end.samples) for end in ends.values()}
        if counts == {0}:
            state = average_states({name: end.last for name, end in ends.items()}, uniform)
            continue
        state, _ = fedpa.server_step(
            state, {name: end.samples for name, end in ends.items()}, uniform,
            shrinkage=1.0, prior_scale=PRIOR_SCALE, learning_rate=1 / max(counts),
        )  # fmt: skip
    point = PosteriorSamples({name: array[np.newaxis] for name, array in state.items()}, np.ones(1), np.zeros(1))
    return Chains({"server state": point}, solved.history)


@dataclass(frozen=True)
class Stretch:
    """Samples of some steps, the state after them, and their mean temperature."""

    samples: PosteriorSamples
    last: Arrays
    temperature: float


class SiteChain:
    """One site's side of a federation: its records, its noise, and its random streams, which go on between rounds."""

    def __init__(
        self, hospitals: Hospitals, name: str, records: Labelled, plan: TrainingPlan, solved: SolvedNoise, seed: int
    ) -> None:
        self._records, self._plan, self._solved = records, plan, solved
        self._module = build_model(hospitals.model, hospitals.task, seed=0)
        self.start = _arrays(to_vector(self._module), self._module)
        self._streams = Streams.from_insecure_seed(seed, f"aggregation {name}").of_chain()

    def from_start(self) -> PosteriorSamples:
        """Run the whole chain."""
        return self.stretch(0, STEPS, self.start).samples

    def stretch(self, first: int, steps: int, start: Arrays, cavity: Cavity | None = None) -> Stretch:
        """Take steps from a given state, with a cavity for a prior where the plan asks for one."""
        records = self._records
        found: ChainResult = run_chain(
            self._module,
            TrainingRecords(records.features, records.labels, np.arange(len(records.labels))),
            PlannedChain(self._plan, len(records.labels), self._solved.noise_multipliers),
            range(first, first + steps),
            ChainStart({"parameters": arrays_to_vector(start, self._module)}, cavity),
            self._streams,
        )
        samples = PosteriorSamples(
            vector_to_arrays(torch.from_numpy(found.samples), self._module),
            np.array(found.sample_weights),
            np.array(found.sample_temperatures),
        )
        return Stretch(
            samples, _arrays(torch.from_numpy(found.last["parameters"]), self._module), found.temperature_mean
        )


def _arrays(vector: torch.Tensor, module: torch.nn.Module) -> Arrays:
    return {name: array[0] for name, array in vector_to_arrays(vector[None], module).items()}


def solved_noise(plan: TrainingPlan) -> SolvedNoise:
    """Return the noise that a plan of full batches needs for its budget."""
    # With full batches and noise that does not follow the step size, the number of records does not enter.
    return solve_plan(plan, units=1)
