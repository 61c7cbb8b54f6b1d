"""One finished run with a posterior over hospitals, at which the tests of two rooms look."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.config.scenario import Scenario, load_scenario
from tests.federations import Federation, federations_in

SITES = """sites={
uk-119 = {role="train", group="uk"}, uk-32 = {role="train", group="uk"},
norway-258 = {role="train", group="norway"},
uk-129 = {role="held_out", group="uk"}}""".replace("\n", "")
SETTINGS = [
    "training={rounds=6, steps_per_round=1, burn_in=2, thinning=1}",
    "privacy.coupling=constant",
    "evaluation={}",
    "privacy.temperature=",
    "privacy.sampling_rate=1.0",
    "privacy.epsilon=8",
    "simulation.insecure_seed=5",
    "sampler.step_size.initial=1.0",
    "hierarchical.group=country",
]


@dataclass(frozen=True)
class HospitalRun:
    """A run, and what the sites' chains summed up and noised, in the order of their steps."""

    federation: Federation
    noised: list[np.ndarray]


def scenario(*overrides: str) -> Scenario:
    return load_scenario("stroke-uk", [SITES, *SETTINGS, *overrides])


def run_of_hospitals(folder: Path) -> HospitalRun:
    from fl_dpbayes.samplers import chain

    noised: list[np.ndarray] = []
    plain = chain.noisy_gradient

    def watched(clipped_sum, *, noise, noise_multiplier, noise_unit, **settings):
        noised.append((clipped_sum + noise_multiplier * noise_unit * noise.double()).numpy().copy())
        given = {"noise": noise, "noise_multiplier": noise_multiplier, "noise_unit": noise_unit}
        return plain(clipped_sum, **given, **settings)

    with federations_in(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "noisy_gradient", watched)
        return HospitalRun(Federation(folder / "run", scenario()).run(), noised)
