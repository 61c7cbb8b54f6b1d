"""Plans and streams of small chains, and a chain run on them."""

import numpy as np
import torch
from torch import nn

from fl_dpbayes.config.plan import AnyPrivacyPlan, PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize, FlatPrior, Sampler
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.samplers.chain import ChainResult, run_chain
from fl_dpbayes.samplers.minibatch import TrainingRecords
from fl_dpbayes.samplers.state_vectors import initial_vectors
from fl_dpbayes.schedules.planned import ChainStreams, PlannedChain

FLAT_SGLD = SGLD(step_size=ConstantStepSize(initial=0.1), prior=FlatPrior())


def plan_of(
    sampler: Sampler = FLAT_SGLD, privacy: AnyPrivacyPlan | dict | None = None, **settings
) -> TrainingPlan:
    """One round of 12 steps, all kept, unless `settings` say otherwise.

    A dict changes the usual privacy.
    """
    if privacy is None or isinstance(privacy, dict):
        privacy = PrivacyPlan(
            **({"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.5} | (privacy or {}))
        )
    usual = {
        "rounds": 1,
        "steps_per_round": 12,
        "burn_in": 0,
        "thinning": 1,
        "chain_start": "broadcast",
    }
    return TrainingPlan(sampler=sampler, privacy=privacy, **(usual | settings))


def streams_of(*seeds) -> ChainStreams:
    """Streams of four seeds: sampling, noise, pre-noise, model."""
    return ChainStreams(*map(np.random.default_rng, seeds))


def run(
    module: nn.Module,
    records,
    plan: TrainingPlan,
    sigma=1.0,
    *,
    units=None,
    steps=None,
    start=None,
    **more,
):
    """Run a chain.

    By default all steps from the module's own parameters, one unit per record, seeds 0 to 3.
    """
    records = records if isinstance(records, TrainingRecords) else TrainingRecords(*records)
    start = start if start is not None else initial_vectors(plan.sampler, to_vector(module))
    start = {"parameters": start} if isinstance(start, torch.Tensor) else start
    noise = np.broadcast_to(np.asarray(sigma, float), plan.total_steps)
    result: ChainResult = run_chain(
        module,
        records,
        PlannedChain(plan, len(records.features) if units is None else units, noise),
        steps or range(plan.total_steps),
        start,
        more.pop("streams", None) or streams_of(0, 1, 2, 3),
        **more,
    )
    return result
