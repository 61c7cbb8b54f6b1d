import pytest
import torch

from fl_dpbayes.samplers import sgd, sghmc, sgld


def noisy_path(kernel, steps=12):
    """Positions on a quadratic with the same noise for every kernel, shape (steps, 50)."""
    generator = torch.Generator().manual_seed(0)
    start, curvature = torch.randn(50, generator=generator), torch.rand(50, generator=generator)
    noise = torch.randn(steps, 50, generator=generator)
    state, positions = kernel.init(start, 0), []
    for number in range(steps):
        state = kernel.step(state, curvature * state.parameters + noise[number], 0.2)
        positions.append(state.parameters)
    return torch.stack(positions)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_path_is_that_of_torch_bit_for_bit(momentum):
    generator = torch.Generator().manual_seed(0)
    start, curvature = torch.randn(50, generator=generator), torch.rand(50, generator=generator)
    parameter = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.SGD([parameter], lr=0.3, momentum=momentum)
    kernel = sgd.kernel(momentum)
    state = kernel.init(start, 0)
    for number in range(8):
        optimiser.param_groups[0]["lr"] = 0.3 * 0.9**number
        parameter.grad = curvature * parameter.detach()
        optimiser.step()
        state = kernel.step(state, curvature * state.parameters, 0.3 * 0.9**number)
        assert torch.equal(state.parameters, parameter.detach())
    assert state.step == 8


def test_step_is_the_formula_by_hand_and_leaves_its_input():
    state = sgd.init(torch.tensor([2.0]), 3)
    first = sgd.step(state, torch.tensor([1.0]), 0.1, momentum=0.5)
    second = sgd.step(first, torch.tensor([-3.0]), 0.2, momentum=0.5)
    assert first.parameters.item() == pytest.approx(1.9)
    assert second.vectors["momentum"].item() == pytest.approx(0.5 * 1.0 - 3.0)
    assert second.parameters.item() == pytest.approx(1.9 - 0.2 * -2.5)
    assert second.step == 5
    assert state.vectors["momentum"].item() == 0.0
    assert first.vectors["momentum"].item() == 1.0


def test_no_momentum_is_the_langevin_kernel_bit_for_bit_limit():
    assert torch.equal(noisy_path(sgd.kernel(0.0)), noisy_path(sgld.kernel()))
    assert sgd.kernel(0.0).init(torch.zeros(2), 0).vectors.keys() == {"parameters"}


def test_momentum_is_hamiltonian_with_the_rest_as_friction():
    torch.testing.assert_close(noisy_path(sgd.kernel(0.8)), noisy_path(sghmc.kernel(0.2)))
