"""Start weights come from the server, so it chooses how large or small gradients are: the bound holds all the same."""

import numpy as np
import pytest
import torch

from fl_dpbayes.config.clipping import FLAT
from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.samplers.gradients.clipping import clip_factors, sum_clipped
from fl_dpbayes.samplers.gradients.engine import gradient_engine


def huge_gradient_model() -> torch.nn.Module:
    """Build a finite forward pass whose middle layer has a gradient of norm near the end of float32."""
    module = build_model(MLPModel(hidden=(4, 4)), Task(input_shape=(4,), classes=2), seed=0)
    first, middle, last = (layer for layer in module if isinstance(layer, torch.nn.Linear))
    with torch.no_grad():
        first.weight.fill_(1e18)
        middle.weight.fill_(1e-38)
        middle.bias.fill_(1e-19)
        last.weight[0], last.weight[1] = 2e18, -2e18
    return module


def test_factor_too_small_for_float32_never_rounds_above_the_bound() -> None:
    module = huge_gradient_model()
    engine = gradient_engine(module, (4,))
    record, label = torch.ones(1, 4), torch.ones(1, dtype=torch.int64)
    largest = 0.0
    for clip_norm in np.geomspace(1e-6, 1.0, 400):
        contribution = engine.clipped_sum(module, record, label, clip_norm=float(clip_norm)).total.double().norm()
        largest = max(largest, float(contribution) / clip_norm)
    assert engine.name == "book_keeping"
    assert 1 - 2e-6 < largest <= 1


@pytest.mark.parametrize("clip_norm", [1e-6, 1e-3])
def test_factor_below_float32_keeps_its_digits_limit(clip_norm: float) -> None:
    norms = torch.tensor([1e38, 3e38])
    (factors,) = clip_factors([norms], clip_norm, FLAT)
    assert (factors * norms.double()).tolist() == pytest.approx([clip_norm] * 2, rel=2e-6)
    assert (factors * norms.double()).max() <= clip_norm


def test_norm_of_many_parameters_is_no_underestimate() -> None:
    for size in (10**5, 10**6, 10**7):
        row = torch.rand(1, size, generator=torch.Generator().manual_seed(size)) + 0.1
        exact = row.double().norm()
        assert float(sum_clipped(row, 1.0).total.double().norm()) <= 1
        # Every partial sum rounds the same way: a norm summed in one float32 falls short by 0.8 % at ten millions.
        even = torch.full((1, size), 0.1)
        assert 1 - 2e-6 <= float(sum_clipped(even, 1.0).total.double().norm()) <= 1
        assert float(sum_clipped(row, 2 * float(exact)).total.double().norm()) == pytest.approx(float(exact), rel=1e-6)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000])
def test_norms_of_rows_of_any_length_are_right(size: int) -> None:
    rows = torch.randn(5, size, generator=torch.Generator().manual_seed(0)) * 3
    for row in rows:
        expected = row / max(1.0, float(row.double().norm()))
        torch.testing.assert_close(sum_clipped(row[None], 1.0).total.float(), expected, rtol=3e-6, atol=0)
