"""The shape of every pass of a run, from public numbers alone, and how far rounding can move the sum at that shape.

The derivation of eta is in docs/sensitivity.md.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fl_dpbayes.errors import UserError
from fl_dpbayes.models import (
    ROWS,
    PassShape,
    Products,
    Trial,
    VariationalModule,
    checked_shape,
    computing,
    drawn_modules,
    structure,
    trainable_parameters,
    training_rows,
)
from fl_dpbayes.models import rows as passes
from fl_dpbayes.samplers.gradients.book_keeping import per_layer_gradients, trained_layers
from fl_dpbayes.samplers.gradients.contribution import LayerGradients
from fl_dpbayes.samplers.gradients.dense_chain import dense_chain
from fl_dpbayes.samplers.gradients.layer_gradients import has_shortcut
from fl_dpbayes.samplers.gradients.loss import RecordLoss
from fl_dpbayes.samplers.gradients.stochastic import resampled
from fl_dpbayes.samplers.gradients.variational import drawn_layers
from fl_dpbayes.samplers.gradients.variational_layers import DrawnLayer
from fl_dpbayes.samplers.gradients.vmap import fitting_rows, per_example_gradients

Way = Literal["book_keeping", "vmap"]

LARGEST_ETA = 1e-3
# A site's real number of units lies within a fifth of the declared one.
_REAL_PER_DECLARED = 2
_ROUNDING = 2.0**-53
# Gradients of one convolution under all weight draws, held at a time: 512 MiB.
_MAX_ELEMENTS = 2**27
_MOST_BYTES = 3 * 2**28


def wanted_rows(module: nn.Module, way: Way, expected_batch_size: float) -> int:
    """Choose how many rows every pass shall have, 1 where there is no memory for 64 materialised gradients."""
    if way == "vmap":
        most = min(passes.MOST_ROWS, fitting_rows(module))
        return (
            1
            if most < ROWS
            else passes.cheapest_rows(range(ROWS, most + 1, ROWS // 4), 32, expected_batch_size)
        )
    rows = training_rows(module, expected_batch_size)
    if not isinstance(module, VariationalModule):
        return rows
    formed = [
        layer.weight.numel() for layer in module.mean.modules() if isinstance(layer, nn.Conv2d)
    ]
    held = module.draws * ROWS * max(formed, default=1)
    return 1 if held > _MAX_ELEMENTS else max(ROWS, rows // module.draws // ROWS * ROWS)


def fitted_rows(
    module: nn.Module, input_shape: Sequence[int], targets: torch.dtype, loss: RecordLoss, rows: int
) -> int:
    """Lower the rows of a pass by book-keeping to a multiple of 32, 16 or 1 whose gradients take at most 768 MiB.

    That is products or formed gradients, Gram matrices of L x L positions, and copies of mapped
    gradients.
    """
    if isinstance(module, VariationalModule):
        return rows
    found = per_layer_gradients(*_made_up(module, 1, input_shape, targets), loss)
    held = sum(values.nbytes for layer in found for values in layer.rows)
    products = [layer.product[1].shape for layer in found if layer.product is not None]
    grams = sum(
        24 * shape[1] * shape[2] ** 2 for shape in products if len(shape) > 2 and shape[2] > 1
    )
    mapped = [layer for layer in trained_layers(module) if not has_shortcut(layer)]
    copies = 16 * sum(value.numel() for layer in mapped for value in layer.parameters())
    most = _MOST_BYTES // (held + grams + copies)
    return min(rows, most // (ROWS // 2) * (ROWS // 2) or (ROWS // 4 if most >= ROWS // 4 else 1))


def checked_gradient_shape(
    module: nn.Module,
    way: Way,
    input_shape: Sequence[int],
    targets: torch.dtype,
    loss: RecordLoss,
    rows: int,
) -> PassShape:
    """Check on synthetic rows that a pass computes each record's gradient by itself, else take another shape.

    `targets`: int64 for classes, float32 for values. Returns the shape that every pass must have,
    as `checked_shape` finds it from `rows` on. Raises RowsDependError if a single row does not give
    the same bits twice.
    """

    def trials(shape: PassShape) -> Iterator[Trial]:
        for drawn in drawn_modules(module):
            probe, features, labels = _made_up(drawn, shape.rows, input_shape, targets)

            def results(
                part: Tensor, part_targets: Tensor, probe: nn.Module = probe
            ) -> list[Tensor]:
                return _row_results(probe, way, part, part_targets, loss, shape.products)

            yield Trial(results, features, labels)

    key = (
        way,
        structure(module),
        tuple(input_shape),
        targets,
        getattr(loss, "__qualname__", repr(loss)),
    )
    return checked_shape(key, PassShape("gradients", wanted=rows, rows=rows), trials)


def rounding_eta(
    module: nn.Module,
    way: Way,
    input_shape: Sequence[int],
    targets: torch.dtype,
    loss: RecordLoss,
    rows: int,
    units: int,
) -> float:
    """Return eta: rounding moves a sum of contributions of norm C' by at most eta C' between neighbouring data sets.

        eta = 2 u m ((P + 4) L kappa + K),    u = 2^-53,    m = 2 n,    K = ceil(m / P)

    with L the positions of a layer and kappa how far they may cancel: 1 where a gradient is formed
    or has one position, at most 1000 elsewhere, thanks to the allowance in the norm. P is `rows`, n
    the declared `units`; the others are those of `checked_gradient_shape`. Raises UserError if eta
    exceeds 0.001.
    """
    terms = 1.0
    if way == "book_keeping":
        terms = max(
            layer.terms for layer in _layers(*_made_up(module, 1, input_shape, targets), loss)
        )
    most = _REAL_PER_DECLARED * units
    eta = 2 * _ROUNDING * most * ((rows + 4) * terms + math.ceil(most / rows))
    if eta > LARGEST_ETA:
        said = f"rounding can move a sum over up to {most} units by {eta:.1e} of the clip norm"
        raise UserError(
            f"{said}, allowed is {LARGEST_ETA}: train on fewer units, or choose a model of "
            "dense layers"
        )
    return eta


def _made_up(
    module: nn.Module, rows: int, input_shape: Sequence[int], targets: torch.dtype
) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    like = next(iter(trainable_parameters(module).values()))
    features = torch.randn((rows, *input_shape), generator=generator).to(like)
    probe, inputs = resampled(module, features, np.random.default_rng(rows))
    if targets.is_floating_point:
        return probe, inputs, torch.randn(rows, generator=generator).to(like.device, targets)
    with torch.no_grad():
        classes = probe(inputs).shape[-1]
    return (
        probe,
        inputs,
        torch.randint(classes, (rows,), generator=generator).to(like.device, targets),
    )


def _layers(
    module: nn.Module, features: Tensor, targets: Tensor, loss: RecordLoss
) -> Sequence[LayerGradients | DrawnLayer]:
    if isinstance(module, VariationalModule):
        return drawn_layers(module, features, targets, loss)
    return per_layer_gradients(module, features, targets, loss)


def _row_results(
    module: nn.Module,
    way: Way,
    features: Tensor,
    targets: Tensor,
    loss: RecordLoss,
    products: Products,
) -> list[Tensor]:
    chain = None if way == "vmap" else dense_chain(module)
    if chain is not None:
        layers: Sequence[LayerGradients | DrawnLayer] = chain.gradients(
            features, targets, loss, None, products
        )
        return [values for layer in layers for values in layer.rows]
    with computing(products):
        if way == "vmap":
            return [per_example_gradients(module, features, targets, loss)]
        return [
            values for layer in _layers(module, features, targets, loss) for values in layer.rows
        ]
