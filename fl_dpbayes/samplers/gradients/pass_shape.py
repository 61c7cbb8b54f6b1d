"""The shape of every pass of a run, from public numbers alone, and what rounding does there.

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
from fl_dpbayes.samplers.gradients.loss import RecordLoss, loss_name
from fl_dpbayes.samplers.gradients.stochastic import resampled
from fl_dpbayes.samplers.gradients.variational import drawn_layers
from fl_dpbayes.samplers.gradients.variational_layers import DrawnLayer
from fl_dpbayes.samplers.gradients.vmap import fitting_rows, per_example_gradients

Way = Literal["book_keeping", "vmap"]

LARGEST_ETA = 1e-3
# A site's real number of units lies within a fifth of the declared one.
_REAL_PER_DECLARED = 2
# Unit roundoff of float64.
_ROUNDING = 2.0**-53
# Most entries of one convolution's gradients under all weight draws together: 512 MiB.
_MOST_DRAWN_ENTRIES = 2**27
# What gradients by book-keeping may take together: 768 MiB.
_MOST_BYTES = 3 * 2**28


def wanted_rows(module: nn.Module, way: Way, expected_batch_size: float) -> int:
    """Choose how many rows every pass shall have.

    Args:
        module: What is trained.
        way: The engine.
        expected_batch_size: B = q n.

    Returns:
        The cheapest number of rows; 1 where there is no memory for 64 materialised gradients.
    """
    if way == "vmap":
        most = min(passes.MOST_ROWS, fitting_rows(module))
        if most < ROWS:
            return 1
        choices = range(ROWS, most + 1, ROWS // 4)
        return passes.cheapest_rows(choices, beside=32, expected_batch_size=expected_batch_size)
    rows = training_rows(module, expected_batch_size)
    if not isinstance(module, VariationalModule):
        return rows
    convolutions = [layer for layer in module.mean.modules() if isinstance(layer, nn.Conv2d)]
    largest = max((layer.weight.numel() for layer in convolutions), default=1)
    if module.draws * ROWS * largest > _MOST_DRAWN_ENTRIES:
        return 1
    return max(ROWS, rows // module.draws // ROWS * ROWS)


def fitted_rows(
    module: nn.Module, input_shape: Sequence[int], targets: torch.dtype, loss: RecordLoss, rows: int
) -> int:
    """Lower the rows of a pass by book-keeping until its gradients take at most 768 MiB.

    Counted are products or formed gradients, Gram matrices of L x L positions, and copies of mapped
    gradients.

    Args:
        module: What is trained.
        input_shape: Of one record.
        targets: int64 for classes, float32 for values.
        loss: Whose gradient is clipped.
        rows: How many are wanted.

    Returns:
        `rows`, or a multiple of 32, or 16, or 1.
    """
    if isinstance(module, VariationalModule):
        return rows
    probe, features, labels = _made_up_records(
        module, rows=1, input_shape=input_shape, targets=targets
    )
    layers = per_layer_gradients(probe, features, targets=labels, loss=loss)
    gradient_bytes = sum(values.nbytes for layer in layers for values in layer.rows)
    gram_bytes = sum(map(_gram_bytes, layers))
    mapped = [layer for layer in trained_layers(module) if not has_shortcut(layer)]
    copy_bytes = 16 * sum(value.numel() for layer in mapped for value in layer.parameters())
    most = _MOST_BYTES // (gradient_bytes + gram_bytes + copy_bytes)
    if most >= ROWS // 2:
        return min(rows, most // (ROWS // 2) * (ROWS // 2))
    return min(rows, ROWS // 4 if most >= ROWS // 4 else 1)


def _gram_bytes(layer: LayerGradients) -> int:
    """Count what the Gram matrices of a layer of several positions take for one record."""
    if layer.product is None:
        return 0
    shape = layer.product[1].shape
    if len(shape) <= 2 or shape[2] <= 1:
        return 0
    return 24 * shape[1] * shape[2] ** 2


def checked_gradient_shape(
    module: nn.Module,
    way: Way,
    input_shape: Sequence[int],
    targets: torch.dtype,
    loss: RecordLoss,
    rows: int,
) -> PassShape:
    """Check on synthetic rows that a pass computes each record's gradient by itself.

    Args:
        module: What is trained.
        way: The engine.
        input_shape: Of one record.
        targets: int64 for classes, float32 for values.
        loss: Whose gradient is clipped.
        rows: How many are wanted.

    Returns:
        The shape that every pass must have: the first one, as `checked_shape` tries them from
        `rows` on, at which rows stand alone.

    Raises:
        RowsDependError: A single row does not give the same bits twice.
    """

    def trials(shape: PassShape) -> Iterator[Trial]:
        for drawn in drawn_modules(module):
            probe, features, labels = _made_up_records(
                drawn, rows=shape.rows, input_shape=input_shape, targets=targets
            )

            def results(
                part: Tensor, part_targets: Tensor, probe: nn.Module = probe
            ) -> list[Tensor]:
                return _row_results(
                    probe,
                    way,
                    features=part,
                    targets=part_targets,
                    loss=loss,
                    products=shape.products,
                )

            yield Trial(results=results, features=features, targets=labels)

    key = (way, structure(module), tuple(input_shape), targets, loss_name(loss))
    wanted = PassShape("gradients", wanted=rows, rows=rows)
    return checked_shape(key, wanted=wanted, trials=trials)


def rounding_eta(
    module: nn.Module,
    way: Way,
    input_shape: Sequence[int],
    targets: torch.dtype,
    loss: RecordLoss,
    rows: int,
    units: int,
) -> float:
    """Return eta: how far rounding moves a sum between neighbouring data sets, over C'.

        eta = 2 u m ((P + 4) L kappa + K),    u = 2^-53,    m = 2 n,    K = ceil(m / P)

    C' bounds the norm of each contribution. L is the number of positions of a layer and kappa how
    far they may cancel: 1 where a gradient is formed or has one position, at most 1000 elsewhere,
    thanks to the allowance in the norm.

    Args:
        module: What is trained.
        way: The engine.
        input_shape: Of one record.
        targets: int64 for classes, float32 for values.
        loss: Whose gradient is clipped.
        rows: P, the rows of every pass.
        units: n, as declared.

    Returns:
        eta, at most 0.001.

    Raises:
        UserError: eta exceeds 0.001.
    """
    # L kappa.
    terms = 1.0
    if way == "book_keeping":
        probe, features, labels = _made_up_records(
            module, rows=1, input_shape=input_shape, targets=targets
        )
        layers = _layers(probe, features, targets=labels, loss=loss)
        terms = max(layer.terms for layer in layers)
    most_units = _REAL_PER_DECLARED * units
    pieces = math.ceil(most_units / rows)
    eta = 2 * _ROUNDING * most_units * ((rows + 4) * terms + pieces)
    if eta > LARGEST_ETA:
        raise UserError(
            f"rounding can move a sum over up to {most_units} units by {eta:.1e} of the clip norm, "
            f"allowed is {LARGEST_ETA}: train on fewer units, or choose a model of dense layers"
        )
    return eta


def _made_up_records(
    module: nn.Module, rows: int, input_shape: Sequence[int], targets: torch.dtype
) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the module with its draws, and synthetic inputs and targets."""
    generator = torch.Generator().manual_seed(rows)
    parameter = next(iter(trainable_parameters(module).values()))
    features = torch.randn((rows, *input_shape), generator=generator).to(parameter)
    probe, inputs = resampled(module, features, np.random.default_rng(rows))
    if targets.is_floating_point:
        values = torch.randn(rows, generator=generator)
        return probe, inputs, values.to(parameter.device, targets)
    with torch.no_grad():
        outputs = probe(inputs).shape[-1]
    labels = torch.randint(outputs, (rows,), generator=generator)
    return probe, inputs, labels.to(parameter.device, targets)


def _layers(
    module: nn.Module, features: Tensor, targets: Tensor, loss: RecordLoss
) -> Sequence[LayerGradients | DrawnLayer]:
    if isinstance(module, VariationalModule):
        return drawn_layers(module, features, targets=targets, loss=loss)
    return per_layer_gradients(module, features, targets=targets, loss=loss)


def _row_results(
    module: nn.Module,
    way: Way,
    features: Tensor,
    targets: Tensor,
    loss: RecordLoss,
    products: Products,
) -> list[Tensor]:
    """Compute a pass as training does, and return all that it has of each row."""
    chain = None if way == "vmap" else dense_chain(module)
    if chain is not None:
        chain_layers = chain.gradients(
            features, targets, loss=loss, lengths=None, products=products
        )
        return [values for layer in chain_layers for values in layer.rows]
    with computing(products):
        if way == "vmap":
            return [per_example_gradients(module, features, targets=targets, loss=loss)]
        layers = _layers(module, features, targets=targets, loss=loss)
        return [values for layer in layers for values in layer.rows]
