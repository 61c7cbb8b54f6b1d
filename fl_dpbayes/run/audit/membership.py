"""Membership inference on what a site of the scenario really releases."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn

from fl_dpbayes.config.scenario import Scenario, training_plan
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.simulation import SITES_FOLDER, prepare_simulation
from fl_dpbayes.data.site import SiteSplit, load_site
from fl_dpbayes.data.virtual_sites import SitePlan
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.posterior.predictive import predictive_probabilities
from fl_dpbayes.privacy.audit_statistics import MembershipScore, loss_threshold_attack
from fl_dpbayes.protocol.arrays import Arrays, without_prefix
from fl_dpbayes.run.audit.canary_site import CanarySite
from fl_dpbayes.run.audit.reading import Course, train
from fl_dpbayes.samplers.planned import planned_step_sizes
from fl_dpbayes.samplers.state_vectors import initial_vectors, state_arrays

Array = npt.NDArray[np.float64]

# Losses are compared by rank only; below it float64 has no smaller probability.
LEAST_PROBABILITY = 1e-300


def attack_membership(
    scenario: Scenario, planned: SitePlan, folder: Path, on_round: Callable[[], None]
) -> MembershipScore:
    """Train the scenario's first training site through the whole plan and attack the posterior that it releases.

    Members are its training units, others its test units; a unit's loss is the sum over its records of -log of the
    predictive probability of the label.

    Raises UserError if the site has no test record, or it does not train.
    """
    prepare_simulation(scenario, planned, folder)
    number = next(i for i, site in enumerate(planned.sites) if site.spec.role == "train")
    path = sorted((folder / SITES_FOLDER).glob("*.toml"))[number]
    site_file = read_site_file(path)
    site = load_site(site_file)
    assert site.train is not None
    plan = training_plan(scenario, prior_share=1.0, chain_start="own_last")
    module = build_model(scenario.model, site.task, seed=scenario.seed)
    last = state_arrays(initial_vectors(plan.sampler, to_vector(module)), module)
    samples: list[Arrays] = []
    weights, sizes = list[float](), planned_step_sizes(plan)
    epsilon: float | None = None
    course = Course(CanarySite(path, site_file, site.task), scenario.model, plan, 1)
    for round_number in range(1, plan.total_rounds + 1):
        steps = plan.steps_per_round
        reply, arrays = train(course, last, round_number, (round_number - 1) * steps, steps)
        last, epsilon = without_prefix("last", arrays), reply.privacy.epsilon
        stretch = range(reply.first_step, reply.first_step + reply.steps)
        if kept := [float(sizes[step]) for step in stretch if plan.is_kept(step)]:
            samples.append(without_prefix("samples", arrays))
            weights += kept
        on_round()
        if reply.status == "PARTIAL":
            break
    if samples:
        posterior = {name: np.concatenate([part[name] for part in samples]) for name in samples[0]}
    else:
        posterior, weights = {n: array[None] for n, array in without_prefix("parameters", last).items()}, [1.0]
    from clients.model_inputs import model_inputs

    parts = [model_inputs(site_file, scenario.model, part) for part in (site.train, site.test)]
    losses = [_losses(module, posterior, np.array(weights), part) for part in parts]
    return loss_threshold_attack(
        *losses, epsilon=math.inf if epsilon is None else epsilon, delta=scenario.privacy.delta
    )


def _losses(module: nn.Module, posterior: Arrays, weights: Array, part: SiteSplit) -> Array:
    probabilities = predictive_probabilities(module, posterior, weights, part.features)
    of_label = probabilities[np.arange(len(part.labels)), part.labels]
    losses = -np.log(np.maximum(of_label, LEAST_PROBABILITY))
    return np.bincount(part.unit_index, losses, part.unit_count).astype(np.float64)
