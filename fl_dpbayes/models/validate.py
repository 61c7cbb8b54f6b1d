"""Refuses modules in which one record can change what is computed for another."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fl_dpbayes.config.errors import UserError

_PLAIN_LAYERS = (nn.Linear, nn.Conv2d, nn.ReLU, nn.AvgPool2d, nn.Flatten, nn.Sequential)


def validate_module(module: nn.Module) -> None:
    """Check that per-example clipping bounds what one record can do to the module's gradient.

    Batch normalisation is let through only when it is frozen (no parameter requires a gradient) and in eval mode with
    stored statistics: Opacus passes a frozen one in training mode, although its running statistics then move with
    the records, un-noised and unaccounted.

    Args:
        module: the module to be trained.

    Raises:
        UserError: naming the layer and the remedy.
    """
    layers = [(name or type(module).__name__, layer) for name, layer in module.named_modules()]
    others = [(name, layer) for name, layer in layers if type(layer) not in _PLAIN_LAYERS]
    if not others:
        return
    # Importing Opacus takes over a second, which a site with a shipped model need not pay at every start.
    from opacus.validators import ModuleValidator

    for name, layer in others:
        frozen = not any(parameter.requires_grad for parameter in layer.parameters())
        if isinstance(layer, _BatchNorm):
            if not frozen or layer.training or not layer.track_running_stats:
                raise UserError(
                    f"layer {name!r} ({type(layer).__name__}) mixes the records of a batch, so clipping per record "
                    "bounds nothing: replace it by torch.nn.GroupNorm, or freeze it (requires_grad_(False)) with "
                    "stored statistics and call eval() on it"
                )
            continue
        validator = ModuleValidator.VALIDATORS.get(type(layer))
        unchanged = frozen and not (layer.training and any(True for _ in layer.buffers()))
        problems = validator(layer) if validator is not None and not unchanged else []
        if problems:
            raise UserError(f"layer {name!r} ({type(layer).__name__}) cannot be trained privately: {problems[0]}")
