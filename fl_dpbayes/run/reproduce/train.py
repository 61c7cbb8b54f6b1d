"""Trains one chain on records at hand, through the same function that a site runs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.models.parameters import to_vector, vector_to_arrays
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.solve import solve_plan
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.samplers.chain import ChainStart, run_chain
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy
from fl_dpbayes.samplers.minibatch import TrainingRecords
from fl_dpbayes.samplers.planned import PlannedChain
from fl_dpbayes.samplers.state_vectors import initial_vectors


@dataclass(frozen=True)
class Trained:
    """What a chain gave.

    Attributes:
        posterior: the kept samples.
        last: the last state's parameters as a posterior of one sample: the point predictor.
        history: what was done to the records; None without privacy.
        delta: for which the history's epsilon is stated; None without privacy.
        noise_multipliers: sigma_t in the plan's noise unit, shape (steps,).
    """

    posterior: PosteriorSamples
    last: PosteriorSamples
    history: History | None
    delta: float | None
    noise_multipliers: npt.NDArray


def train(
    module: nn.Module,
    features: npt.NDArray,
    targets: npt.NDArray,
    plan: TrainingPlan,
    streams: Streams,
    *,
    loss: RecordLoss = summed_cross_entropy,
) -> Trained:
    """Run the one chain of a plan from the module's own parameters; each record is its own privacy unit.

    Args:
        module: the model; its parameters are overwritten.
        features: shape (N, *shape), float32; the declared number of units is N.
        targets: classes, int64, or values, float32, shape (N,).
        plan: the chain.
        streams: source of all randomness.
        loss: minus the log likelihood of records, summed.

    Returns:
        Samples, last state and what was done.

    Raises:
        UserError: if no noise meets the plan's budget.
        ChainDivergedError: if the last state is not finite.
    """
    solved = solve_plan(plan, len(features))
    result = run_chain(
        module,
        TrainingRecords(features, targets, np.arange(len(features)), loss),
        PlannedChain(plan, len(features), solved.noise_multipliers),
        range(plan.chain_steps),
        ChainStart(initial_vectors(plan.sampler, to_vector(module))),
        streams.of_chain(),
    )
    private = plan.privacy.kind == "dp"
    return Trained(
        posterior=PosteriorSamples(
            vector_to_arrays(torch.from_numpy(result.samples), module),
            np.array(result.sample_weights),
            np.array(result.sample_temperatures),
        ),
        last=PosteriorSamples(
            vector_to_arrays(torch.from_numpy(result.last["parameters"])[None], module),
            np.array([1.0]),
            np.array([0.0]),
        ),
        history=solved.history if private else None,
        delta=plan.privacy.delta if private else None,
        noise_multipliers=solved.noise_multipliers,
    )
