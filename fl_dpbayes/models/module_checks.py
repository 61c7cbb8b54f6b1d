"""What a module may not do: mix records, keep something of them, change from call to call, or fail by their values.

Layers are judged by what they are, the whole module by trials on made-up records; no record is
read. A trial shows what it shows: it is a test and not a proof (docs/models.md).
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fl_dpbayes.errors import UserError
from fl_dpbayes.models.mapped import mapped
from fl_dpbayes.models.rows import ROWS, attributes_of, bytes_of, drawn_modules

PLAIN_LAYERS = (nn.Linear, nn.Conv2d, nn.ReLU, nn.AvgPool2d, nn.Flatten, nn.Sequential)
# Far beyond the rounding of one record's logits beside others.
_MIXES = 1e-3
_EXTREMES = (0.0, 3.0, 10.0, 1e3, 1e6, 1e30, 1e-30, -3.0, -10.0, -1e3, -1e6, -1e30, -1e-30)
# By which weights, and the records beside one, are scaled: a guard against overflow does nothing at
# usual values.
_WEIGHT_SCALES = (1.0, 1e-30, 1e-10, 1e3, 1e10, 1e30)
_NEIGHBOUR_SCALES = (1e-30, 1e-10, 1e3, 1e10, 1e30)


def validate_module(module: nn.Module) -> None:
    """Check that per-example clipping bounds what one record can do to the module's gradient.

    Batch normalisation is let through only when it is frozen (no parameter requires a gradient) and
    in eval mode with stored statistics: Opacus passes a frozen one in training mode, although its
    running statistics then move with the records, un-noised and unaccounted. Raises UserError
    naming the layer and the remedy.
    """
    for name, value in module.named_parameters():
        if not value.is_floating_point():
            raise UserError(
                f"parameter {name!r} is of type {value.dtype}: only real floating-point "
                "ones are trained"
            )
    others = [
        (name, layer) for name, layer in module.named_modules() if type(layer) not in PLAIN_LAYERS
    ]
    if not others:
        return
    # Importing Opacus takes over a second, which a site with a shipped model need not pay at every
    # start.
    from opacus.validators import ModuleValidator

    for name, layer in others:
        named = f"layer {name or type(module).__name__!r} ({type(layer).__name__})"
        if isinstance(layer, nn.RNNBase | nn.LSTMCell):
            said = f"{named} cannot be computed record by record (by torch.func.vmap)"
            remedy = (
                "opacus.layers has DPLSTM, DPGRU and DPRNN, which can and have the same parameters"
            )
            raise UserError(f"{said}: {remedy}")
        frozen = not any(parameter.requires_grad for parameter in layer.parameters())
        if isinstance(layer, _BatchNorm):
            if not frozen or layer.training or not layer.track_running_stats:
                said = (
                    f"{named} mixes the records of a batch, so clipping per record bounds nothing"
                )
                instead = (
                    "freeze it (requires_grad_(False)) with stored statistics and call eval() on it"
                )
                raise UserError(f"{said}: replace it by torch.nn.GroupNorm, or {instead}")
        elif (validator := ModuleValidator.VALIDATORS.get(type(layer))) is not None:
            unchanged = frozen and not (layer.training and any(True for _ in layer.buffers()))
            if problems := [] if unchanged else validator(layer):
                raise UserError(f"{named} cannot be trained privately: {problems[0]}")


def check_unmoved(module: nn.Module, input_shape: Sequence[int], named: str = "the module") -> None:
    """Check that a call leaves nothing behind in a module, so that no record's result depends on those before it.

    `input_shape`: of one record. `named`: how the error begins. Raises UserError with the remedy.
    """
    if all(type(layer) in PLAIN_LAYERS for layer in module.modules()):
        return
    first, other = _copy(module, named), _copy(module, named)
    before, like = _held(first), next(module.parameters())
    records = torch.randn((4, *input_shape), generator=torch.Generator().manual_seed(1)).to(like)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        first(records.clone())
        other(0.5 * records[:2] + 1)
        same = torch.equal(
            *(torch.as_tensor(copied(records.clone())).nan_to_num() for copied in (first, other))
        )
    if not same or _held(first) != before:
        said = (
            f"{named} keeps something of the records that it is given, so clipping per record "
            "bounds nothing"
        )
        remedy = "compute every call from its records and parameters alone"
        raise UserError(f"{said}: {remedy}, and call eval() on what keeps statistics")


def check_records_apart(
    module: nn.Module,
    input_shape: Sequence[int],
    named: str = "the module",
    classes: int | None = None,
) -> int:
    """Check, on made-up records, that a module computes each record by itself and fails on none by its values.

    Only copies are called. `input_shape`: of one record. `named`: how an error begins. Returns K,
    the number of its logits, `classes` where that is given. Raises UserError, with the remedy, if
    it mixes records, keeps something of them, changes from call to call, fails, branches on a
    value, or does not return (N, K).
    """
    validate_module(module)
    copied, like = _copy(module, named), next(module.parameters())
    extremes = (
        torch.tensor(_EXTREMES).view(-1, *(1,) * len(input_shape)).expand(-1, *input_shape).to(like)
    )
    records = torch.randn((ROWS, *input_shape), generator=torch.Generator().manual_seed(0)).to(like)
    records[1::2] *= 100
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        classes = _outputs(copied, extremes, named, classes).shape[1]
        for draw, drawn in enumerate(drawn_modules(module)):
            part = records[:4] if draw else records
            together, again = (_outputs(drawn, part, named, classes) for _ in range(2))
            if not torch.equal(together, again):
                said = f"{named} gives the same records different logits when it is called again"
                dropout = "(for dropout: model.kind 'mlp' or 'cnn', sampler.kind 'dp-mc-dropout')"
                raise UserError(
                    f"{said}: leave out what changes it or draws random numbers {dropout}"
                )
            # What branches on a value, even on one that is not met here, cannot be mapped over
            # records.
            alone = mapped(
                lambda record, drawn=drawn: _outputs(drawn, record[None], named, classes)[0], part
            )
            if ((together - alone).abs().amax(dim=1) > _MIXES * alone.abs().amax(dim=1)).any():
                said = f"{named} gives a record other logits when other records are beside it"
                raise UserError(
                    f"{said}, so clipping per record bounds nothing: compute each row by itself"
                )
        _check_guards(module, records[:4], named)
        check_unmoved(module, input_shape, named)
    return classes


def _check_guards(module: nn.Module, records: Tensor, named: str) -> None:
    """Check that the records beside one, however large or small, do not change its logits, whatever the weights."""
    for scale in _WEIGHT_SCALES:
        scaled = copy.deepcopy(next(drawn_modules(module)))
        for value in scaled.parameters():
            value.data = value.data * scale
        try:
            expected = scaled(records.clone())[::2]
        except Exception:
            # It fails by its weights alone, whatever a record holds.
            continue
        for beside in _NEIGHBOUR_SCALES:
            others = records.clone()
            others[1::2] *= beside
            found = _outputs(scaled, others, named, None)[::2]
            same = found.isfinite() == expected.isfinite()
            near = (found - expected).abs() <= _MIXES * expected.abs().amax(dim=1, keepdim=True)
            if not (same & (near | ~expected.isfinite())).all():
                said = (
                    f"{named} gives a record other logits when large or small values are beside it"
                )
                remedy = (
                    "a guard against overflow must look at one record's own values (amax over "
                    "its own axes)"
                )
                raise UserError(f"{said}, so clipping per record bounds nothing: {remedy}")


def _outputs(module: nn.Module, records: Tensor, named: str, classes: int | None) -> Tensor:
    shape = list(records.shape)
    try:
        # A module may write into its inputs.
        found = module(records.clone())
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        must = (
            "take (N, *input_shape) of any finite values (clamp an index at both ends), "
            "branch on none"
        )
        must += " (use torch.where), and return logits (N, classes)"
        raise UserError(
            f"{named} fails on records of shape {shape}: {said}; it must {must}"
        ) from None
    fits = isinstance(found, Tensor) and found.ndim == 2 and len(found) == shape[0]
    if not fits or classes not in (None, found.shape[1]):
        what = (
            f"shape {list(found.shape)}"
            if isinstance(found, Tensor)
            else f"a {type(found).__name__}"
        )
        expected = [len(records), classes or "classes"]
        problem = f"{named} returns {what} for records of shape {shape}"
        raise UserError(f"{problem}: it must return logits of shape {expected}, one row per record")
    return found


def _held(module: nn.Module) -> list[object]:
    attributes: list[object] = [repr(attributes_of(layer)) for layer in module.modules()]
    return [*attributes, *(bytes_of(value) for value in module.buffers())]


def _copy(module: nn.Module, named: str) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:
        instead = (
            "as torch.nn.utils.weight_norm does; "
            "torch.nn.utils.parametrizations.weight_norm does not"
        )
        said = (
            f"{named} cannot be copied ({type(error).__name__}): keep no computed tensor as "
            "an attribute"
        )
        raise UserError(f"{said} ({instead})") from None
