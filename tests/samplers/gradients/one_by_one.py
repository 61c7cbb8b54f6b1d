"""What every engine must meet: one backward pass per record, clipped in float64.

And modules to try it on.
"""

import math

import torch
from torch import nn
from torch.nn import functional

from fl_dpbayes.config.plan import FLAT
from fl_dpbayes.samplers.gradients.contribution import used_rows


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs.float(), targets, reduction="sum")


def gradient_of(module, features, targets, loss=cross_entropy):
    parameters = [value for value in module.parameters() if value.requires_grad]
    gradients = torch.autograd.grad(loss(module(features), targets), parameters)
    return torch.cat([gradient.reshape(-1) for gradient in gradients]).double()


def sizes_of_layers(module):
    own = (
        [value for value in layer.parameters(recurse=False) if value.requires_grad]
        for layer in module.modules()
    )
    return [sum(value.numel() for value in values) for values in own if values]


def clipped(gradient, clip_norm, clipping=FLAT, layer_sizes=None):
    norm = gradient.norm().item()
    if clipping.kind == "global":
        return gradient * (
            clip_norm / clipping.bound * min(1.0, max(0.0, 2 - norm / clipping.bound))
        )
    if clipping.kind == "automatic":
        return gradient * (clip_norm / (norm + clipping.stability))
    if clipping.kind == "per-layer":
        share = clip_norm / math.sqrt(len(layer_sizes))
        return torch.cat([clipped(part, share) for part in gradient.split(layer_sizes)])
    return gradient if norm <= clip_norm else gradient * (clip_norm / norm)


def clipped_sum(module, features, targets, clip_norm, clipping=FLAT, loss=cross_entropy):
    sizes = sizes_of_layers(module)
    gradients = [
        gradient_of(module, features[i : i + 1], targets[i : i + 1], loss)
        for i in range(len(targets))
    ]
    return torch.stack(
        [clipped(gradient, clip_norm, clipping, sizes) for gradient in gradients]
    ).sum(0)


def assert_matches(found, expected, *, clip_norm, records, shorter=0.0):
    """The sums agree; `shorter`: by which share a norm's upper bound may shorten what is clipped."""
    assert found.dtype == torch.float64
    scale = min(clip_norm * records, float(expected.norm()) + 1e-3)
    assert float((found.double() - expected).norm()) <= (2e-5 + shorter) * scale
    if shorter and records == 1:
        assert float(found.norm()) <= (1 + 2e-5) * float(expected.norm())


def check(
    engine,
    module,
    features,
    targets,
    clip_norm,
    clipping=FLAT,
    loss=cross_entropy,
    shorter=0.0,
    **options,
):
    """An engine's sum is that of clipped gradients of single records."""
    if loss is not cross_entropy:
        options["loss"] = loss
    found = engine.clipped_sum(
        module, features, targets, clip_norm=clip_norm, clipping=clipping, **options
    )
    expected = clipped_sum(module, features, targets, clip_norm, clipping, loss)
    assert found.units == len(features)
    assert_matches(
        found.total, expected, clip_norm=clip_norm, records=len(features), shorter=shorter
    )


def contribution(gradients, factors):
    """What one layer's records add to the sum."""
    out = torch.full((gradients.size,), torch.nan, dtype=torch.float64)
    gradients.weighted_sum(factors, used_rows(factors), out)
    return out


def randomise(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        value.data = (
            torch.randn(value.shape, generator=generator) / max(1, value[:1].numel()) ** 0.5
        )
    return module


class Whole(nn.Module):
    """Whole numbers 0 to 4 of any."""

    def forward(self, features):
        return features.abs().mul(2).clamp(max=4).nan_to_num(nan=0).long()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, features):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(features)))))


class ReadElsewhere(Twice):
    def forward(self, features):
        return self.head(torch.tanh(self.layer(features))) + (features @ self.layer.weight)[:, :3]
