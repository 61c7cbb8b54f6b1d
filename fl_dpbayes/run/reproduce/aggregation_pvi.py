"""The rounds of partitioned variational inference in `aggregation`: the server's update on the sites' short chains."""

from dataclasses import dataclass

import numpy as np
import torch

from fl_dpbayes.config.aggregation import LEAST_FOR_PRECISION, PVI
from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.models.priors import Cavity
from fl_dpbayes.posterior.chains import unflatten
from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.rules.combine import posterior_aggregate
from fl_dpbayes.posterior.rules.pvi import PVIState, update_from_samples
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.privacy.events import History
from fl_dpbayes.report.warnings import sentence
from fl_dpbayes.run.reproduce.aggregation_chains import (
    PRIOR_SCALE,
    STEPS,
    Budget,
    ChainSettings,
    SiteChain,
    plan_of,
    solved_noise,
)
from fl_dpbayes.run.reproduce.aggregation_sites import Hospitals

ROUNDS = 10


@dataclass(frozen=True)
class PVISettings:
    """What is chosen: step size a and clip norm C of the sites' chains, and the damping rho in (0, 1]."""

    step_size: float
    clip_norm: float
    damping: float


@dataclass(frozen=True)
class Refined:
    """Draws of the final q, what each site's rounds cost together, and what the updates warned of."""

    samples: PosteriorSamples
    history: History
    warnings: tuple[str, ...]


def refined_posterior(hospitals: Hospitals, settings: PVISettings, budget: Budget, draws: int, seed: int) -> Refined:
    """Let all sites sample their likelihood times their cavity in every round, and update their factors together.

    Args:
        hospitals: the sites.
        settings: of chains and updates.
        budget: of each site for all rounds.
        draws: how many to take from the final q.
        seed: of noise and draws.

    Returns:
        The draws.
    """
    plan = _plan(settings, budget)
    solved = solved_noise(plan)
    sites = {
        name: SiteChain(hospitals, name, records, plan, solved, seed) for name, records in hospitals.training.items()
    }
    start = next(iter(sites.values())).start
    shapes = {name: array.shape for name, array in start.items()}
    parameters = sum(array.size for array in start.values())
    state = PVIState(NaturalGaussian(np.full(parameters, PRIOR_SCALE**-2), np.zeros(parameters)))
    for first in range(0, plan.total_steps, plan.chain_steps):
        samples = {
            name: site.stretch(first, plan.chain_steps, start, _cavity(state.cavity(name))).samples
            for name, site in sites.items()
        }
        state = update_from_samples(state, samples, damping=settings.damping)
        start = {name: array[0] for name, array in unflatten(state.posterior.mean[np.newaxis], shapes).items()}
    drawn = state.posterior.sample(draws, np.random.default_rng(seed))
    return Refined(
        posterior_aggregate(drawn, shapes, ()).samples.in_memory(),
        solved.history,
        tuple(map(sentence, (*state.warnings, *state.noisy_factors))),
    )


def _plan(settings: PVISettings, budget: Budget) -> TrainingPlan:
    chain = ChainSettings(settings.step_size, settings.clip_norm)
    whole = plan_of(chain, budget, prior_share=1.0, rounds=ROUNDS)
    steps = STEPS // ROUNDS
    own = {"burn_in": steps - LEAST_FOR_PRECISION, "thinning": 1}
    return PVI(rule="pvi").site_plan(TrainingPlan.model_validate(whole.model_dump() | own))


def _cavity(gaussian: NaturalGaussian) -> Cavity:
    mean, precision = (torch.from_numpy(vector.astype(np.float32)) for vector in (gaussian.mean, gaussian.precision))
    return Cavity(mean, precision)
