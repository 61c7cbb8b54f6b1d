"""What share of a run's gradients is noise, before it starts."""

import numpy as np
import pytest

from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGLD
from fl_dpbayes.engine.weak_budget import noise_share


def plan(**changes: object) -> TrainingPlan:
    privacy = {"epsilon": 4, "delta": 1e-3, "noise_multiplier": 2.0, "sampling_rate": 1.0}
    return TrainingPlan(
        rounds=5,
        steps_per_round=2,
        burn_in=0,
        thinning=1,
        sampler=SGLD(),
        privacy=PrivacyPlan(**privacy | changes),
        chain_start="broadcast",
    )


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_noise_is_as_long_as_drawn_noise(rate) -> None:
    units = {"a": 100, "b": 300}
    generator = np.random.default_rng(0)
    # Sums of sites over their records, of all steps, each with noise of its own in 50 directions.
    noise = 2.0 * generator.standard_normal((2000, 10, 2, 50))
    mean = (noise / (rate * 400)).sum(axis=2).mean(axis=1)
    lengths = np.square(mean).sum(axis=1)
    share = noise_share(plan(sampling_rate=rate), units, parameters=50)
    error = lengths.std() / np.sqrt(len(lengths))
    assert abs(share**2 - lengths.mean()) < 4 * error
