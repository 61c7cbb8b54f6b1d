import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from fl_dpbayes.samplers.gradients import book_keeping
from fl_dpbayes.samplers.gradients.layer_gradients import layer_gradients


def convolution_net(inputs, outputs, groups, kernel, stride, padding, dilation, bias, side):
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias)
    pixels = convolution(torch.zeros(1, inputs, side, side)).numel()
    return nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), nn.Linear(pixels, 3, bias=bias))


@settings(deadline=None, derandomize=True, max_examples=80)
@given(
    data=st.data(),
    groups=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 1)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
    side=st.integers(2, 8),
    records=st.integers(1, 5),
    clip_norm=st.sampled_from([0.01, 0.5, 1e6]),
)
def test_convolution_equals_one_by_one_property(
    one_by_one, data, groups, kernel, stride, padding, dilation, bias, side, records, clip_norm
):
    for axis in (0, 1):
        assume(dilation[axis] * (kernel[axis] - 1) < side + 2 * padding[axis])
    inputs, outputs = groups * data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 8))
    module = convolution_net(inputs, outputs, groups, kernel, stride, padding, dilation, bias, side)
    one_by_one.randomise(module)
    features = torch.randn(records, inputs, side, side, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(records) % 3
    found = book_keeping.clipped_sum(module, features, labels, clip_norm=clip_norm).total
    expected = one_by_one.clipped_sum(module, features, labels, clip_norm)
    one_by_one.assert_matches(found, expected, clip_norm=clip_norm, records=records)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    bias=st.booleans(),
    positions=st.sampled_from([(), (1,), (3,), (2, 2)]),
    records=st.integers(1, 6),
    clip_norm=st.sampled_from([0.01, 0.5, 1e6]),
)
def test_linear_equals_one_by_one_property(one_by_one, widths, bias, positions, records, clip_norm):
    layers = []
    for inputs, outputs in zip(widths, [*widths[1:], 4], strict=True):
        layers += [nn.Linear(inputs, outputs, bias), nn.Tanh()]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * math.prod(positions), 3, bias))
    one_by_one.randomise(module)
    features = torch.randn(records, *positions, widths[0], generator=torch.Generator().manual_seed(1))
    labels = torch.arange(records) % 3
    found = book_keeping.clipped_sum(module, features, labels, clip_norm=clip_norm).total
    expected = one_by_one.clipped_sum(module, features, labels, clip_norm)
    one_by_one.assert_matches(found, expected, clip_norm=clip_norm, records=records)


@pytest.mark.parametrize("outputs", [2, 64], ids=["instantiated", "gram"])
def test_both_forms_of_a_convolution_give_the_true_norm(one_by_one, outputs):
    layer = one_by_one.randomise(nn.Conv2d(8, outputs, 3, padding=1))
    generator = torch.Generator().manual_seed(0)
    inputs, upstream = torch.randn(3, 8, 4, 4, generator=generator), torch.randn(3, outputs, 4, 4, generator=generator)
    found = layer_gradients(layer, inputs, upstream)
    assert (found.weights is None) == (outputs == 64)
    for index in range(3):
        gradients = torch.autograd.grad(layer(inputs[index][None]), layer.parameters(), upstream[index][None])
        expected = torch.cat([gradient.double().reshape(-1) for gradient in gradients]).norm().item()
        assert found.norms[index].item() == pytest.approx(expected, rel=2e-5)


def test_gram_norm_is_no_underestimate_where_positions_cancel():
    # Equal patches with alternating output gradients: the weight gradient is a small difference of large numbers.
    layer = nn.Conv2d(64, 64, 1, bias=False)
    generator = torch.Generator().manual_seed(0)
    inputs = (torch.randn(50, 64, 1, 1, generator=generator) * 1e3).expand(50, 64, 2, 2)
    upstream = torch.randn(50, 64, 1, 1, generator=generator) * torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    upstream = upstream + 1e-4 * torch.randn(50, 64, 2, 2, generator=generator)
    found = layer_gradients(layer, inputs, upstream)
    assert found.weights is None
    true = torch.einsum("nohw,nphw->nop", upstream.double(), inputs.double()).square().sum((1, 2))
    assert (found.norms.double() >= true.sqrt()).all()


def test_linear_norm_is_no_underestimate_where_squares_underflow():
    layer = nn.Linear(1, 1, bias=False)
    inputs, output_gradients = torch.tensor([[1e18]]), torch.tensor([[1e-23]])
    found = layer_gradients(layer, inputs, output_gradients)
    assert found.norms.item() >= inputs.double().item() * output_gradients.double().item()


def test_norm_of_a_large_gradient_does_not_overflow():
    found = layer_gradients(nn.Linear(1280, 1), torch.full((1, 1280), 1e15), torch.full((1, 1), 1e5))
    assert found.norms.item() == pytest.approx(1e20 * math.sqrt(1280), rel=1e-5)


@pytest.mark.parametrize("channels", [(3, 40), (16, 4)])
def test_clipped_contribution_of_one_record_stays_within_the_bound(one_by_one, channels):
    first, second = channels
    module = nn.Sequential(
        nn.Conv2d(1, first, 3), nn.ReLU(), nn.Conv2d(first, second, 3), nn.Flatten(), nn.Linear(second * 16, 3)
    )
    one_by_one.randomise(module)
    features = 10 * torch.randn(100, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    for record in features:
        found = book_keeping.clipped_sum(module, record[None], torch.tensor([1]), clip_norm=0.1).total
        assert found.double().norm().item() <= 0.1 * (1 + 1e-6)


def test_activation_in_place_changes_nothing(one_by_one):
    features = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(5) % 3
    sums = []
    for in_place in (False, True):
        layers = [nn.Conv2d(1, 3, 3), nn.ReLU(in_place), nn.Flatten(), nn.Linear(48, 4), nn.ReLU(in_place)]
        module = one_by_one.randomise(nn.Sequential(*layers, nn.Linear(4, 3)))
        sums.append(book_keeping.clipped_sum(module, features, labels, clip_norm=0.3).total)
    assert torch.equal(*sums)


def test_many_records_are_summed_in_pieces(one_by_one):
    module = one_by_one.randomise(nn.Linear(5, 3))
    features = torch.randn(50, 5, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(50) % 3
    whole = book_keeping.clipped_sum(module, features, labels, clip_norm=0.3).total
    parts = book_keeping.clipped_sum(module, features, labels, clip_norm=0.3, rows=7).total
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_frozen_layer_has_no_part_in_norm_or_sum(one_by_one):
    module = one_by_one.randomise(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))
    module[0].requires_grad_(False)
    features, labels = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    found = book_keeping.clipped_sum(module, features, labels, clip_norm=0.3).total
    assert found.shape == (15,)
    expected = one_by_one.clipped_sum(module, features, labels, 0.3)
    one_by_one.assert_matches(found, expected, clip_norm=0.3, records=6)
