"""The noise on a step is one draw over all parameters, and sampling shares nothing with it."""

import numpy as np
import pytest
import torch

from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize, FlatPrior
from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.samplers.chain import ChainStreams, run_chain

UNITS, STEPS = 20, 6


class CountingGenerator(np.random.Generator):
    """Notes the size of every draw."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.Philox(seed))
        self.sizes: list[int] = []

    def standard_normal(self, size, dtype=np.float64):
        self.sizes.append(int(np.prod(size)))
        return super().standard_normal(size, dtype=dtype)

    def random(self, size):
        self.sizes.append(size)
        return super().random(size)


@pytest.mark.parametrize("sampling_rate", [1.0, 0.5, 1e-6])
def test_each_step_draws_once_over_all_parameters_and_once_over_all_units(sampling_rate: float) -> None:
    module = build_model(MLPModel(hidden=(5,)), Task(input_shape=(3,), classes=2), seed=0)
    plan = TrainingPlan(
        rounds=1,
        steps_per_round=STEPS,
        burn_in=0,
        thinning=1,
        sampler=SGLD(step_size=ConstantStepSize(initial=0.1), prior=FlatPrior()),
        privacy=PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=sampling_rate),
        chain_start="broadcast",
    )
    noise, sampling = CountingGenerator(1), CountingGenerator(2)
    start = to_vector(module)
    result = run_chain(
        module,
        np.ones((UNITS, 3), np.float32),
        np.zeros(UNITS, np.int64),
        np.arange(UNITS),
        plan=plan,
        noise_multipliers=np.ones(STEPS),
        units=UNITS,
        first_step=0,
        steps=STEPS,
        start={"parameters": start},
        streams=ChainStreams(sampling, noise, CountingGenerator(3), CountingGenerator(4)),
    )
    # A batch that nobody joined (nearly all of them at the smallest rate) has its draw like any other.
    assert noise.sizes == [start.numel()] * STEPS
    assert sampling.sizes == [UNITS] * STEPS
    moved = np.diff(np.vstack([start.numpy(), result.samples]), axis=0)
    assert (moved != 0).all()
    assert not torch.isnan(torch.from_numpy(moved)).any()
