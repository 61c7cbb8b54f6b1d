"""The loss whose gradient is clipped: minus the log likelihood of one record, summed over records."""

import math
from collections.abc import Callable

import torch
from torch.nn import functional

# (outputs (N, ...), targets (N,)) -> scalar, the sum over records of a loss that depends on the
# record's row alone.
RecordLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_FEW_CLASSES = 32


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the sum over records of -log softmax(logits)_label in nats, in float32 also for half-precision modules."""
    return functional.cross_entropy(logits.float(), labels, reduction="sum")


def summed_gaussian_negative_log_likelihood(
    outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the sum over records of -log N(target; m, v) in nats, where the module gives (m, log v) for each record.

    -log N = (log v + (target - m)^2 / v + log 2 pi) / 2, in float32 also for half-precision
    modules. `outputs`: mean and log variance, shape (N, 2). `targets`: shape (N,), float32.
    """
    mean, log_variance = outputs.float().unbind(dim=1)
    squares = (targets.float() - mean).square() * (-log_variance).exp()
    return (log_variance + squares + math.log(2 * math.pi)).sum() / 2


def output_gradients(
    loss: RecordLoss, outputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of a summed loss at outputs (N, ...) that autograd does not follow, of their shape."""
    if loss is summed_cross_entropy and outputs.dim() == 2:
        # With few classes several times as fast along the first axis, where a processor takes many
        # rows at once.
        few, outputs = outputs.shape[1] <= _FEW_CLASSES, outputs.float()
        probabilities = (
            outputs.mT.contiguous().softmax(0).mT.contiguous() if few else outputs.softmax(1)
        )
        return probabilities.scatter_(1, targets[:, None], -1.0, reduce="add")
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        return torch.autograd.grad(loss(leaf, targets), leaf)[0]


def mean_over_draws(loss: RecordLoss) -> RecordLoss:
    """Turn a summed loss of outputs (N, K) into one of outputs (N, draws, K), each record's the mean over draws.

    This is the expected loss under the draws, as in Bayes by backprop (Blundell et al. 2015, eq.
    2).
    """

    def averaged(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        draws = outputs.shape[1]
        repeated = targets[:, None].expand(-1, draws).reshape(-1)
        return loss(outputs.flatten(0, 1), repeated) / draws

    return averaged
