import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from fl_dpbayes.config.plan import AutomaticClipping, FlatClipping, GlobalClipping, PerLayerClipping
from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.variational import VariationalModule
from fl_dpbayes.samplers.gradients import book_keeping
from fl_dpbayes.samplers.gradients.layer_passes import LayerPass
from fl_dpbayes.samplers.gradients.loss import mean_over_draws, summed_cross_entropy
from fl_dpbayes.samplers.gradients.variational import layer_gradients_of_draws
from tests.samplers.gradients import one_by_one

LOSS = mean_over_draws(summed_cross_entropy)
TASK = Task(input_shape=(1, 8, 8), classes=3)
MODELS = [LogisticModel(), MLPModel(hidden=(9, 5)), CNNModel(channels=(3, 4), hidden=5)]


def resampled(base, draws, records, seed=0):
    module = one_by_one.randomise(VariationalModule(base, draws))
    module.resample(np.random.default_rng(seed), records)
    return module


def batch(*shape, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(1)), torch.arange(
        shape[0]
    ) % 3


@pytest.mark.slow
@given(
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    bias=st.booleans(),
    positions=st.sampled_from([(), (), (1,), (3,)]),
    draws=st.integers(1, 4),
    records=st.integers(1, 5),
    clip_norm=st.sampled_from([0.01, 0.5, 1e6]),
    clipping=st.sampled_from([FlatClipping(), PerLayerClipping(), AutomaticClipping()]),
)
def test_linear_equals_one_by_one_property(
    widths, bias, positions, draws, records, clip_norm, clipping
):
    layers = []
    for inputs, outputs in zip(widths, [*widths[1:], 4], strict=True):
        layers += [nn.Linear(inputs, outputs, bias), nn.Tanh()]
    base = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * math.prod(positions), 3, bias))
    module = resampled(base, draws, records)
    features, labels = batch(records, *positions, widths[0])
    # Where draws cancel, the bound on a norm's rounding grows with the square of how far they do.
    shorter = 2e-4 if draws > 1 else 0.0
    one_by_one.check(
        book_keeping,
        module,
        features,
        labels,
        clip_norm,
        clipping,
        loss=LOSS,
        shorter=shorter,
    )


@pytest.mark.slow
@given(
    groups=st.integers(1, 2),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    side=st.integers(3, 6),
    draws=st.integers(1, 3),
    records=st.integers(1, 4),
    clip_norm=st.sampled_from([0.01, 0.5, 1e6]),
)
def test_convolution_equals_one_by_one_property(
    groups, kernel, stride, padding, dilation, bias, side, draws, records, clip_norm
):
    assume(dilation * (kernel - 1) < side + 2 * padding)
    convolution = nn.Conv2d(2, 4, kernel, stride, padding, dilation, groups, bias)
    pixels = convolution(torch.zeros(1, 2, side, side)).numel()
    base = nn.Sequential(
        convolution, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(pixels, 3, bias)
    )
    module = resampled(base, draws, records)
    features, labels = batch(records, 2, side, side)
    one_by_one.check(book_keeping, module, features, labels, clip_norm, loss=LOSS)


def test_spread_gradient_is_that_of_finite_differences():
    module = resampled(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3)), 2, 4).double()
    module.noise = module.noise.double()
    features, labels = batch(4, 3)
    features = features.double()
    loss = mean_over_draws(
        lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="sum")
    )
    found = book_keeping.clipped_sum(module, features, labels, clip_norm=math.inf, loss=loss).total
    step = 1e-5
    differences = []
    with torch.no_grad():
        for parameter in module.parameters():
            for entry in range(parameter.numel()):
                values = []
                for sign in (1, -1):
                    parameter.view(-1)[entry] += sign * step
                    values.append(loss(module(features), labels).item())
                    parameter.view(-1)[entry] -= sign * step
                differences.append((values[0] - values[1]) / (2 * step))
    torch.testing.assert_close(
        found.double(), torch.tensor(differences, dtype=torch.float64), rtol=1e-4, atol=1e-6
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(
    draws=st.integers(1, 4),
    model=st.sampled_from(MODELS),
    input_exponent=st.integers(-30, 30),
    mean_exponent=st.integers(-30, 30),
    spread=st.sampled_from([-90.0, -20.0, 0.0, 50.0]),
    clip_norm=st.sampled_from([1e-6, 0.1, 1e3]),
    clipping=st.sampled_from(
        [FlatClipping(), PerLayerClipping(), AutomaticClipping(), GlobalClipping(bound=1e4)]
    ),
)
def test_one_record_never_adds_more_than_the_clip_norm_property(
    draws, model, input_exponent, mean_exponent, spread, clip_norm, clipping
):
    module = resampled(build_model(model, TASK, seed=0), draws, 1)
    for mean, width in zip(module.mean.parameters(), module.spread.parameters(), strict=True):
        mean.data *= 10.0**mean_exponent
        width.data += spread
    record, label = batch(1, *TASK.input_shape, scale=10.0**input_exponent)
    found = book_keeping.clipped_sum(
        module, record, label, clip_norm=clip_norm, clipping=clipping, loss=LOSS
    )
    assert found.total.isfinite().all()
    assert found.total.double().norm().item() <= clip_norm


@pytest.mark.parametrize("difference", [0.0, 1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("exponent", [-15, 0, 15])
def test_no_record_adds_more_than_its_norm_foretells_where_draws_cancel(difference, exponent):
    # Two draws with opposite output gradients: the sum over draws is a small difference of large
    # numbers.
    source = torch.Generator().manual_seed(0)
    a = torch.randn(50, 1, 40, generator=source).expand(50, 2, 40)
    g = torch.randn(50, 1, 30, generator=source) * torch.tensor([1.0, -1.0])[:, None]
    a, g = (values + difference * torch.randn(values.shape, generator=source) for values in (a, g))
    slopes = {
        "weight": torch.randn(1, 30, 40, generator=source).expand(2, 30, 40),
        "bias": torch.randn(1, 30, generator=source).expand(2, 30),
    }
    layer_pass = LayerPass(nn.Linear(40, 30), a * 10.0**exponent, g * 10.0**-exponent)
    for found in layer_gradients_of_draws(layer_pass, slopes):
        for index in range(50):
            factors = torch.zeros(50, dtype=torch.float64)
            factors[index] = 1 / found.norms[index].clamp(min=1e-30)
            contribution = torch.empty(found.size, dtype=torch.float64)
            found.weighted_sum(factors, torch.tensor([index]), out=contribution)
            assert contribution.norm().item() <= 1 + 1e-6


def test_sum_in_parts_is_that_of_the_whole():
    module = resampled(build_model(MODELS[2], TASK, seed=0), 3, 10)
    features, labels = batch(10, *TASK.input_shape)
    whole = book_keeping.clipped_sum(module, features, labels, clip_norm=0.3, loss=LOSS)
    parts = book_keeping.clipped_sum(module, features, labels, clip_norm=0.3, loss=LOSS, rows=4)
    torch.testing.assert_close(parts.total, whole.total, rtol=1e-5, atol=1e-6)
    assert (parts.units, parts.clipped) == (whole.units, whole.clipped) == (10, 10)
