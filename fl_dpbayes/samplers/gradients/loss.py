"""The loss whose gradient is clipped: minus the log likelihood of records, summed over them."""

import math
from collections.abc import Callable

import torch
from torch.nn import functional

# (outputs (N, ...), targets (N,)) -> scalar, the sum over records of a loss that depends on the
# record's row alone.
RecordLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# With so few classes a softmax is several times as fast along the first axis, where a processor
# takes many rows at once.
_FEW_CLASSES = 32


def loss_name(loss: RecordLoss) -> str:
    """Name a loss in the key of a cache."""
    return getattr(loss, "__qualname__", repr(loss))


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the sum over records of -log softmax(logits)_label, in nats.

    Args:
        logits: Shape (N, classes); of half-precision modules too, the loss is in float32.
        labels: Classes, shape (N,), int64.

    Returns:
        A tensor of one entry, float32.
    """
    return functional.cross_entropy(logits.float(), labels, reduction="sum")


def summed_gaussian_negative_log_likelihood(
    outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the sum over records of -log N(target; m, v), in nats.

        -log N = (log v + (target - m)^2 / v + log 2 pi) / 2

    Args:
        outputs: Mean and log variance (m, log v) of each record, shape (N, 2); of half-precision
            modules too, the loss is in float32.
        targets: Shape (N,), float32.

    Returns:
        A tensor of one entry, float32.
    """
    mean, log_variance = outputs.float().unbind(dim=1)
    squares = (targets.float() - mean).square() * (-log_variance).exp()
    return (log_variance + squares + math.log(2 * math.pi)).sum() / 2


def output_gradients(
    loss: RecordLoss, outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of a summed loss at outputs that autograd does not follow.

    Args:
        loss: Summed over records.
        outputs: Shape (N, ...).
        targets: Shape (N,).

    Returns:
        Shape (N, ...), that of the outputs.
    """
    if loss is summed_cross_entropy and outputs.dim() == 2:
        # softmax(logits) - one-hot(label), in closed form.
        probabilities = _row_softmax(outputs.float())
        return probabilities.scatter_(1, targets[:, None], -1.0, reduce="add")
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        return torch.autograd.grad(loss(leaf, targets), leaf)[0]


def _row_softmax(logits: torch.Tensor) -> torch.Tensor:
    if logits.shape[1] <= _FEW_CLASSES:
        return logits.mT.contiguous().softmax(0).mT.contiguous()
    return logits.softmax(1)


def mean_over_draws(loss: RecordLoss) -> RecordLoss:
    """Turn a summed loss of plain outputs into one of outputs under several weight draws.

    Each record's loss is the mean over draws, as is the expected loss of Bayes by backprop.

    Args:
        loss: Of outputs (N, K).

    Returns:
        The loss of outputs (N, draws, K).

    Source:
        Blundell et al. 2015, eq. 2.
    """

    def averaged(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        draws = outputs.shape[1]
        repeated = targets[:, None].expand(-1, draws).reshape(-1)
        return loss(outputs.flatten(0, 1), repeated) / draws

    return averaged
