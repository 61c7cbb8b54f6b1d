import pytest
import torch

from fl_dpbayes.samplers import sghmc, sgld


def test_two_steps_by_hand_and_inputs_are_left():
    kernel = sghmc.kernel(0.25)
    state = kernel.init(torch.tensor([2.0]), 5)
    first = kernel.step(state, torch.tensor([1.0]), 0.1)
    second = kernel.step(first, torch.tensor([-3.0]), 0.2)
    # v = 0.75 v - a d; w = w + v
    assert first.vectors["momentum"].item() == pytest.approx(-0.1)
    assert first.parameters.item() == pytest.approx(1.9)
    assert second.vectors["momentum"].item() == pytest.approx(0.75 * -0.1 + 0.6)
    assert second.parameters.item() == pytest.approx(1.9 + 0.525)
    assert second.step == 7
    assert state.vectors["momentum"].item() == 0.0


def test_full_friction_is_langevin_limit():
    generator = torch.Generator().manual_seed(0)
    drifts = torch.randn(20, 30, generator=generator)
    states = [kernel.init(torch.ones(30), 0) for kernel in (sghmc.kernel(1.0), sgld.kernel())]
    for drift in drifts:
        states = [
            kernel.step(state, drift + state.parameters, 0.3)
            for kernel, state in zip((sghmc.kernel(1.0), sgld.kernel()), states, strict=True)
        ]
    torch.testing.assert_close(states[0].parameters, states[1].parameters, rtol=1e-5, atol=1e-6)


def test_momentum_carries_past_the_last_gradient():
    state = sghmc.step(sghmc.init(torch.zeros(1)), torch.ones(1), 1.0, friction=0.5)
    for _ in range(40):
        state = sghmc.step(state, torch.zeros(1), 1.0, friction=0.5)
    # -1 (1 + 1/2 + 1/4 + ...)
    assert state.parameters.item() == pytest.approx(-2.0)
