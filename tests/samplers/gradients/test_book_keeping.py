import math

import pytest
import torch
from torch import nn

from fl_dpbayes.samplers.gradients import book_keeping
from fl_dpbayes.samplers.gradients.contribution import used_rows
from fl_dpbayes.samplers.gradients.layer_gradients import layer_gradients
from tests.samplers.gradients import one_by_one


@pytest.mark.parametrize(
    ("outputs", "side", "settings"),
    [
        (2, 4, {}),
        (64, 4, {}),
        (4, 7, {}),
        (4, 7, {"stride": 2, "padding": 5, "dilation": 2, "bias": False}),
    ],
    ids=["patches", "gram", "mapped", "mapped, strided"],
)
def test_all_forms_of_a_convolution_give_the_true_norm_and_sum(outputs, side, settings):
    layer = one_by_one.randomise(nn.Conv2d(16, outputs, 3, groups=2, **{"padding": 1} | settings))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 16, side, side, generator=generator)
    upstream = torch.randn(layer(inputs).shape, generator=generator)
    found = layer_gradients(layer, inputs, upstream)
    assert (found.product is None) == (outputs != 64)
    pairs = zip(inputs, upstream, strict=True)
    parts = [torch.autograd.grad(layer(row[None]), layer.parameters(), g[None]) for row, g in pairs]
    gradients = [torch.cat([part.double().flatten() for part in own]) for own in parts]
    torch.testing.assert_close(found.norms, torch.stack(gradients).norm(dim=1), rtol=2e-5, atol=0)
    factors = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    total = torch.empty_like(gradients[0])
    found.weighted_sum(factors, used_rows(factors), total)
    torch.testing.assert_close(total, 0.5 * gradients[0] + 2 * gradients[2], rtol=1e-4, atol=1e-5)


def test_gram_norm_is_no_underestimate_where_positions_cancel():
    # Equal patches with alternating output gradients: the weight gradient is a small difference of
    # large numbers.
    layer = nn.Conv2d(64, 64, 1, bias=False)
    generator = torch.Generator().manual_seed(0)
    inputs = (torch.randn(50, 64, 1, 1, generator=generator) * 1e3).expand(50, 64, 2, 2)
    upstream = torch.randn(50, 64, 1, 1, generator=generator) * torch.tensor(
        [[1.0, -1.0], [1.0, -1.0]]
    )
    upstream = upstream + 1e-4 * torch.randn(50, 64, 2, 2, generator=generator)
    found = layer_gradients(layer, inputs, upstream)
    assert found.product is not None
    true = torch.einsum("nohw,nphw->nop", upstream.double(), inputs.double()).square().sum((1, 2))
    assert (found.norms.double() >= true.sqrt()).all()


def test_linear_norm_is_no_underestimate_where_squares_leave_float32():
    layer = nn.Linear(1, 1, bias=False)
    inputs = torch.tensor([[1e18]])
    output_gradients = torch.tensor([[1e-23]])
    found = layer_gradients(layer, inputs, output_gradients)
    assert found.norms.item() >= inputs.double().item() * output_gradients.double().item()
    # And where they overflow.
    found = layer_gradients(
        nn.Linear(1280, 1), torch.full((1, 1280), 1e15), torch.full((1, 1), 1e5)
    )
    assert found.norms.item() == pytest.approx(1e20 * math.sqrt(1280), rel=1e-5)


def test_activation_in_place_changes_nothing():
    features = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(5) % 3
    sums = []
    for in_place in (False, True):
        layers = [
            nn.Conv2d(1, 3, 3),
            nn.ReLU(in_place),
            nn.Flatten(),
            nn.Linear(48, 4),
            nn.ReLU(in_place),
        ]
        module = one_by_one.randomise(nn.Sequential(*layers, nn.Linear(4, 3)))
        sums.append(book_keeping.clipped_sum(module, features, labels, clip_norm=0.3).total)
    assert torch.equal(*sums)
