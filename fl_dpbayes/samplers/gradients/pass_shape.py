"""The shape of every pass of a run, from public numbers alone, and what rounding does there.

The derivation of eta is in docs/sensitivity.md.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from fl_dpbayes.samplers.gradients import vmap
from fl_dpbayes.samplers.gradients.book_keeping import per_layer_gradients
from fl_dpbayes.samplers.gradients.contribution import LayerGradients
from fl_dpbayes.samplers.gradients.dense_chain import dense_chain
from fl_dpbayes.samplers.gradients.layer_gradients import has_shortcut
from fl_dpbayes.samplers.gradients.layer_passes import trained_layers
from fl_dpbayes.samplers.gradients.loss import RecordLoss, loss_name
from fl_dpbayes.samplers.gradients.stochastic import resampled
from fl_dpbayes.samplers.gradients.vmap import fitting_rows

Way = Literal["book_keeping", "vmap"]

LARGEST_ETA = 1e-3
# A site's real number of units lies within a fifth of the declared one.
_REAL_PER_DECLARED = 2
# Unit roundoff of float64.
_ROUNDING = 2.0**-53
# What gradients by book-keeping may take together: 768 MiB.
_MOST_BYTES = 3 * 2**28


@dataclass(frozen=True)
class Workload:
    """Whose gradients the passes of a run compute, and how.

    Attributes:
        module: What is trained.
        way: The engine.
        input_shape: Of one record.
        target_type: int64 for classes, float32 for values.
        loss: Whose gradient is clipped.
    """

    module: nn.Module
    way: Way
    input_shape: tuple[int, ...]
    target_type: torch.dtype
    loss: RecordLoss


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
    if not isinstance(module, VariationalModule):
        return training_rows(module, expected_batch_size)
    # Few gradients by spread at a time stay in a processor's cache.
    return ROWS // 4


def fitted_rows(workload: Workload, rows: int) -> int:
    """Lower the rows of a pass by book-keeping until its gradients take at most 768 MiB.

    Counted are products or formed gradients, Gram matrices of L x L positions, and copies of mapped
    gradients.

    Args:
        workload: By book-keeping.
        rows: How many are wanted.

    Returns:
        `rows`, or a multiple of 32, or 16, or 1.
    """
    layers = _gradients_of_one_record(workload)
    gradient_bytes = sum(values.nbytes for layer in layers for values in layer.rows)
    gram_bytes = sum(map(_gram_bytes, layers))
    mapped = [layer for layer in trained_layers(workload.module) if not has_shortcut(layer)]
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


def checked_gradient_shape(workload: Workload, rows: int) -> PassShape:
    """Check on synthetic rows that a pass computes each record's gradient by itself.

    Args:
        workload: What a pass computes.
        rows: How many are wanted.

    Returns:
        The shape that every pass must have: the first one, as `checked_shape` tries them from
        `rows` on, at which rows stand alone.

    Raises:
        RowsDependError: A single row does not give the same bits twice.
    """

    def trials(shape: PassShape) -> Iterator[Trial]:
        for drawn in drawn_modules(workload.module):
            drawn_workload = replace(workload, module=drawn)
            probe, features, targets = _made_up_records(drawn_workload, rows=shape.rows)

            def results(
                part: Tensor, part_targets: Tensor, probe: nn.Module = probe
            ) -> list[Tensor]:
                layers = _gradients_of_pass(
                    replace(workload, module=probe),
                    features=part,
                    targets=part_targets,
                    products=shape.products,
                )
                return [values for layer in layers for values in layer.rows]

            yield Trial(results=results, features=features, targets=targets)

    key = (
        workload.way,
        structure(workload.module),
        workload.input_shape,
        workload.target_type,
        loss_name(workload.loss),
    )
    wanted = PassShape("gradients", wanted=rows, rows=rows)
    return checked_shape(key, wanted=wanted, trials=trials)


def rounding_eta(workload: Workload, rows: int, units: int) -> float:
    """Return eta: how far rounding moves a sum between neighbouring data sets, over C'.

        eta = 2 u m ((P + 4) L kappa + K),    u = 2^-53,    m = 2 n,    K = ceil(m / P)

    C' bounds the norm of each contribution. L is the number of positions of a layer and kappa how
    far they may cancel: 1 where a gradient is formed or has one position, at most 1000 elsewhere,
    thanks to the allowance in the norm.

    Args:
        workload: What a pass computes.
        rows: P, the rows of every pass.
        units: n, as declared.

    Returns:
        eta, at most 0.001.

    Raises:
        UserError: eta exceeds 0.001.
    """
    # L kappa.
    terms = max(layer.terms for layer in _gradients_of_one_record(workload))
    most_units = _REAL_PER_DECLARED * units
    pieces = math.ceil(most_units / rows)
    eta = 2 * _ROUNDING * most_units * ((rows + 4) * terms + pieces)
    if eta > LARGEST_ETA:
        raise UserError(
            f"rounding can move a sum over up to {most_units} units by {eta:.1e} of the clip norm, "
            f"allowed is {LARGEST_ETA}: train on fewer units, or choose a model of dense layers"
        )
    return eta


def _gradients_of_one_record(workload: Workload) -> Sequence[LayerGradients]:
    probe, features, targets = _made_up_records(workload, rows=1)
    drawn = replace(workload, module=probe)
    return _gradients_of_pass(drawn, features=features, targets=targets, products="plain")


def _made_up_records(workload: Workload, rows: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the module with its draws, and synthetic inputs and targets."""
    generator = torch.Generator().manual_seed(rows)
    parameter = next(iter(trainable_parameters(workload.module).values()))
    features = torch.randn((rows, *workload.input_shape), generator=generator).to(parameter)
    probe, inputs = resampled(workload.module, features, np.random.default_rng(rows))
    if workload.target_type.is_floating_point:
        targets = torch.randn(rows, generator=generator)
    else:
        with torch.no_grad():
            outputs = probe(inputs).shape[-1]
        targets = torch.randint(outputs, (rows,), generator=generator)
    return probe, inputs, targets.to(parameter.device, workload.target_type)


def _gradients_of_pass(
    workload: Workload, features: Tensor, targets: Tensor, products: Products
) -> Sequence[LayerGradients]:
    """Compute a pass as training does."""
    chain = None if workload.way == "vmap" else dense_chain(workload.module)
    if chain is not None:
        return chain.gradients(features, targets, loss=workload.loss, products=products)
    compute = vmap.per_layer_gradients if workload.way == "vmap" else per_layer_gradients
    with computing(products):
        return compute(workload.module, features, targets, workload.loss)
