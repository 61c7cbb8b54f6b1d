"""What a module may not do: mix records, keep something of them, change from call to call, or fail.

Layers are judged by what they are, the whole module by trials on made-up records; no record is
read. A trial shows what it shows: it is a test and not a proof (docs/models.md).
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fl_dpbayes.errors import UserError
from fl_dpbayes.models.code_behind import reaches_compiled_code
from fl_dpbayes.models.mapped import mapped
from fl_dpbayes.models.row_wise import KNOWN_LAYERS
from fl_dpbayes.models.rows import ROWS, attributes_of, bytes_of, drawn_modules

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
    running statistics then move with the records, un-noised and unaccounted.

    Args:
        module: What is to be trained.

    Raises:
        UserError: It does not; the text names the layer and the remedy.
    """
    for name, value in module.named_parameters():
        if not value.is_floating_point():
            raise UserError(
                f"parameter {name!r} is of type {value.dtype}: only real floating-point "
                "ones are trained"
            )
    layers = {
        name: layer for name, layer in module.named_modules() if type(layer) not in KNOWN_LAYERS
    }
    if not layers:
        return
    # Importing Opacus takes over a second, which a site with a shipped model need not pay at every
    # start.
    from opacus.validators import ModuleValidator

    for name, layer in layers.items():
        title = f"layer {name or type(module).__name__!r} ({type(layer).__name__})"
        if isinstance(layer, nn.RNNBase | nn.LSTMCell):
            raise UserError(
                f"{title} cannot be computed record by record (by torch.func.vmap): "
                "opacus.layers has DPLSTM, DPGRU and DPRNN, which can and have the same parameters"
            )
        if reaches_compiled_code(layer):
            raise UserError(
                f"{title} is or calls code that torch.jit compiled, in which records cannot be "
                "kept apart: leave torch.jit out"
            )
        if isinstance(layer, _BatchNorm):
            _check_batch_norm(layer, title)
            continue
        validator = ModuleValidator.VALIDATORS.get(type(layer))
        if validator is None or _is_unchanged(layer):
            continue
        problems = validator(layer)
        if problems:
            raise UserError(f"{title} cannot be trained privately: {problems[0]}")


def _check_batch_norm(layer: _BatchNorm, title: str) -> None:
    if not _is_frozen(layer) or layer.training or not layer.track_running_stats:
        raise UserError(
            f"{title} mixes the records of a batch, so clipping per record bounds nothing: "
            "replace it by torch.nn.GroupNorm, or freeze it (requires_grad_(False)) with stored "
            "statistics and call eval() on it"
        )


def _is_frozen(layer: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in layer.parameters())


def _is_unchanged(layer: nn.Module) -> bool:
    """Say whether training changes nothing that a layer holds."""
    has_buffers = any(True for _ in layer.buffers())
    return _is_frozen(layer) and not (layer.training and has_buffers)


def check_unmoved(module: nn.Module, input_shape: Sequence[int], named: str = "the module") -> None:
    """Check that a call leaves nothing behind in a module.

    Else a record's result would depend on those before it.

    Args:
        module: Only copies are called.
        input_shape: Of one record.
        named: How the error begins.

    Raises:
        UserError: It does, with the remedy.
    """
    if all(type(layer) in KNOWN_LAYERS for layer in module.modules()):
        return
    probe = _copy(module, named)
    probe_of_others = _copy(module, named)
    state_before = _state(probe)
    generator = torch.Generator().manual_seed(1)
    parameter = next(module.parameters())
    records = torch.randn((4, *input_shape), generator=generator).to(parameter)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        probe(records.clone())
        probe_of_others(0.5 * records[:2] + 1)
        outputs = torch.as_tensor(probe(records.clone())).nan_to_num()
        outputs_after_others = torch.as_tensor(probe_of_others(records.clone())).nan_to_num()
    if not torch.equal(outputs, outputs_after_others) or _state(probe) != state_before:
        raise UserError(
            f"{named} keeps something of the records that it is given, so clipping per record "
            "bounds nothing: compute every call from its records and parameters alone, and call "
            "eval() on what keeps statistics"
        )


def check_records_apart(
    module: nn.Module,
    input_shape: Sequence[int],
    named: str = "the module",
    outputs: int | None = None,
) -> int:
    """Check, on made-up records, that a module computes each record by itself and fails on none.

    Args:
        module: Only copies are called.
        input_shape: Of one record.
        named: How an error begins.
        outputs: How many logits it must return; any number if None.

    Returns:
        K, the number of its logits.

    Raises:
        UserError: It mixes records, keeps something of them, changes from call to call, fails,
            branches on a value, or does not return (N, K); with the remedy.
    """
    validate_module(module)
    probe = _copy(module, named)
    parameter = next(module.parameters())
    extremes = torch.tensor(_EXTREMES).view(-1, *(1,) * len(input_shape))
    extremes = extremes.expand(-1, *input_shape).to(parameter)
    generator = torch.Generator().manual_seed(0)
    records = torch.randn((ROWS, *input_shape), generator=generator).to(parameter)
    records[1::2] *= 100
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        width = _outputs(probe, extremes, named=named, width=outputs).shape[1]
        for draw, drawn in enumerate(drawn_modules(module)):
            some_records = records[:4] if draw else records
            _check_each_by_itself(drawn, some_records, named=named, width=width)
        _check_guards(module, records[:4], named=named)
        check_unmoved(module, input_shape, named=named)
    return width


def _check_each_by_itself(module: nn.Module, records: Tensor, named: str, width: int) -> None:
    together = _outputs(module, records, named=named, width=width)
    again = _outputs(module, records, named=named, width=width)
    if not torch.equal(together, again):
        raise UserError(
            f"{named} gives the same records different logits when it is called again: "
            f"{_remedy_of_changes(module)}"
        )

    def outputs_of(record: Tensor) -> Tensor:
        return _outputs(module, record[None], named=named, width=width)[0]

    # What branches on a value, even on one that is not met here, cannot be mapped over records.
    by_itself = mapped(outputs_of, records)
    largest = by_itself.abs().amax(dim=1)
    if ((together - by_itself).abs().amax(dim=1) > _MIXES * largest).any():
        raise UserError(
            f"{named} gives a record other logits when other records are beside it, so clipping "
            "per record bounds nothing: compute each row by itself"
        )


def _remedy_of_changes(module: nn.Module) -> str:
    for name, layer in module.named_modules():
        if isinstance(layer, _DropoutNd) and layer.training and layer.p:
            return (
                f"layer {name!r} ({type(layer).__name__}) draws masks: set its p = 0, or choose "
                "model.kind 'mlp' or 'cnn' with sampler.kind 'dp-mc-dropout'"
            )
    return "leave out what changes it or draws random numbers"


def _check_guards(module: nn.Module, records: Tensor, named: str) -> None:
    """Check that the records beside one do not change its logits, whatever they and weights are."""
    for scale in _WEIGHT_SCALES:
        scaled = copy.deepcopy(next(drawn_modules(module)))
        for value in scaled.parameters():
            value.data = value.data * scale
        try:
            expected = scaled(records.clone())[::2]
        except Exception:
            # It fails by its weights alone, whatever a record holds.
            continue
        for neighbour_scale in _NEIGHBOUR_SCALES:
            changed = records.clone()
            changed[1::2] *= neighbour_scale
            outputs = _outputs(scaled, changed, named=named, width=None)[::2]
            if not _are_near(outputs, expected):
                raise UserError(
                    f"{named} gives a record other logits when large or small values are beside "
                    "it, so clipping per record bounds nothing: a guard against overflow must "
                    "look at one record's own values (amax over its own axes)"
                )


def _are_near(outputs: Tensor, expected: Tensor) -> bool:
    are_finite_alike = outputs.isfinite() == expected.isfinite()
    largest = expected.abs().amax(dim=1, keepdim=True)
    are_near = (outputs - expected).abs() <= _MIXES * largest
    return bool((are_finite_alike & (are_near | ~expected.isfinite())).all())


def _outputs(module: nn.Module, records: Tensor, named: str, width: int | None) -> Tensor:
    shape = list(records.shape)
    try:
        # A module may write into its inputs.
        outputs = module(records.clone())
    except Exception as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(
            f"{named} fails on records of shape {shape}: {problem}; it must take (N, *input_shape) "
            "of any finite values (clamp an index at both ends), branch on none (use torch.where), "
            "and return logits (N, classes)"
        ) from None
    is_matrix = isinstance(outputs, Tensor) and outputs.ndim == 2 and len(outputs) == shape[0]
    if not is_matrix or width not in (None, outputs.shape[1]):
        is_tensor = isinstance(outputs, Tensor)
        description = f"shape {list(outputs.shape)}" if is_tensor else f"a {type(outputs).__name__}"
        expected = [len(records), width or "classes"]
        raise UserError(
            f"{named} returns {description} for records of shape {shape}: it must return logits "
            f"of shape {expected}, one row per record"
        )
    return outputs


def _state(module: nn.Module) -> list[object]:
    """Return what a module holds beside its parameters, to be compared."""
    attributes: list[object] = [repr(attributes_of(layer)) for layer in module.modules()]
    return [*attributes, *(bytes_of(value) for value in module.buffers())]


def _copy(module: nn.Module, named: str) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise UserError(
            f"{named} cannot be copied ({type(error).__name__}): keep no computed tensor as an "
            "attribute (as torch.nn.utils.weight_norm does; "
            "torch.nn.utils.parametrizations.weight_norm does not)"
        ) from None
