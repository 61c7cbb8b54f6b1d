"""What book-keeping needs of a chain of Linear and ReLU layers, in closed form.

It takes neither autograd nor hooks.
"""

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
    """Linear layers one after the other.

    Attributes:
        layers: In order.
        rectified: Whether a ReLU follows, for each layer.
        flattens: Whether records are flattened first.
        buffers: Memory that weighted sums of all layers use in turn, as of `LayerGradients`.
    """

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

        Args:
            features: Shape (N, *shape).
            targets: Classes (int64) or values (float32), shape (N,).
            loss: Summed over records.
            lengths: What `input_lengths` returns for these records, shape (N,), if known.
            products: How matrix products are computed.

        Returns:
            Gradients of each layer, in order.
        """
        inputs = [features.flatten(1) if self.flattens else features]
        for layer, rectified in zip(self.layers, self.rectified, strict=True):
            outputs = linear(inputs[-1], layer.weight, bias=layer.bias, products=products)
            inputs.append(outputs.relu_() if rectified else outputs)
        gradients = [output_gradients(loss, inputs.pop(), targets)]
        for number in range(len(self.layers) - 1, 0, -1):
            gradient = product(gradients[0], self.layers[number].weight, products)
            if self.rectified[number - 1]:
                torch.ops.aten.threshold_backward.grad_input(
                    gradient, inputs[number], 0, grad_input=gradient
                )
            gradients.insert(0, gradient)
        return [
            outer_gradients(
                inputs[number],
                gradients[number],
                biased=layer.bias is not None,
                buffers=self.buffers,
                lengths=lengths if number == 0 else None,
            )
            for number, layer in enumerate(self.layers)
        ]

    def input_lengths(self, features: Tensor, rows: int) -> Tensor:
        """Return what `gradients` takes as known of records.

        Args:
            features: Shape (N, *shape).
            rows: How many every pass has.

        Returns:
            Shape (N,), float64.
        """
        biased = self.layers[0].bias is not None
        parts = [features.new_empty(0, dtype=torch.float64)]
        for part, count in pieces(rows, features):
            parts.append(input_lengths(part.flatten(1), biased)[:count])
        return torch.cat(parts)


def dense_chain(module: nn.Module) -> DenseChain | None:
    """Return a module's chain.

    Args:
        module: A Sequential of perhaps a Flatten, then Linear layers, each but the last perhaps
            with a ReLU.

    Returns:
        The chain. None if the module is more than that: half precision, layers that are frozen or
        used twice, hooks, a ReLU at the end.
    """
    if type(module) is not nn.Sequential or _is_changed(module):
        return None
    parts = list(module)
    if len(parts) == 0 or len(set(parts)) < len(parts):
        return None
    flattens = _flattens_records(parts[0])
    dense_parts = parts[1:] if flattens else parts
    layers: list[nn.Linear] = []
    rectified: list[bool] = []
    for part, following in pairwise([*dense_parts, None]):
        if type(part) is nn.Linear and part.weight.dtype == torch.float32:
            layers.append(part)
            rectified.append(type(following) is nn.ReLU)
    if not layers or dense_parts[0] is not layers[0] or dense_parts[-1] is not layers[-1]:
        return None
    if len(dense_parts) > len(layers) + sum(rectified):
        # There is a part that is neither such a layer nor the ReLU behind one.
        return None
    if not all(map(_is_trained, layers)):
        return None
    weight = layers[0].weight
    buffers = (weight.new_empty(0, dtype=torch.float64), weight.new_empty(0, dtype=torch.float64))
    return DenseChain(layers=layers, rectified=rectified, flattens=flattens, buffers=buffers)


def _is_changed(module: nn.Sequential) -> bool:
    """Say whether a part does anything but what its class does."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(
        "forward" in vars(part) or any(vars(part).get(name) for name in hooks)
        for part in [module, *module.children()]
    )


def _flattens_records(part: nn.Module) -> bool:
    return isinstance(part, nn.Flatten) and (part.start_dim, part.end_dim) == (1, -1)


def _is_trained(layer: nn.Linear) -> bool:
    parameters = [value for value in layer._parameters.values() if value is not None]
    return all(parameter.requires_grad for parameter in parameters)
