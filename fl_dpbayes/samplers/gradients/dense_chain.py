"""What book-keeping needs of a chain of Linear and ReLU layers, in closed form: no autograd, no hooks."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fl_dpbayes.models import Products, linear, pieces, product
from fl_dpbayes.samplers.gradients.contribution import (
    LayerGradients,
    input_lengths,
    outer_gradients,
)
from fl_dpbayes.samplers.gradients.loss import RecordLoss, output_gradients


@dataclass(frozen=True)
class DenseChain:
    """Linear layers one after the other, whether a ReLU follows each, and whether records are flattened first."""

    layers: list[nn.Linear]
    rectified: list[bool]
    flattens: bool
    buffers: tuple[Tensor, Tensor]

    @torch.no_grad()
    def gradients(
        self,
        features: Tensor,
        targets: Tensor,
        loss: RecordLoss,
        lengths: Tensor | None = None,
        products: Products = "plain",
    ) -> list[LayerGradients]:
        """Return each layer's gradients of one pass.

        `lengths`: those of `input_lengths`, (N,), if known.
        """
        inputs = [features.flatten(1) if self.flattens else features]
        for layer, rectified in zip(self.layers, self.rectified, strict=True):
            outputs = linear(inputs[-1], layer.weight, layer.bias, products)
            inputs.append(outputs.relu_() if rectified else outputs)
        gradients = [output_gradients(loss, inputs.pop(), targets)]
        for number in range(len(self.layers) - 1, 0, -1):
            gradient = product(gradients[0], self.layers[number].weight, products)
            if self.rectified[number - 1]:
                torch.ops.aten.threshold_backward.grad_input(
                    gradient, inputs[number], 0, grad_input=gradient
                )
            gradients.insert(0, gradient)
        known = [lengths, *(None for _ in gradients[1:])]
        return [
            outer_gradients(a, g, layer.bias is not None, self.buffers, own)
            for layer, a, g, own in zip(self.layers, inputs, gradients, known, strict=True)
        ]

    def input_lengths(self, features: Tensor, rows: int) -> Tensor:
        """Return what `gradients` takes as known of records (N, *shape), from passes of so many rows, shape (N,)."""
        biased = self.layers[0].bias is not None
        parts = [
            input_lengths(part.flatten(1), biased)[:count] for part, count in pieces(rows, features)
        ]
        return torch.cat([features.new_empty(0, dtype=torch.float64), *parts])


def dense_chain(module: nn.Module) -> DenseChain | None:
    """Return a module's chain: a Sequential of perhaps a Flatten, then Linear layers, each perhaps with a ReLU.

    None if it is more than that: half precision, layers that are frozen or used twice, hooks, a
    ReLU at the end.
    """
    parts = [module, *module.children()]
    hooks = [
        each
        for part in parts
        for each in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks)
    ]
    if type(module) is not nn.Sequential or any(hooks) or not 0 < len(set(module)) == len(module):
        return None
    flattens = isinstance(parts[1], nn.Flatten) and (parts[1].start_dim, parts[1].end_dim) == (
        1,
        -1,
    )
    rest = parts[1 + flattens :]
    layers = [
        layer for layer in rest if type(layer) is nn.Linear and layer.weight.dtype == torch.float32
    ]
    rectified = [
        type(after) is nn.ReLU for layer, after in pairwise([*rest, None]) if layer in layers
    ]
    ends = (
        rest
        and rest[-1] in layers
        and rest[0] in layers
        and len(rest) == len(layers) + sum(rectified)
    )
    trained = all(
        value.requires_grad
        for layer in layers
        for value in layer._parameters.values()
        if value is not None
    )
    if not (ends and trained):
        return None
    first, second = (layers[0].weight.new_empty(0, dtype=torch.float64) for _ in range(2))
    return DenseChain(layers, rectified, flattens, (first, second))
