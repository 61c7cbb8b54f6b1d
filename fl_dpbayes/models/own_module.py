"""A torch module of one's own as a model: where it comes from, which part of it is trained, what it may not do.

What is not trained becomes a buffer, so that `named_parameters()` is the trained part for
everything downstream.
"""

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from fl_dpbayes.config import PROVIDED, Model, ModuleModel, foundations
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.backbone import stored_state
from fl_dpbayes.models.module_checks import check_records_apart
from fl_dpbayes.models.parameters import Shapes, parameter_shapes

ON_META = (
    "on torch's device 'meta', before it is built: make its numbers by torch on its "
    "default device (of an array: "
    "torch.tensor(array)) and read none there, or give them by model.weights"
)
_provided: ContextVar[Mapping[str, tuple[nn.Module, object]] | None] = ContextVar(
    "provided", default=None
)


@contextmanager
def provided(module: nn.Module) -> Iterator[str]:
    """Let this process build copies of a module object while the context lasts, under the name that it yields.

    The name, `model.factory` of a scenario, is `object:` and a SHA-256 of what the module is made
    of and of all values that require no gradient. Another process cannot have the object: only
    engine `inline` runs it.
    """
    known = hashlib.sha256(f"{type(module).__qualname__}\n{module!r}".encode())
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        known.update(f"\n{name} {tuple(value.shape)}".encode())
        if not value.requires_grad:
            known.update(value.detach().cpu().contiguous().numpy().tobytes())
    name = PROVIDED + known.hexdigest()
    token = _provided.set({**(_provided.get() or {}), name: (module, object())})
    try:
        yield name
    finally:
        _provided.reset(token)


def given_object(model: Model) -> object:
    """Tell one provided object from another of the same name, whose computation may differ.

    None of a factory.
    """
    found = (_provided.get() or {}).get(model.factory) if isinstance(model, ModuleModel) else None
    return found and found[1]


def own_module(model: ModuleModel, seed: int, weights_folder: Path | None = None) -> nn.Module:
    """Make the module: its trained part at what the factory draws at `seed`, all else a public constant in buffers.

    Values that the file of weights holds are as there. Layers of which nothing is trained are in
    evaluation mode. Raises UserError if there is no such factory, it does not return a module, or
    the weights are missing or do not fit.
    """
    module = _made(model, model.seed)
    trained = _trained(module, model.trainable)
    left = [
        name
        for name, value in module.named_parameters()
        if value.requires_grad and name not in trained
    ]
    if left and model.factory.startswith(PROVIDED):
        # Its digest would not cover them.
        raise UserError(
            f"model.trainable leaves out {left[0]!r} of a module object: call "
            "requires_grad_(False) on it"
        )
    if seed != model.seed:
        drawn = dict(_made(model, seed).named_parameters())
        for name, value in trained.items():
            value.data = drawn[name].data
    if model.weights is not None:
        _load(module, *stored_state(model.weights, weights_folder, "model.weights"))
    kept = {id(value) for value in trained.values()}
    for layer in list(module.modules()):
        own = list(layer.parameters())
        if own and not any(id(value) in kept for value in own):
            layer.eval()
        for name, value in list(layer.named_parameters(recurse=False)):
            value.requires_grad_(id(value) in kept)
            if id(value) not in kept:
                delattr(layer, name)
                layer.register_buffer(name, value.detach())
    return module.float()


def unbuilt_size(model: ModuleModel) -> float:
    """Count a module's numbers, trained or not, on torch's device `meta`, where they take no memory.

    Infinite where the factory fails there or has numbers from elsewhere, since nothing bounds these
    before it is built.
    """
    try:
        return _unbuilt_size(model)
    except UserError:
        return math.inf


def checked_shapes(model: ModuleModel, input_shape: tuple[int, ...], classes: int) -> Shapes:
    """Return the shapes of the trained parameters by name, of a module that computes each record by itself.

    `input_shape`: of what the module is given of one record. Raises UserError as `own_module`, or,
    with the remedy, if it mixes records, changes from call to call, or does not return (N,
    classes).
    """
    named = f"model.factory {model.factory!r}: the module"
    if math.isinf(_unbuilt_size(model)):
        raise UserError(f"{named} cannot be counted {ON_META}")
    module, again = (
        own_module(model.model_copy(update={"weights": None}), model.seed) for _ in range(2)
    )
    for (name, value), other in zip(module.named_buffers(), again.buffers(), strict=True):
        if not torch.equal(value, other):
            said = (
                f"{named} has another {name!r} each time it is made: draw what is not trained "
                "by torch's generator"
            )
            raise UserError(f"{said}, which is seeded, or give it by model.weights")
    check_records_apart(module, input_shape, named, classes)
    return parameter_shapes(module)


def _unbuilt_size(model: ModuleModel) -> float:
    with torch.device("meta"):
        module = _made(model, model.seed)
    values = [*module.parameters(), *module.buffers()]
    counted = model.factory.startswith(PROVIDED) or all(value.is_meta for value in values)
    return sum(value.numel() for value in values) if counted else math.inf


def _made(model: ModuleModel, seed: int) -> nn.Module:
    if model.factory.startswith(PROVIDED):
        found = (_provided.get() or {}).get(model.factory)
        if found is None:
            said = (
                f"model.factory {model.factory[:19]}... is a module object, which no "
                "other process has"
            )
            raise UserError(
                f"{said}: name a factory 'package.module:function', or give it to the inline engine"
            )
        return copy.deepcopy(found[0])
    factory = _imported(model.factory)
    try:
        # The CPU's generator alone: torch.manual_seed would move those of other devices for good.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            made = factory(**model.settings)
    except Exception as error:
        where = f" (this was {ON_META})" if "meta" in str(error) else ""
        said = (
            f"model.factory {model.factory!r} fails with model.settings "
            f"{str(model.settings)[:200]}: {_said(error)}"
        )
        raise UserError(f"{said}{where}") from None
    if not isinstance(made, nn.Module):
        raise UserError(
            f"model.factory {model.factory!r} returns a {type(made).__name__}, not a "
            "torch.nn.Module"
        )
    return made


def _imported(name: str) -> Any:
    """Import a factory, which is nothing but a class of modules, or a plain function of the very package it names."""
    place, _, attribute = name.partition(":")
    if (top := place.partition(".")[0]) in foundations():
        said = (
            f"model.factory {name!r} is refused, as {top!r} belongs to Python, to this package "
            "or to what it needs"
        )
        raise UserError(
            f"{said}: write a function in a package of your own that returns the module, "
            "and name that"
        )
    try:
        found: Any = reduce(getattr, attribute.split("."), import_module(place))
    except Exception as error:
        said = (
            f"model.factory {name!r} cannot be imported: {_said(error)}; install the package "
            "that has it (or set"
        )
        raise UserError(
            f"{said} PYTHONPATH to its folder) here and at every site, or correct the name"
        ) from None
    own = isinstance(found, FunctionType) and str(found.__module__).partition(".")[0] == top
    if not own and not (isinstance(found, type) and issubclass(found, nn.Module)):
        said = f"model.factory {name!r} is refused"
        raise UserError(
            f"{said}: name a subclass of torch.nn.Module, or a plain function that {top!r} "
            "itself defines"
        )
    return found


def _trained(module: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Parameter]:
    """Find the parameters that are trained, each once.

    A shared one is if any of its names matches.
    """
    every = list(module.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _ in every):
            names = ", ".join(name for name, _ in every[:20])
            raise UserError(
                f"model.trainable {pattern!r} matches no parameter: the module has "
                f"{names or 'none'}"
            )
    matched = (
        any(fnmatchcase(name, one) for one in patterns) if patterns else v.requires_grad
        for name, v in every
    )
    chosen = {id(value) for (_, value), taken in zip(every, matched, strict=True) if taken}
    found = {name: value for name, value in module.named_parameters() if id(value) in chosen}
    if not found:
        raise UserError(
            "the module of model.factory has no parameter that requires a gradient: "
            "nothing to train"
        )
    return found


def _load(module: nn.Module, state: dict[str, Tensor], origin: str) -> None:
    own = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    for name, value in state.items():
        shape = tuple(value.shape) if isinstance(value, Tensor) else None
        if shape is None or own.get(name) != shape:
            expected = own.get(name, "none of that name")
            problem = f"{origin} holds {name[:100]!r} of shape {shape}, the module's has {expected}"
            raise UserError(
                f"{problem}: give weights of this module, by its own names, or correct model.weights"
            )
        if not torch.isfinite(value).all():
            raise UserError(
                f"{origin} holds a value of {name!r} that is not a finite number: give other weights"
            )
    module.load_state_dict(state, strict=False)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"
