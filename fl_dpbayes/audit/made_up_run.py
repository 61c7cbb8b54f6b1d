"""A made-up finished run with a posterior over hospitals: what `update` needs.

It is that of a run of the shipped `stroke-uk`, one step a round, whatever scenario is audited: its
model has two classes, as such a posterior must.
"""

from pathlib import Path

import numpy as np

from fl_dpbayes.config import Scenario, load_scenario, write_scenario
from fl_dpbayes.data import SCENARIO_FILE
from fl_dpbayes.files import RunStore, digest
from fl_dpbayes.models import model_shapes
from fl_dpbayes.posterior import (
    FACTS,
    HOSPITALS,
    POOLED_ROUNDS,
    POSTERIOR_FILE,
    PosteriorBank,
    PosteriorSamples,
    log_odds_means,
    pooled_round,
    save_posterior,
    site_means,
)

SETTINGS = (
    "training={rounds=2, steps_per_round=1, burn_in=0, thinning=1}",
    "privacy.sampling_rate=1.0",
    "hierarchical={}",
)
# Units of each hospital that trained.
UNITS = 400
# Standard deviations of its state and its mean gradient.
STATE = 0.1
GRADIENT = 4.0


def write_made_up_run(folder: Path, generator: np.random.Generator) -> Scenario:
    """Write scenario, posterior and the sums of hospitals.

    Args:
        folder: To be made.
        generator: Draws the posterior and the gradients.

    Returns:
        The scenario of the run.
    """
    scenario = load_scenario("stroke-uk", SETTINGS)
    folder.mkdir(parents=True)
    write_scenario(scenario, folder / SCENARIO_FILE)
    task = scenario.data.source.task
    shapes = model_shapes(scenario.model, task)
    state = {
        name: generator.normal(0.0, STATE, (1, *shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    posterior = PosteriorSamples(arrays=state, weights=np.ones(1), temperatures=np.zeros(1))
    save_posterior(folder / POSTERIOR_FILE, posterior, scenario.model, task, digest(scenario))
    vector = np.concatenate([array.ravel() for array in state.values()]).astype(np.float64)
    sums = {
        name: np.concatenate(
            [(UNITS, 1, 1, 1), generator.normal(0.0, GRADIENT, len(vector)), vector]
        )
        for name, site in scenario.sites.items()
        if site.role == "train"
    }
    assert all(len(row) == FACTS + 2 * len(vector) for row in sums.values())
    rounds = pooled_round(log_odds_means(site_means(sums)), rounds=1)
    no_samples = PosteriorSamples(arrays={}, weights=np.zeros(0), temperatures=np.zeros(0))
    with RunStore.make(folder) as store:
        bank = PosteriorBank(store)
        bank.add(HOSPITALS, 1, 0, no_samples, sums)
        bank.add(POOLED_ROUNDS, 1, 0, no_samples, rounds.arrays)
        store.append()
    return scenario
