import math

import pytest
import torch

from fl_dpbayes.samplers import adam


@pytest.mark.parametrize("settings", [(0.9, 0.999, 1e-8), (0.5, 0.9, 1e-3), (0.0, 0.99, 1e-8)])
def test_path_is_that_of_torch(settings):
    generator = torch.Generator().manual_seed(0)
    start, curvature = torch.randn(50, generator=generator), torch.rand(50, generator=generator)
    noise = torch.randn(30, 50, generator=generator)
    parameter = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.Adam([parameter], lr=0.03, betas=settings[:2], eps=settings[2])
    kernel = adam.kernel(*settings)
    state = kernel.init(start, 0)
    for number in range(30):
        parameter.grad = curvature * parameter.detach() + noise[number]
        optimiser.step()
        state = kernel.step(state, curvature * state.parameters + noise[number], 0.03)
        torch.testing.assert_close(state.parameters, parameter.detach(), rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(state.vectors["second_moment"], optimiser.state[parameter]["exp_avg_sq"])
    torch.testing.assert_close(state.vectors["first_moment"], optimiser.state[parameter]["exp_avg"])


def test_two_steps_by_hand():
    state = adam.init(torch.tensor([1.0]))
    for drift in (2.0, -1.0):
        state = adam.step(state, torch.tensor([drift]), 0.1, first_decay=0.5, second_decay=0.75, stability=0.01)
    first = 0.5 * (0.5 * 2.0) + 0.5 * -1.0
    second = 0.75 * (0.25 * 4.0) + 0.25 * 1.0
    # The first step moves by a 2 / (2 + stability), bias correction undoing the decay.
    position = 1.0 - 0.1 * 2.0 / 2.01 - 0.1 * (first / 0.75) / (math.sqrt(second / (1 - 0.75**2)) + 0.01)
    assert state.parameters.item() == pytest.approx(position, rel=1e-6)
    assert state.step == 2


def test_continued_chain_is_the_uncut_one():
    kernel, drifts = adam.kernel(), torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    state = kernel.init(torch.zeros(4), 0)
    for drift in drifts:
        state = kernel.step(state, drift, 0.1)
    again = kernel.init(torch.zeros(4), 0)
    for drift in drifts[:5]:
        again = kernel.step(again, drift, 0.1)
    again = type(again)({name: vector.clone() for name, vector in again.vectors.items()}, again.step)
    for drift in drifts[5:]:
        again = kernel.step(again, drift, 0.1)
    assert torch.equal(state.parameters, again.parameters)


def test_states_are_never_overwritten():
    state = adam.init(torch.ones(3))
    adam.step(state, torch.ones(3), 0.1, first_decay=0.9, second_decay=0.9, stability=1e-8)
    assert torch.equal(state.parameters, torch.ones(3))
    assert torch.equal(state.vectors["first_moment"], torch.zeros(3))
    assert torch.equal(state.vectors["second_moment"], torch.zeros(3))
