"""No chain gets beyond its bound, and the bound is not far beyond what a chain can do."""

import numpy as np
import pytest
import torch

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.scenario import load_scenario, shipped_scenarios, training_plan
from fl_dpbayes.privacy.planned_noise import planned_chain, solve_plan
from fl_dpbayes.samplers.algorithm import build_algorithm
from fl_dpbayes.samplers.displacement_bound import displacement_bound
from fl_dpbayes.samplers.state_vectors import from_state, initial_vectors, to_state
from fl_dpbayes.schedules.planned import PlannedChain, planned_step_sizes

PARAMETERS = 60
SAMPLERS = {
    "sgld": {"kind": "dp-sgld"},
    "sgd": {"kind": "dp-sgd"},
    "momentum": {"kind": "dp-sgd", "momentum": 0.9},
    "sghmc": {"kind": "dp-sghmc", "friction": 0.2},
}
PRIORS = {
    "flat": {"kind": "flat"},
    "gaussian": {"kind": "gaussian", "scale": 0.3},
    "laplace": {"kind": "laplace", "scale": 0.1},
}


def plan_of(sampler, prior, **privacy) -> TrainingPlan:
    content = {
        "rounds": 3,
        "steps_per_round": 10,
        "burn_in": 0,
        "thinning": 1,
        "chain_start": "own_last",
    }
    step_size = {"kind": "exponential", "initial": 0.5, "decay": 0.99}
    privacy = {"epsilon": 4.0, "delta": 1e-3, "sampling_rate": 0.5, "clip_norm": 2.0, **privacy}
    sampler = {**sampler, "prior": prior, "step_size": step_size}
    return TrainingPlan.model_validate(content | {"sampler": sampler, "privacy": privacy})


def walk(chain, generator, outward: bool):
    """Yield (|w - w0|, |m|) of a chain whose every unit pulls as hard as its clip norm allows."""
    plan = chain.plan
    units = chain.units
    privacy = chain.plan.privacy
    algorithm = build_algorithm(plan.sampler, torch.nn.Linear(PARAMETERS, 1, bias=False))
    start = torch.from_numpy(generator.standard_normal(PARAMETERS).astype(np.float32))
    state = to_state(initial_vectors(plan.sampler, start), plan.sampler, 0)
    direction = torch.from_numpy(generator.standard_normal(PARAMETERS).astype(np.float32))
    batch = privacy.sampling_rate * units
    for size, sigma in zip(chain.step_sizes[:10], chain.noise_multipliers[:10], strict=True):
        pulled = (
            state.parameters - start
            if outward and (state.parameters - start).norm() > 0
            else direction
        )
        members = generator.binomial(units, privacy.sampling_rate)
        total = -members * privacy.clip_norm * pulled / pulled.norm()
        noise = (
            sigma
            * privacy.noise_unit
            * torch.from_numpy(generator.standard_normal(PARAMETERS)).float()
        )
        pull = algorithm.data_free_gradient(plan.sampler.prior, state.parameters, plan.prior_share)
        state = algorithm.step(state, (total + noise) / batch + pull / units, float(size))
        vectors = from_state(state, plan.sampler)
        momentum = float(vectors["momentum"].norm()) if "momentum" in vectors else 0.0
        yield float((vectors["parameters"] - start).norm()), momentum


def walks_and_bounds(chain, steps=10):
    """Twenty chains that are pulled as hard as can be, each with its bound."""
    for seed in range(20):
        norm = float(np.linalg.norm(np.random.default_rng(seed).standard_normal(PARAMETERS)))
        bound = displacement_bound(
            chain, range(steps), most_units=chain.units, parameters=PARAMETERS, start_norm=norm
        )
        yield np.array(list(walk(chain, np.random.default_rng(seed), outward=seed % 2 == 0))), bound


def bound_of(plan, noise):
    chain = PlannedChain(plan, 7, noise)
    return displacement_bound(chain, range(10), most_units=7, parameters=5, start_norm=3.0)


@pytest.mark.slow
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("sigma", [0.01, 1.0, 30.0])
def test_chain_that_is_pulled_as_hard_as_can_be_stays_within_the_bound(
    sampler, prior, sigma
) -> None:
    plan = plan_of(SAMPLERS[sampler], PRIORS[prior], noise_multiplier=sigma)
    for walked, bound in walks_and_bounds(planned_chain(plan, 40)):
        assert (walked <= bound * (1 + 1e-5)).all()
        # The bound is of use: such a chain goes a good part of the way, and what is a hundred times
        # its size is seen.
        assert walked[-1, 0] > (0.2 if sampler in ("sgld", "sgd") else 0.03) * bound[-1, 0]


def test_bound_without_noise_or_chance_is_the_sum_of_the_clipped_steps() -> None:
    plan = plan_of(SAMPLERS["sgld"], PRIORS["flat"], sampling_rate=1.0)
    bound = bound_of(plan, np.zeros(30))
    np.testing.assert_allclose(
        bound[:, 0], 2.0 * np.cumsum(planned_step_sizes(plan)[:10]), rtol=1e-12
    )


@pytest.mark.parametrize("coupling", ["constant", "temperature", "langevin", "floor"])
@pytest.mark.parametrize("given", [False, True])
def test_planned_noise_is_the_noise_that_a_site_solves(coupling, given) -> None:
    privacy = {"temperature": 3.0} if coupling == "floor" else {}
    if given:
        privacy["noise_multiplier" if coupling in ("constant", "floor") else "temperature"] = 2.0
    plan = plan_of(SAMPLERS["momentum"], PRIORS["flat"], coupling=coupling, **privacy)
    for units in (30, 3000):
        planned = planned_chain(plan, units)
        solved = solve_plan(plan, units)
        np.testing.assert_allclose(planned.noise_multipliers, solved.noise_multipliers, rtol=1e-9)


@pytest.mark.parametrize("name", shipped_scenarios())
def test_chains_of_every_shipped_scenario_stay_within_the_bound(name) -> None:
    plan = training_plan(load_scenario(name), prior_share=1.0, chain_start="own_last")
    for walked, bound in walks_and_bounds(planned_chain(plan, 250), min(10, plan.chain_steps)):
        assert (walked <= bound * (1 + 1e-5)).all()


@pytest.mark.parametrize("kind", ["dp-adam", "dp-bbp", "sgld"])
def test_no_bound_is_claimed_where_there_is_none(kind) -> None:
    changes = {"privacy": {"sampling_rate": 0.5}} if kind == "sgld" else {}
    content = plan_of(SAMPLERS["sgld"], PRIORS["flat"]).model_dump()
    content["sampler"] = {"kind": kind, "step_size": {"kind": "constant", "initial": 0.5}}
    assert bound_of(TrainingPlan.model_validate(content | changes), np.ones(30)) is None
