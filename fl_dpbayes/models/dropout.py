"""Dropout on the inputs of a module's layers, and its draws as ordinary parameter vectors.

A mask on a layer's inputs is the same as a mask on the columns of its weight, so a network with one
draw of masks is the plain network with other weights: that is the posterior draw of Gal and
Ghahramani 2016 (section 3, q(W)).
"""

import math
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import torch
from torch import nn

from fl_dpbayes.errors import UserError
from fl_dpbayes.models.on_device import moved
from fl_dpbayes.models.parameters import parameter_shapes, vector_views


class DropoutModule(nn.Module):
    """A module with dropout before its Linear and Conv2d layers, a mask per record.

    Each input feature of a Linear and each input channel of a Conv2d is kept with probability
    1 - rate and then multiplied by 1 / (1 - rate). The first layer's inputs are the record, which
    is left as it is; layers that are not trained get no mask.

    Args:
        module: The plain module.
        rate: In (0, 1).

    Attributes:
        masks: The factors of all masked inputs, in the order of the layers, shape (records,
            inputs).

    Raises:
        UserError: There is no layer to mask.
    """

    masks: torch.Tensor

    def __init__(self, module: nn.Module, rate: float) -> None:
        super().__init__()
        self.base = module
        layers = {
            name: layer
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Linear | nn.Conv2d)
        }
        shapes = parameter_shapes(module)
        self._widths = {
            name: layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
            for name, layer in list(layers.items())[1:]
            if f"{name}.weight" in shapes
        }
        if not self._widths:
            raise UserError(
                "MC dropout finds no units to drop: the model has no trained layer behind another; "
                "choose a model with a hidden layer, such as kind 'mlp', or another sampler"
            )
        self._rate = np.float32(rate)
        masks = torch.ones(0, sum(self._widths.values()), device=next(module.parameters()).device)
        self.register_buffer("masks", masks, persistent=False)

    def resample(self, generator: np.random.Generator, records: int) -> None:
        """Draw fresh masks for a batch of `records` records; row i belongs to record i."""
        self.masks = self._draw_masks(generator, records)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the plain module under the last drawn masks.

        Args:
            features: As many records as masks, shape (N, *shape); row i is for record i.

        Returns:
            Shape (N, K).

        Raises:
            ValueError: The number of records is not that of the masks.
        """
        self._check_masks(features)
        return self.masked(features, self.masks)

    def masked(self, features: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the plain module under masks.

        Args:
            features: Shape (N, *shape).
            masks: Shape (N, inputs), as `self.masks`.

        Returns:
            Shape (N, K).
        """
        masks_of_layers = masks.split(list(self._widths.values()), dim=1)
        with ExitStack() as hooks:
            for name, mask in zip(self._widths, masks_of_layers, strict=True):
                layer = self.base.get_submodule(name)
                hooks.enter_context(layer.register_forward_pre_hook(_masking(mask)))
            return self.base(features)

    def with_masks_as_inputs(self, features: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
        """Return the same computation as a module without state, and its inputs.

        Per-example gradients take a batch apart, in chunks or one by one; joined to its record, a
        mask stays with it.

        Args:
            features: As many records as masks, shape (N, *shape).

        Returns:
            A module with the same trainable parameters, and its inputs: each record behind its
            mask, shape (N, inputs + size).

        Raises:
            ValueError: The number of records is not that of the masks.
        """
        self._check_masks(features)
        inputs = torch.cat([self.masks.to(features.dtype), features.flatten(1)], dim=1)
        return JoinedInputs(self, features.shape[1:]), inputs

    def draw(self, vector: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        """Draw one parameter vector of the plain module: a mask per unit, times the next layer.

        Args:
            vector: The parameters, shape (d,).
            generator: Draws the masks.

        Returns:
            Shape (d,).
        """
        masks = self._draw_masks(generator, 1)[0].split(list(self._widths.values()))
        drawn = vector.clone()
        weights = vector_views(drawn, parameter_shapes(self.base))
        for name, mask in zip(self._widths, masks, strict=True):
            weight = weights[f"{name}.weight"]
            # Output channels of group k read the k-th part of the input channels.
            groups = len(mask) // weight.shape[1]
            pixels = (1,) * (weight.dim() - 2)
            weight.unflatten(0, (groups, -1)).mul_(mask.view(groups, 1, -1, *pixels))
        return drawn

    def _check_masks(self, features: torch.Tensor) -> None:
        if len(self.masks) != len(features):
            raise ValueError(
                f"{len(features)} records, {len(self.masks)} masks: call resample before each batch"
            )

    def _draw_masks(self, generator: np.random.Generator, records: int) -> torch.Tensor:
        is_kept = generator.random((records, self.masks.shape[1]), dtype=np.float32) >= self._rate
        return moved(is_kept / (1 - self._rate), self.masks.device)


class JoinedInputs(nn.Module):
    """A module with dropout as a function of rows that hold a record behind its mask.

    Args:
        module: It masks the plain module's layers.
        shape: Of a record.
    """

    def __init__(self, module: DropoutModule, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.module = module
        self.shape = shape

    def forward(self, joined: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the plain module under each record's mask, shape (N, K)."""
        size = math.prod(self.shape)
        masks, features = joined.split([joined.shape[1] - size, size], dim=1)
        return self.module.masked(features.reshape(-1, *self.shape), masks)


def _masking(mask: torch.Tensor) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a hook that multiplies a layer's inputs by a mask, shape (N, inputs)."""

    def multiply(layer: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        inputs, *further = arguments
        ones = (1,) * (inputs.dim() - 2)
        if isinstance(layer, nn.Conv2d):
            factors = mask.view(*mask.shape, *ones)
        else:
            factors = mask.view(len(mask), *ones, mask.shape[1])
        return inputs * factors.to(inputs.dtype), *further

    return multiply
