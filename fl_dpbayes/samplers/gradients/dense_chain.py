"""What book-keeping needs of a chain of Linear and ReLU layers, in closed form: no autograd, no hooks."""

import torch
from torch import Tensor, nn

from fl_dpbayes.samplers.gradients.loss import RecordLoss, output_gradients


def dense_chain(module: nn.Module) -> list[tuple[nn.Linear, bool]] | None:
    """Return a module's Linear layers, each with whether a ReLU follows, or None if it is more than their chain.

    A chain is a Sequential: perhaps a Flatten, then trained Linear layers in float32, each perhaps with a ReLU, the
    last without. Nobody else's code runs in it.
    """
    if type(module) is not nn.Sequential or _is_hooked(module):
        return None
    chain: list[tuple[nn.Linear, bool]] = []
    for number, layer in enumerate(module):
        if _is_hooked(layer):
            return None
        if type(layer) is nn.Linear and layer.weight.dtype == torch.float32:
            if not (layer.weight.requires_grad and (layer.bias is None or layer.bias.requires_grad)):
                return None
            chain.append((layer, False))
        elif type(layer) is nn.ReLU and chain and not chain[-1][1]:
            chain[-1] = chain[-1][0], True
        elif type(layer) is not nn.Flatten or number or (layer.start_dim, layer.end_dim) != (1, -1):
            return None
    return chain if chain and not chain[-1][1] and len({layer for layer, _ in chain}) == len(chain) else None


def _is_hooked(layer: nn.Module) -> bool:
    hooks = layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks
    return any(hooks)


@torch.no_grad()
def chain_to_outputs(
    module: nn.Module, chain: list[tuple[nn.Linear, bool]], features: Tensor, targets: Tensor, loss: RecordLoss
) -> tuple[list[Tensor], list[Tensor]]:
    """Return each layer's inputs, and the gradient of the summed loss at its outputs, from records (N, *shape)."""
    inputs = [features.flatten(1) if type(module[0]) is nn.Flatten else features]  # type: ignore[index]
    for layer, rectified in chain:
        outputs = nn.functional.linear(inputs[-1], layer.weight, layer.bias)
        inputs.append(outputs.relu_() if rectified else outputs)
    gradients = [output_gradients(loss, inputs.pop(), targets)]
    for number in range(len(chain) - 1, 0, -1):
        gradient = gradients[0] @ chain[number][0].weight
        if chain[number - 1][1]:
            gradient = torch.ops.aten.threshold_backward(gradient, inputs[number], 0)
        gradients.insert(0, gradient)
    return inputs, gradients
