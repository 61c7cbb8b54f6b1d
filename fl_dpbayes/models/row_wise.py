"""The one way to compute a module on the records of a pass: none is brought together with another.

Rows are computed at once where the module is a chain of known layers, or where its records can be
followed through every operator; else under `torch.func.vmap`, which brings no two of them together.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fl_dpbayes.files import KEPT
from fl_dpbayes.models.backbone import Backbone
from fl_dpbayes.models.mapped import mapped
from fl_dpbayes.models.parameters import called
from fl_dpbayes.models.record_axis import meeting_place
from fl_dpbayes.models.rows import structure

# Values of the parameters by name, rows (N, *shape) -> outputs (N, ...).
Pass = Callable[[Mapping[str, Tensor], Tensor], Tensor]

_KNOWN_LAYERS = (nn.Linear, nn.Conv2d, nn.ReLU, nn.AvgPool2d, nn.Flatten, nn.Sequential)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# What an entry of the cache takes, roughly, in bytes.
_MEETING_PLACE_BYTES = 2**10


class RowWise:
    """A module as a function of its parameters' values and of rows, each computed by itself.

    Whether rows are computed at once is asked for each number of rows: Python code may branch on
    it.

    Args:
        module: Rows (N, *shape) -> outputs (N, ...).
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._meet: dict[tuple[object, ...], bool] = {}

    def __call__(self, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Return the outputs under other values of the parameters.

        Args:
            values: By name, as `named_parameters()` has them; the others stay as they are.
            rows: Shape (N, *shape).

        Returns:
            Shape (N, ...).
        """
        return self.for_rows(rows)(values, rows)

    def for_rows(self, rows: Tensor) -> Pass:
        """Return what computes a pass of so many rows; it may be mapped over parameters' values."""
        key = (tuple(rows.shape), torch.is_grad_enabled())
        if key not in self._meet:
            self._meet[key] = where_rows_meet(self.module, rows.shape) is not None
        return self._each_by_itself if self._meet[key] else self._at_once

    def features(self, rows: Tensor) -> Tensor:
        """Return the outputs (N, ...) under the values that the parameters have."""
        return self({}, rows)

    def _at_once(self, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        return called(self.module, values, rows)

    def _each_by_itself(self, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        outputs: Tensor = mapped(lambda row: called(self.module, values, row[None])[0], rows)
        return outputs


def where_rows_meet(module: nn.Module, shape: Sequence[int]) -> str | None:
    """Say where rows of one pass may meet in a module.

    Args:
        module: Rows -> outputs.
        shape: Of the pass, (N, *shape of a record).

    Returns:
        The place, as `meeting_place` names it; None if they meet nowhere.
    """
    if shape[0] < 2 or is_chain_of_known_layers(module, shape[1:]):
        return None
    key = ("rows meet", structure(module), tuple(shape), torch.is_grad_enabled())
    return KEPT.get(key, partial(_followed, module, shape), lambda _: _MEETING_PLACE_BYTES)


def _followed(module: nn.Module, shape: Sequence[int]) -> str | None:
    return meeting_place(module, shape, compute=lambda probe, rows: probe(rows))


def is_chain_of_known_layers(module: nn.Module, record_shape: Sequence[int]) -> bool:
    """Say whether a module is layer after layer, none of which can bring two records together.

    Such are all models of this package.
    """
    if type(module) is Backbone:
        return True
    return all(_is_known(layer, len(record_shape)) for layer in module.modules())


def _is_known(layer: nn.Module, rank: int) -> bool:
    attributes = vars(layer)
    is_changed = "forward" in attributes or any(attributes.get(name) for name in _HOOKS)
    if is_changed or type(layer) not in _KNOWN_LAYERS:
        return False
    if rank == 0:
        # A record that is a number would be one entry of a row.
        return False
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    # What is no batch of pictures, a convolution would take as one picture.
    return not isinstance(layer, nn.Conv2d) or rank == 3
