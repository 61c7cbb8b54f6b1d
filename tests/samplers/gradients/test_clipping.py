import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.config.plan import FLAT, AutomaticClipping, GlobalClipping, PerLayerClipping
from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.samplers.gradients.clipping import clip_factors, sum_clipped
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from tests.samplers.gradients.one_by_one import clipped

NORMS = st.floats(0, 2.0**99, width=32)
CLIP_NORMS = st.floats(1e-6, 1e6)


def only_factor(norm, clip_norm, clipping=FLAT):
    (factors,) = clip_factors([torch.tensor([norm])], clip_norm, clipping)
    return factors.double().item()


@settings(max_examples=200)
@given(
    norms=st.lists(NORMS, min_size=1, max_size=5),
    clip_norm=CLIP_NORMS,
    ratio=st.floats(1, 1e6),
    kind=st.sampled_from([FLAT, GlobalClipping, AutomaticClipping, PerLayerClipping()]),
    stability=st.floats(1e-6, 1e3),
)
def test_each_rule_is_its_formula_and_never_exceeds_the_bound_property(
    norms, clip_norm, kind, ratio, stability
):
    settings = {
        GlobalClipping: {"bound": clip_norm * ratio},
        AutomaticClipping: {"stability": stability},
    }
    clipping = kind(**settings[kind]) if kind in settings else kind
    factors = clip_factors([torch.tensor([norm]) for norm in norms], clip_norm, clipping)
    contributions = [
        factor.double().item() * norm for factor, norm in zip(factors, norms, strict=True)
    ]
    assert all(factor >= 0 for factor in factors)
    assert math.hypot(*contributions) <= clip_norm
    expected = clipped(
        torch.tensor(norms, dtype=torch.float64), clip_norm, clipping, [1] * len(norms)
    )
    assert contributions == pytest.approx(
        expected.tolist(), rel=2e-6, abs=2e-6 * min(clip_norm, max(norms))
    )


def test_global_factor_does_not_jump():
    norms = torch.linspace(0, 5, 5001, dtype=torch.float64)
    (factors,) = clip_factors([norms], 1.0, GlobalClipping(bound=2.0))
    assert float(factors.diff().abs().max()) <= 0.001 / 4 * (1 + 1e-6)
    assert float((factors * norms).max()) <= 1


@pytest.mark.parametrize("norm", [math.nan, math.inf])
@pytest.mark.parametrize(
    "clipping", [FLAT, GlobalClipping(bound=2.0), AutomaticClipping(), PerLayerClipping()]
)
def test_one_layer_that_is_not_finite_discards_the_whole_gradient(norm, clipping):
    factors = clip_factors([torch.tensor([0.5, 0.5]), torch.tensor([norm, 0.5])], 1.0, clipping)
    assert [each[0].item() for each in factors] == [0.0, 0.0]
    assert all(each[1] > 0 for each in factors)


def test_zero_gradient_and_infinite_bound_are_left_alone_limit():
    for clipping in (FLAT, PerLayerClipping()):
        (factors,) = clip_factors([torch.tensor([0.0, 3.0])], math.inf, clipping)
        assert factors.tolist() == [1.0, 1.0]
        assert only_factor(0.0, 1.0, clipping) == 1.0


def test_rules_that_scale_to_the_bound_refuse_an_infinite_one():
    with pytest.raises(ValueError, match="finite"):
        only_factor(1.0, math.inf, AutomaticClipping())
    for clip_norm in (2.1, math.inf):
        with pytest.raises(ValueError, match=r"bound 2\.0 below clip_norm"):
            only_factor(1.0, clip_norm, GlobalClipping(bound=2.0))


ROWS = torch.tensor([[3.0, 4.0], [0.3, 0.4], [math.nan, 1.0], [math.inf, 0.0]])


@pytest.mark.parametrize(
    ("clipping", "total", "reduced"),
    [
        (FLAT, [0.9, 1.2], 3),
        (GlobalClipping(bound=10.0), [0.33, 0.44], 4),
        (GlobalClipping(bound=2.0), [0.15, 0.2], 4),
        (AutomaticClipping(stability=0.5), [3 / 5.5 + 0.3, 4 / 5.5 + 0.4], 4),
        (PerLayerClipping(), [1 / math.sqrt(2) + 0.3, 1 / math.sqrt(2) + 0.4], 3),
    ],
)
def test_sum_of_hand_made_rows(clipping, total, reduced):
    found = sum_clipped(ROWS, 1.0, clipping, [1, 1])
    torch.testing.assert_close(
        found.total, torch.tensor(total, dtype=torch.float64), rtol=2e-6, atol=0
    )
    assert (found.clipped, found.units) == (reduced, 4)


def test_padding_contributes_nothing_whatever_it_holds_and_is_not_counted():
    found = sum_clipped(ROWS, 1.0, count=2)
    assert torch.equal(found.total, sum_clipped(ROWS[:2], 1.0).total)
    assert (found.clipped, found.units) == (1, 2)


@pytest.mark.parametrize(
    "clipping", [FLAT, GlobalClipping(bound=400.0), AutomaticClipping(), PerLayerClipping()]
)
def test_each_materialised_row_stays_within_the_bound(clipping):
    rows = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0)) * 10
    norms = [
        sum_clipped(row[None], 1.0, clipping, [700, 300]).total.double().norm().item()
        for row in rows
    ]
    assert 0.7 < max(norms) <= 1


# Start weights come from the server, so it chooses how large or small gradients are: the bound
# holds all the same.


def huge_gradient_model() -> torch.nn.Module:
    """Build a finite forward pass with a middle gradient of norm near the end of float32."""
    module = build_model(MLPModel(hidden=(4, 4)), Task(input_shape=(4,), classes=2), seed=0)
    first, middle, last = (layer for layer in module if isinstance(layer, torch.nn.Linear))
    with torch.no_grad():
        first.weight.fill_(1e18)
        middle.weight.fill_(1e-38)
        middle.bias.fill_(1e-19)
        last.weight[0] = 2e18
        last.weight[1] = -2e18
    return module


def test_factor_too_small_for_float32_never_rounds_above_the_bound() -> None:
    module = huge_gradient_model()
    engine = gradient_engine(module, (4,))
    record = torch.ones(1, 4)
    label = torch.ones(1, dtype=torch.int64)
    largest = 0.0
    for clip_norm in np.geomspace(1e-6, 1.0, 400):
        contribution = (
            engine.clipped_sum(module, record, label, clip_norm=float(clip_norm))
            .total.double()
            .norm()
        )
        largest = max(largest, float(contribution) / clip_norm)
    assert engine.name == "book_keeping"
    assert 1 - 2e-6 < largest <= 1


@pytest.mark.parametrize("clip_norm", [1e-6, 1e-3])
def test_factor_below_float32_keeps_its_digits_limit(clip_norm: float) -> None:
    norms = torch.tensor([1e38, 3e38])
    (factors,) = clip_factors([norms], clip_norm, FLAT)
    assert (factors * norms.double()).tolist() == pytest.approx([clip_norm] * 2, rel=2e-6)
    assert (factors * norms.double()).max() <= clip_norm


def test_norm_of_any_number_of_parameters_is_right_and_no_underestimate() -> None:
    row = torch.rand(1, 10**6, generator=torch.Generator().manual_seed(0)) + 0.1
    exact = float(row.double().norm())
    assert float(sum_clipped(row, 1.0).total.norm()) <= 1
    assert float(sum_clipped(row, 2 * exact).total.norm()) == pytest.approx(exact, rel=1e-6)
    for size in (1, 255, 256, 257, 1000):
        part = row[:, :size] * 30
        expected = part[0] / max(1.0, float(part.double().norm()))
        torch.testing.assert_close(
            sum_clipped(part, 1.0).total.float(), expected, rtol=3e-6, atol=0
        )
    # Every partial sum rounds the same way: a norm summed in one float32 falls short by 0.8 % at
    # ten millions.
    assert 1 - 4e-6 <= float(sum_clipped(torch.full((1, 10**7), 0.1), 1.0).total.norm()) <= 1
