"""Modules with randomness of their own, such as weight noise or masks, drawn afresh for each batch.

What such a module draws for the whole batch it keeps; what it draws for each record it joins to the
record's features. Engines may then cut a batch as they like: each record meets its own draw and all
records meet the shared one, so that a record more or less in the batch changes no other record's
contribution.
"""

import numpy as np
import torch
from torch import nn

from fl_dpbayes.models import DropoutModule, VariationalModule


def resampled(
    module: nn.Module, features: torch.Tensor, generator: np.random.Generator
) -> tuple[nn.Module, torch.Tensor]:
    """Draw a module's randomness for one batch of records.

    Args:
        module: One that is not stochastic is returned as it is.
        features: Shape (N, *shape).
        generator: The module's own stream.

    Returns:
        A module with the same trainable parameters, and its inputs, shape (N, ...), which may be
        cut at will.
    """
    if isinstance(module, VariationalModule | DropoutModule):
        module.resample(generator, len(features))
    if isinstance(module, DropoutModule):
        return module.with_masks_as_inputs(features)
    return module, features
