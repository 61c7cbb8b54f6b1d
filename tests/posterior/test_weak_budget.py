"""What share of a run's gradients is noise, before it starts."""

import numpy as np
import pytest

from fl_dpbayes.config import load_scenario
from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGLD
from fl_dpbayes.posterior.weak_budget import DROWNED, noise_share, weak_budget
from fl_dpbayes.report import sentence


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


def test_a_budget_that_drowns_is_told_with_what_it_takes_at_least() -> None:
    units = {"a": 200, "b": 150}
    few = load_scenario("quickstart", ["privacy.epsilon=0.01"])
    (told,) = weak_budget(few, units)
    text = sentence(told)
    assert "0.01 is far too small for 350 units at 2 sites" in text
    assert "a useful model needs more" in text
    # Above the epsilon that it names there is nothing to tell, just below it there is.
    drowned_to = float(dict(told.values)["drowned_to"])
    assert weak_budget(load_scenario("quickstart", [f"privacy.epsilon={drowned_to * 0.98}"]), units)
    enough = [f"privacy.epsilon={drowned_to * 1.02}"]
    assert not weak_budget(load_scenario("quickstart", enough), units)
    # So many times the units do as well.
    times = float(dict(told.values)["times"])
    many = {name: round(size * times * 1.02) for name, size in units.items()}
    assert not weak_budget(few, many), DROWNED
