"""The loss whose gradient is clipped: minus the log likelihood of one record."""

import torch
from torch.nn import functional


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the sum over records of -log softmax(logits)_label, in float32 also for half-precision modules.

    Args:
        logits: shape (N, classes).
        labels: classes, shape (N,), int64.

    Returns:
        Scalar tensor in nats.
    """
    return functional.cross_entropy(logits.float(), labels, reduction="sum")
