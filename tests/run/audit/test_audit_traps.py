"""Faults of earlier implementations that a test of the result alone would not see."""

import numpy as np
import pytest

from fl_dpbayes.config.sampler import SGLD, ExponentialStepSize, FlatPrior
from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.samplers.minibatch import poisson_units
from tests import chains

# Steps of an epoch as 1 / q: for these many counts below 2000, int(1 / q) is one short.
LOST_STEPS = [count for count in range(1, 2000) if int(1 / (1 / count)) != count]


@pytest.mark.parametrize("count", LOST_STEPS[:5])
@pytest.mark.parametrize("divide", [lambda count: 1 / count, lambda count: 1.0, lambda count: 0.3])
def test_chain_runs_every_planned_step_whatever_the_sampling_rate(count: int, divide) -> None:
    assert (len(LOST_STEPS), LOST_STEPS[0]) == (141, 93)
    sampler = SGLD(step_size=ExponentialStepSize(initial=0.1, decay=0.9), prior=FlatPrior())
    plan = chains.plan_of(sampler, {"sampling_rate": divide(count), "coupling": "constant"}, steps_per_round=count)
    module = build_model(LogisticModel(), Task(input_shape=(2,), classes=2), seed=0)
    records = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32), np.zeros(3, np.int64), np.arange(3)
    assert chains.run(module, records, plan).sample_steps == tuple(range(count))


def test_unit_that_is_added_last_moves_no_other_units_draw() -> None:
    fewer = poisson_units(np.random.default_rng(0), 50, 0.3)
    more = poisson_units(np.random.default_rng(0), 51, 0.3)
    np.testing.assert_array_equal(fewer, more[more < 50])
