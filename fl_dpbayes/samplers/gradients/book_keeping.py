"""The clipped sum by book-keeping: one forward pass and one backward pass to the layers' outputs.

No per-example gradient is formed where a layer has a cheaper way to its norm.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from fl_dpbayes.models import VariationalModule
from fl_dpbayes.samplers.gradients.clipping import sum_in_passes
from fl_dpbayes.samplers.gradients.contribution import LayerGradients
from fl_dpbayes.samplers.gradients.dense_chain import dense_chain
from fl_dpbayes.samplers.gradients.layer_gradients import has_shortcut, layer_gradients
from fl_dpbayes.samplers.gradients.layer_passes import layer_passes, trained_layers
from fl_dpbayes.samplers.gradients.loss import RecordLoss
from fl_dpbayes.samplers.gradients.variational import drawn_gradients
from fl_dpbayes.samplers.gradients.vmap import mapped_gradients


def is_supported(module: nn.Module) -> bool:
    """Say whether some layer needs no `torch.func`, and no parameter belongs to two layers.

    Under weight draws every layer must be a Linear or Conv2d.
    """
    if isinstance(module, VariationalModule):
        layers = trained_layers(module.mean)
        of_products = (nn.Linear, nn.Conv2d)
        return is_supported(module.mean) and all(
            type(layer) in of_products and has_shortcut(layer) for layer in layers
        )
    layers = trained_layers(module)
    parameter_ids = [id(parameter) for layer in layers for parameter in layer.parameters()]
    if len(set(parameter_ids)) < len(parameter_ids):
        return False
    return any(has_shortcut(layer) for layer in layers)


def per_layer_gradients(
    module: nn.Module, features: torch.Tensor, targets: torch.Tensor, loss: RecordLoss
) -> Sequence[LayerGradients]:
    """Return the gradient of each record's loss by each trainable layer, from one pass.

    Args:
        module: What is trained.
        features: Of the module's type and device, shape (N, *shape), N >= 1.
        targets: Classes (int64) or values (float32), shape (N,).
        loss: Summed over records.

    Returns:
        Gradients of each layer, in order; under weight draws of their means, then of their spreads.

    Raises:
        ValueError: A layer was used more than once, or not at all.
    """
    if isinstance(module, VariationalModule):
        return drawn_gradients(module, features, targets=targets, loss=loss)
    chain = dense_chain(module)
    if chain is not None:
        return chain.gradients(features, targets, loss=loss)
    result: list[LayerGradients] = []
    for of_layer in layer_passes(module, features, targets=targets, loss=loss):
        layer = of_layer.layer
        if has_shortcut(layer):
            result.append(layer_gradients(layer, of_layer.inputs, of_layer.output_gradients))
        else:
            result += mapped_gradients(layer, of_layer.inputs, of_layer.output_gradients)
    return result


clipped_sum = partial(sum_in_passes, per_layer_gradients)
