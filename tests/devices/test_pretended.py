"""The pretended device refuses what a real one would, and lets pass what it would."""

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from tests.devices.pretended import CUDA, HOST, TwoDevicesError, pretended


def test_operators_on_two_devices_are_refused_in_forward_and_backward_passes_and_under_vmap() -> (
    None
):
    with pretended():
        here = torch.ones(3, 2)
        there = torch.ones(3, 2, device="cuda")
        assert (here.device, there.device, (there @ there.mT).device, there.cpu().device) == (
            HOST,
            CUDA,
            CUDA,
            HOST,
        )
        assert there.is_cuda
        assert not here.is_cuda
        for mixing in (
            lambda: here + there,
            lambda: torch.cat([here, there[:0]]),
            lambda: there.add_(here),
            lambda: here[there[:, 0] > 0],
            lambda: nn.Linear(2, 3)(there),
            lambda: vmap(lambda row: row @ here[0])(there),
            lambda: torch.mm(there, there.mT, out=torch.empty(3, 3)),
            lambda: grad(lambda values: (values * here).sum())(there),
        ):
            with pytest.raises(TwoDevicesError):
                mixing()
        leaf = there.clone().requires_grad_()
        (found,) = torch.autograd.grad(nn.Linear(2, 3).to("cuda")(leaf).square().sum(), leaf)
        assert found.device == CUDA
        # A number without an axis, and copies, are no mixing.
        assert (torch.zeros(()) + there).device == CUDA
        assert torch.empty(3, 2).copy_(there).device == HOST
        with pytest.raises(TypeError):
            there.numpy()


def test_moves_and_waits_are_counted() -> None:
    with pretended() as log:
        there = torch.ones(5).to("cuda")
        assert float(there.sum()) == 5
        assert there.to("cpu", non_blocking=True).numpy().tolist() == [1] * 5
        assert (
            nn.Linear(2, 3).to(torch.device("cuda"))(torch.ones(1, 2, device=there.device)).device
            == CUDA
        )
    assert log.moves[:2] == [("to cuda", 5), ("to cpu", 5)]
    assert log.waits == ["__float__"]
    assert torch.ones(3).device == HOST
