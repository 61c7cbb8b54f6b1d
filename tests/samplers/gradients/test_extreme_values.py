"""Whatever state a request brings, a unit moves the sum by the clip norm at most.

The sum is finite.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.plan import FLAT, AutomaticClipping, GlobalClipping, PerLayerClipping
from fl_dpbayes.models.parameters import trainable_parameters
from fl_dpbayes.models.variational import VariationalModule
from fl_dpbayes.samplers.gradients import book_keeping, vmap
from fl_dpbayes.samplers.gradients.clipping import sum_clipped
from fl_dpbayes.samplers.gradients.loss import mean_over_draws, summed_cross_entropy
from fl_dpbayes.samplers.gradients.vmap import layer_sizes, per_unit_gradients

VALUES = [0.0, 1e-45, 1e-38, 1e-20, 1.0, -1.0, 1e10, 1e19, 1e30, -1e38, 3.4e38, -3.4e38]
RULES = [FLAT, GlobalClipping(bound=1.0), AutomaticClipping(stability=1e-6), PerLayerClipping()]
CLIP_NORM = 0.5
RECORDS = 4
ROWS = 16
TRIALS = 12


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Linear(3, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Tanh(), nn.Linear(4, 2)
    )


def convolution() -> nn.Module:
    layers = (
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 2, 3),
        nn.GroupNorm(1, 2),
        nn.ReLU(),
        nn.Conv2d(2, 3, 1),
    )
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 2))


def tokens() -> nn.Module:
    words = nn.Unflatten(1, (3, 2)), nn.Linear(2, 4, bias=False), nn.Tanh()
    return nn.Sequential(*words, nn.Flatten(), nn.Linear(12, 2))


MODULES = {
    "dense": (dense, 3),
    "normalised": (normalised, 3),
    "convolution": (convolution, 16),
    "tokens": (tokens, 6),
}


def extreme(generator: np.random.Generator, shape: tuple[int, ...], share: float) -> torch.Tensor:
    rare = generator.random(shape) < share
    values = np.where(rare, generator.choice(VALUES, shape), generator.standard_normal(shape))
    return torch.from_numpy(values.astype(np.float32))


def slowly(*cases: str) -> list:
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


def check_bounded(summed, features: torch.Tensor, targets: torch.Tensor) -> float:
    """Check the sum over all records and those without one.

    Return how far the farthest moved it, in C.
    """
    everyone = np.arange(len(targets))
    farthest = 0.0
    whole = summed(features, targets)
    assert torch.isfinite(whole).all()
    for record in everyone:
        kept = torch.from_numpy(np.delete(everyone, record))
        move = float((whole - summed(features[kept], targets[kept])).norm()) / CLIP_NORM
        assert move <= 1 + 1e-9
        farthest = max(farthest, move)
    return farthest


@pytest.mark.parametrize("name", sorted(MODULES))
@pytest.mark.parametrize("way", ["book-keeping", *slowly("vmap", "units", "weight draws")])
def test_a_unit_moves_the_sum_by_the_clip_norm_at_most_at_any_state(name: str, way: str) -> None:
    build, width = MODULES[name]
    generator = np.random.default_rng(5)
    moves = []
    if way == "weight draws" and name == "normalised":
        pytest.skip("layers that are normalised are mapped, as in the other cases")
    for trial in range(TRIALS):
        clipping = RULES[trial % len(RULES)]
        # Where all are extreme, most logits are NaN and leave no gradient to be bounded.
        share = (0.5, 0.1, 0.02)[trial // len(RULES)]
        module = build() if way != "weight draws" else VariationalModule(build(), 2)
        for value in trainable_parameters(module).values():
            value.data = extreme(generator, tuple(value.shape), share)
        features = extreme(generator, (RECORDS, width), share)
        targets = torch.arange(RECORDS) % 2
        given = {"clip_norm": CLIP_NORM, "clipping": clipping, "rows": ROWS}
        if way == "units":

            def summed(part, part_targets, module=module, clipping=clipping):
                units = torch.arange(len(part))
                gradients = per_unit_gradients(
                    module, part, part_targets, units, len(part), rows=ROWS
                )
                return sum_clipped(gradients, CLIP_NORM, clipping, layer_sizes(module)).total

        else:
            engine = vmap if way == "vmap" else book_keeping
            if way == "weight draws":
                module.resample(np.random.default_rng(0), RECORDS)
                given["loss"] = mean_over_draws(summed_cross_entropy)
                engine = book_keeping if book_keeping.is_supported(module) else vmap

            def summed(part, part_targets, engine=engine, module=module, given=given):
                return engine.clipped_sum(module, part, part_targets, **given).total

        moves.append(check_bounded(summed, features, targets))
    # Some states leave a gradient to be clipped.
    assert max(moves) > 0.5
    assert math.isfinite(sum(moves))
