import pytest
import torch

from fl_dpbayes.samplers import sgld


def test_step_is_the_formula_by_hand():
    kernel = sgld.kernel()
    state = kernel.init(torch.tensor([2.0, -1.0]), 7)
    after = kernel.step(state, torch.tensor([3.0, 0.5]), 0.1)
    torch.testing.assert_close(after.parameters, torch.tensor([2.0 - 0.1 * 3.0, -1.0 - 0.1 * 0.5]))
    assert after.step == 8
    assert after.vectors.keys() == {"parameters"}
    assert torch.equal(state.parameters, torch.tensor([2.0, -1.0]))


def test_path_is_a_hand_written_loop_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    precision, centre, start = (torch.rand(50, generator=generator) for _ in range(3))
    noise = torch.randn(20, 50, generator=generator)
    kernel, state, w = sgld.kernel(), sgld.init(start), start.clone()
    for number in range(20):
        size = 0.3 / (1 + number)
        state = kernel.step(state, precision * (state.parameters - centre) + noise[number], size)
        w.add_(precision * (w - centre) + noise[number], alpha=-size)
        assert torch.equal(state.parameters, w)
    assert state.step == 20


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_no_noise_is_gradient_descent_bit_for_bit_limit(decay):
    generator = torch.Generator().manual_seed(0)
    start, curvature = torch.randn(50, generator=generator), torch.rand(50, generator=generator)
    parameter = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.SGD([parameter], lr=0.3)
    kernel, state = sgld.kernel(), sgld.init(start)
    for number in range(8):
        optimiser.param_groups[0]["lr"] = 0.3 * decay**number
        parameter.grad = curvature * parameter.detach()
        optimiser.step()
        state = kernel.step(state, curvature * state.parameters, 0.3 * decay**number)
        assert torch.equal(state.parameters, parameter.detach())
