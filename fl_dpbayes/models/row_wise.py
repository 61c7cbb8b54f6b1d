"""The one way to compute a module on the records of a pass: none is brought together with another.

Rows are computed at once where the module is a chain of known layers, as the models of this package
are; else under `torch.func.vmap`, where no code can bring two of them together.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from fl_dpbayes.models.backbone import Backbone
from fl_dpbayes.models.dropout import JoinedInputs
from fl_dpbayes.models.mapped import mapped
from fl_dpbayes.models.parameters import called

KNOWN_LAYERS = (
    nn.Linear,
    nn.Conv2d,
    nn.ReLU,
    nn.Tanh,
    nn.AvgPool2d,
    nn.MaxPool2d,
    nn.Flatten,
    nn.Sequential,
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class RowWise:
    """A module as a function of its parameters' values and of rows, each computed by itself.

    Args:
        module: Rows (N, *shape) -> outputs (N, ...).
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, values: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Return the outputs under other values of the parameters.

        Args:
            values: By name, as `named_parameters()` has them; the others stay as they are.
            rows: Shape (N, *shape).

        Returns:
            Shape (N, ...).
        """
        if is_chain_of_known_layers(self.module, rows.shape[1:]):
            return called(self.module, values, rows)
        outputs: Tensor = mapped(lambda row: called(self.module, values, row[None])[0], rows)
        return outputs

    def features(self, rows: Tensor) -> Tensor:
        """Return the outputs (N, ...) under the values that the parameters have."""
        return self({}, rows)


def is_chain_of_known_layers(module: nn.Module, record_shape: Sequence[int]) -> bool:
    """Say whether a module is layer after layer, none of which can bring two records together.

    Such are all models of this package.

    Args:
        module: Of layers that are looked at by their class, and for hooks.
        record_shape: Shape of one record.
    """
    if type(module) is Backbone:
        return True
    if type(module) is JoinedInputs:
        # A mask is multiplied to its own record's row.
        return is_chain_of_known_layers(module.module.base, module.shape)
    return all(_is_known(layer, len(record_shape)) for layer in module.modules())


def _is_known(layer: nn.Module, rank: int) -> bool:
    attributes = vars(layer)
    is_changed = "forward" in attributes or any(attributes.get(name) for name in _HOOKS)
    if is_changed or type(layer) not in KNOWN_LAYERS or not _holds_plain_tensors(layer):
        return False
    if rank == 0:
        # A record that is a number would be one entry of a row.
        return False
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    # What is no batch of pictures, a convolution would take as one picture.
    return not isinstance(layer, nn.Conv2d) or rank == 3


def _holds_plain_tensors(layer: nn.Module) -> bool:
    """Say whether no parameter or buffer is of a class that may compute what it likes."""
    values = [*layer._parameters.values(), *layer._buffers.values()]
    return all(value is None or type(value) in (nn.Parameter, Tensor) for value in values)
