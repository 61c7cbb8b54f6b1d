"""Every engine, clipping rule and loss against one backward pass per record.

And the bound that the noise relies on.
"""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from fl_dpbayes.config.plan import FLAT, AutomaticClipping, GlobalClipping, PerLayerClipping
from fl_dpbayes.samplers.gradients import book_keeping, vmap
from fl_dpbayes.samplers.gradients.clipping import clip_factors, sum_clipped
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from fl_dpbayes.samplers.gradients.layer_gradients import layer_gradients
from fl_dpbayes.samplers.gradients.loss import (
    summed_cross_entropy,
    summed_gaussian_negative_log_likelihood,
)
from fl_dpbayes.samplers.gradients.vmap import layer_sizes, per_unit_gradients
from tests.samplers.gradients import one_by_one

ENGINES = [book_keeping, vmap]
RULES = ["flat", "global", "automatic", "per-layer"]


def rule(kind, clip_norm):
    return {
        "flat": FLAT,
        "global": GlobalClipping(bound=3 * clip_norm),
        "automatic": AutomaticClipping(stability=1e-6 if clip_norm > 1 else 0.1),
        "per-layer": PerLayerClipping(),
    }[kind]


def classes(records):
    return torch.arange(records) % 3


def values(records):
    return torch.linspace(-2, 1, records)


def gaussian(outputs, targets):
    variance = outputs[:, 1].exp()
    return -torch.distributions.Normal(outputs[:, 0], variance.sqrt()).log_prob(targets).sum()


# Outputs per record, targets, the library's loss, the reference.
LOSSES = {
    "cross_entropy": (3, classes, summed_cross_entropy, nn.CrossEntropyLoss(reduction="sum")),
    "gaussian": (2, values, summed_gaussian_negative_log_likelihood, gaussian),
}


def records_of(count, *shape):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


# A norm that is computed without forming a gradient over several positions is an upper bound: the
# more they cancel, the more it is above, and the shorter is what is clipped.
SHORTER = 1e-4


# How a sum is asked for: a clipping rule, its norm, a loss.
ASKED = {
    "kind": st.sampled_from(RULES),
    "clip_norm": st.sampled_from([0.01, 0.5, 1e3]),
    "loss": st.sampled_from(sorted(LOSSES)),
}


def assert_equals_one_by_one(module, features, kind, clip_norm, loss, *, shorter=0.0):
    _, targets_of, own_loss, reference_loss = LOSSES[loss]
    targets = targets_of(len(features))
    one_by_one.randomise(module)
    clipping = rule(kind, clip_norm)
    expected = one_by_one.clipped_sum(
        module, features, targets, clip_norm, clipping, reference_loss
    )
    # In one pass, and in pieces of two records.
    for engine, rows in itertools.product(ENGINES, (512, 2)):
        options = {"clip_norm": clip_norm, "clipping": clipping, "loss": own_loss, "rows": rows}
        found = engine.clipped_sum(module, features, targets, **options)
        assert found.units == len(features)
        one_by_one.assert_matches(
            found.total,
            expected,
            clip_norm=clip_norm,
            records=len(features),
            shorter=shorter,
        )


@pytest.mark.slow
@given(
    data=st.data(),
    groups=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 1)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
    side=st.integers(2, 7),
    records=st.integers(1, 4),
    **ASKED,
)
def test_convolution_under_every_rule_property(
    data, groups, kernel, stride, padding, dilation, bias, side, records, kind, clip_norm, loss
):
    for axis in (0, 1):
        assume(dilation[axis] * (kernel[axis] - 1) < side + 2 * padding[axis])
    inputs = groups * data.draw(st.integers(1, 2))
    outputs = groups * data.draw(st.integers(1, 6))
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias)
    pixels = convolution(torch.zeros(1, inputs, side, side)).numel()
    module = nn.Sequential(
        convolution, nn.Tanh(), nn.Flatten(), nn.Linear(pixels, LOSSES[loss][0], bias)
    )
    features = records_of(records, inputs, side, side)
    assert_equals_one_by_one(module, features, kind, clip_norm, loss, shorter=SHORTER)


@pytest.mark.slow
@given(
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    bias=st.booleans(),
    positions=st.sampled_from([(), (1,), (3,), (2, 2)]),
    records=st.integers(1, 5),
    **ASKED,
)
def test_linear_under_every_rule_property(widths, bias, positions, records, kind, clip_norm, loss):
    layers = []
    for inputs, outputs in zip(widths, [*widths[1:], 4], strict=True):
        layers += [nn.Linear(inputs, outputs, bias), nn.Tanh()]
    module = nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(4 * math.prod(positions), LOSSES[loss][0], bias)
    )
    features = records_of(records, *positions, widths[0])
    shorter = SHORTER if positions else 0.0
    assert_equals_one_by_one(module, features, kind, clip_norm, loss, shorter=shorter)


@pytest.mark.slow
@settings(max_examples=24)
@given(
    layer=st.sampled_from(["group_norm", "layer_norm", "tokens", "embedding", "padded", "conv1d"]),
    records=st.integers(1, 4),
    **ASKED,
)
def test_other_layers_under_every_rule_property(layer, records, kind, clip_norm, loss):
    outputs = LOSSES[loss][0]
    # A Conv1d has no shortcut: it is mapped over records within the book-keeping pass.
    module = {
        "group_norm": nn.Sequential(
            nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, outputs)
        ),
        "layer_norm": nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, outputs)
        ),
        "tokens": nn.Sequential(
            nn.Unflatten(1, (3, 2)),
            nn.LayerNorm(2),
            nn.Linear(2, 30),
            nn.LayerNorm((3, 30)),
            nn.GroupNorm(3, 3),
            nn.Flatten(),
            nn.Linear(90, outputs),
        ),
        "embedding": nn.Sequential(
            one_by_one.Whole(), nn.Embedding(5, 3), nn.Flatten(), nn.Linear(18, outputs)
        ),
        "padded": nn.Sequential(
            one_by_one.Whole(),
            nn.Embedding(5, 3, padding_idx=0),
            nn.Flatten(),
            nn.Linear(18, outputs),
        ),
        "conv1d": nn.Sequential(
            nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 2), nn.Flatten(), nn.Linear(8, outputs)
        ),
    }[layer]
    assert gradient_engine(module, (6,)).name == "book_keeping"
    assert_equals_one_by_one(module, records_of(records, 6), kind, clip_norm, loss)


@pytest.mark.parametrize("kind", RULES)
def test_units_under_every_rule(kind):
    module = one_by_one.randomise(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))
    features = records_of(9, 5)
    targets = classes(9)
    index = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2])
    gradients = per_unit_gradients(module, features, targets, index, 3)
    for clip_norm in (0.01, 0.5):
        clipping = rule(kind, clip_norm)
        units = [
            one_by_one.gradient_of(module, features[index == unit], targets[index == unit])
            for unit in range(3)
        ]
        expected = sum(one_by_one.clipped(unit, clip_norm, clipping, [24, 15]) for unit in units)
        found = sum_clipped(gradients, clip_norm, clipping, layer_sizes(module))
        one_by_one.assert_matches(found.total, expected, clip_norm=clip_norm, records=3)


def test_clipped_records_are_counted_over_pieces():
    module = one_by_one.randomise(nn.Linear(5, 3))
    features = records_of(20, 5)
    targets = classes(20)
    rows = [
        one_by_one.gradient_of(module, features[i : i + 1], targets[i : i + 1]).norm()
        for i in range(20)
    ]
    bound = float(torch.stack(rows).median()) * (1 + 1e-3)
    expected = sum(bool(row > bound) for row in rows)
    for engine in ENGINES:
        found = engine.clipped_sum(module, features, targets, clip_norm=bound, rows=6)
        assert (found.clipped, found.units) == (expected, 20)
    assert 0 < expected < 20


EXPONENTS = st.integers(-30, 30)


@settings(max_examples=50)
@given(
    exponents=st.tuples(EXPONENTS, st.integers(-12, 12), st.integers(-12, 12)),
    clip_norm=st.sampled_from([1e-6, 1.0, 1e6]),
    kind=st.sampled_from(RULES),
    loss=st.sampled_from(sorted(LOSSES)),
    form=st.sampled_from(["dense", "sequence", "formed", "gram"]),
    seed=st.integers(0, 99),
)
def test_no_record_contributes_more_than_the_bound_property(
    exponents, clip_norm, kind, loss, form, seed
):
    outputs, targets_of, own_loss, _ = LOSSES[loss]
    first, size = {
        "dense": (nn.Sequential(nn.Flatten(), nn.Linear(32, 8)), 8),
        "sequence": (nn.Sequential(nn.Flatten(2), nn.Linear(16, 30)), 60),
        "formed": (nn.Conv2d(2, 3, 3), 12),
        "gram": (nn.Conv2d(2, 40, 3), 160),
    }[form]
    module = nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(size, outputs))
    one_by_one.randomise(module, seed)
    with torch.no_grad():
        for value, exponent in zip(
            module.parameters(), (exponents[1], 0, exponents[2], 0), strict=True
        ):
            value *= 10.0**exponent
    features = records_of(1, 2, 4, 4) * 10.0 ** exponents[0]
    for engine in ENGINES:
        found = engine.clipped_sum(
            module,
            features,
            targets_of(1),
            clip_norm=clip_norm,
            clipping=rule(kind, clip_norm),
            loss=own_loss,
        )
        assert float(found.total.double().norm()) <= clip_norm


@settings(max_examples=80)
@given(
    inputs=EXPONENTS,
    upstream=EXPONENTS,
    difference=st.integers(-12, 0),
    outputs=st.sampled_from([2, 64]),
    clip_norm=st.sampled_from([1e-6, 1e-3, 1.0]),
    kind=st.sampled_from(RULES),
    seed=st.integers(0, 99),
)
def test_positions_that_cancel_keep_within_the_bound_property(
    inputs, upstream, difference, outputs, clip_norm, kind, seed
):
    layer = nn.Conv2d(32, outputs, 1)
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(1, 32, 1, 1, generator=generator).expand(1, 32, 2, 2)
    g = torch.randn(1, outputs, 1, 1, generator=generator) * torch.tensor(
        [[1.0, -1.0], [1.0, -1.0]]
    )
    g = g + 10.0**difference * torch.randn(1, outputs, 2, 2, generator=generator)
    found = layer_gradients(layer, a * 10.0**inputs, g * 10.0**upstream)
    (factors,) = clip_factors([found.norms], clip_norm, rule(kind, clip_norm))
    contribution = one_by_one.contribution(found, factors)
    assert float(contribution.double().norm()) <= clip_norm


@pytest.mark.parametrize("outputs", [4, 64])
def test_bias_gradients_that_cancel_keep_within_the_bound(outputs):
    layer = nn.Conv2d(8, outputs, 1)
    norms = []
    generator = torch.Generator().manual_seed(0)
    for upstream in torch.linspace(-3, 8, 100):
        g = (
            10**upstream
            * torch.randn(1, outputs, 1, 1, generator=generator)
            * torch.tensor([[1.0, -1.0], [1.0, -1.0]])
        )
        g = g + 1e-2 * torch.randn(1, outputs, 2, 2, generator=generator)
        found = layer_gradients(layer, torch.zeros(1, 8, 2, 2), g)
        contribution = one_by_one.contribution(found, *clip_factors([found.norms], 1e-3, FLAT))
        norms.append(float(contribution.double().norm()))
    assert 0.99e-3 <= max(norms) <= 1e-3


@pytest.mark.parametrize("exponent", range(-30, -18))
def test_products_that_underflow_between_positions_keep_within_the_bound(exponent):
    layer = nn.Conv2d(64, 64, 1, bias=False)
    for inputs in range(10, 20):
        a = torch.full((1, 64, 2, 2), 10.0**inputs)
        g = torch.full((1, 64, 2, 2), 10.0**exponent)
        found = layer_gradients(layer, a, g)
        assert found.product is not None
        contribution = one_by_one.contribution(found, *clip_factors([found.norms], 1e-6, FLAT))
        assert float(contribution.double().norm()) <= 1e-6
