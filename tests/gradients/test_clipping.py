import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.gradients.clipping import clip_factors, sum_clipped


@settings(deadline=None, derandomize=True, max_examples=200)
@given(norm=st.floats(0, 2.0**99, width=32), clip_norm=st.floats(1e-6, 1e6))
def test_clipped_norm_never_exceeds_the_bound_property(norm, clip_norm):
    factor = clip_factors(torch.tensor([norm]), clip_norm).double().item()
    assert 0 <= factor <= 1
    assert factor * norm <= clip_norm
    assert factor == 1 or factor * norm >= clip_norm * (1 - 2e-6)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
@pytest.mark.parametrize("clip_norm", [1.0, math.inf])
def test_norm_that_is_not_finite_gives_zero(norm, clip_norm):
    assert clip_factors(torch.tensor([norm, 0.5]), clip_norm).tolist() == [0.0, 0.5 if clip_norm < 0.5 else 1.0]


def test_zero_gradient_and_infinite_bound_are_left_alone_limit():
    assert clip_factors(torch.tensor([0.0, 3.0]), math.inf).tolist() == [1.0, 1.0]
    assert clip_factors(torch.tensor([0.0]), 1.0).tolist() == [1.0]


def test_sum_of_hand_made_rows():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [math.nan, 1.0], [math.inf, 0.0], [1e30, 0.0]])
    torch.testing.assert_close(sum_clipped(rows, 1.0), torch.tensor([0.9, 1.2]), rtol=2e-6, atol=0)


def test_each_materialised_row_stays_within_the_bound():
    rows = torch.randn(500, 1000, generator=torch.Generator().manual_seed(0)) * 10
    norms = [sum_clipped(row[None], 1.0).double().norm().item() for row in rows]
    assert max(norms) <= 1 + 1e-6
