"""One step of each sampler: by hand, against torch's optimisers, and in its limits."""

import math

import pytest
import torch

from fl_dpbayes.config.sampler import SGD, SGHMC, SGLD, Adam, ConstantStepSize
from fl_dpbayes.samplers.algorithm import build_algorithm
from fl_dpbayes.samplers.state_vectors import ChainState, initial_vectors

SIZE = ConstantStepSize(initial=0.1)
LANGEVIN = SGLD(step_size=SIZE)


def descent(momentum: float) -> SGD:
    return SGD(kind="sgd", step_size=SIZE, momentum=momentum)


def hamiltonian(friction: float) -> SGHMC:
    return SGHMC(kind="sghmc", step_size=SIZE, friction=friction)


def adam(first_decay: float, second_decay: float, stability: float) -> Adam:
    return Adam(
        kind="adam",
        step_size=SIZE,
        first_decay=first_decay,
        second_decay=second_decay,
        stability=stability,
    )


def path(sampler, gradients, step_sizes, start, done=0):
    """States under gradients that are tensors or functions of the position, the start first."""
    step = build_algorithm(sampler, torch.nn.Identity()).step
    states = [ChainState(initial_vectors(sampler, start), done)]
    for gradient, size in zip(gradients, step_sizes, strict=True):
        position = states[-1].parameters
        states.append(
            step(states[-1], gradient(position) if callable(gradient) else gradient, size)
        )
    return states


def quadratic(steps=12, noisy=True):
    """Start (50,) and the gradients of a quadratic with noise of its own in each step."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator)
    curvature = torch.rand(50, generator=generator)
    noise = torch.randn(steps, 50, generator=generator) * noisy
    return start, [lambda w, own=own: curvature * w + own for own in noise]


ADAM_FIRST = 0.5 * (0.5 * 1.0) + 0.5 * -3.0
ADAM_SECOND = 0.75 * (0.25 * 1.0) + 0.25 * 9.0
# Sampler, gradients 1 and -3 of two steps from 2, step sizes .1 and .2, the place after one and the
# vectors after both.
BY_HAND = [
    (LANGEVIN, 1.9, {"parameters": 2.0 - 0.1 * 1.0 - 0.2 * -3.0}),
    # m = 0.5 m + d; w = w - a m
    (descent(0.5), 1.9, {"parameters": 1.9 - 0.2 * -2.5, "momentum": 0.5 * 1.0 - 3.0}),
    # v = 0.75 v - a d; w = w + v
    (hamiltonian(0.25), 1.9, {"parameters": 1.9 + 0.525, "momentum": 0.75 * -0.1 + 0.6}),
    # The first step moves by a d / (|d| + stability), bias correction undoing the decay.
    (
        adam(0.5, 0.75, 0.01),
        2.0 - 0.1 / 1.01,
        {
            "parameters": 2.0
            - 0.1 / 1.01
            - 0.2 * (ADAM_FIRST / 0.75) / (math.sqrt(ADAM_SECOND / (1 - 0.75**2)) + 0.01),
            "first_moment": ADAM_FIRST,
            "second_moment": ADAM_SECOND,
        },
    ),
]


@pytest.mark.parametrize(
    ("sampler", "first", "expected"), BY_HAND, ids=lambda value: getattr(value, "kind", "")
)
def test_two_steps_by_hand_and_inputs_are_left(sampler, first, expected):
    start = torch.tensor([2.0])
    done = 0 if sampler.kind == "adam" else 5
    states = path(sampler, [torch.tensor([1.0]), torch.tensor([-3.0])], (0.1, 0.2), start, done)
    assert {name: vector.item() for name, vector in states[-1].vectors.items()} == pytest.approx(
        expected
    )
    assert states[-1].step == done + 2
    assert states[1].parameters.item() == pytest.approx(first)
    assert all(
        vector.item() == (2.0 if name == "parameters" else 0.0)
        for name, vector in states[0].vectors.items()
    )


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize("sampler", [LANGEVIN, descent(0.0), descent(0.5), descent(0.9)], ids=str)
def test_path_is_that_of_torch_bit_for_bit_limit(sampler, decay):
    start, gradients = quadratic(8, noisy=False)
    sizes = [0.3 * decay**number for number in range(8)]
    states = path(sampler, gradients, sizes, start)
    parameter = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.SGD([parameter], lr=0.3, momentum=getattr(sampler, "momentum", 0.0))
    for gradient, size, state in zip(gradients, sizes, states[1:], strict=True):
        optimiser.param_groups[0]["lr"] = size
        parameter.grad = gradient(parameter.detach())
        optimiser.step()
        assert torch.equal(state.parameters, parameter.detach())
    assert state.step == 8


@pytest.mark.parametrize("settings", [(0.9, 0.999, 1e-8), (0.5, 0.9, 1e-3), (0.0, 0.99, 1e-8)])
def test_path_of_adam_is_that_of_torch(settings):
    start, gradients = quadratic(30)
    states = path(adam(*settings), gradients, [0.03] * 30, start)
    parameter = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.Adam([parameter], lr=0.03, betas=settings[:2], eps=settings[2])
    for gradient, state in zip(gradients, states[1:], strict=True):
        parameter.grad = gradient(parameter.detach())
        optimiser.step()
        torch.testing.assert_close(state.parameters, parameter.detach(), rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(
        state.vectors["second_moment"], optimiser.state[parameter]["exp_avg_sq"]
    )
    torch.testing.assert_close(state.vectors["first_moment"], optimiser.state[parameter]["exp_avg"])


def end(sampler):
    start, gradients = quadratic()
    return path(sampler, gradients, [0.2] * 12, start)[-1]


@pytest.mark.parametrize(
    ("sampler", "same"), [(descent(0.8), hamiltonian(0.2)), (hamiltonian(1.0), LANGEVIN)]
)
def test_momentum_is_hamiltonian_with_the_rest_as_friction_and_full_friction_is_langevin_limit(
    sampler, same
):
    torch.testing.assert_close(end(sampler).parameters, end(same).parameters, rtol=1e-5, atol=1e-6)
