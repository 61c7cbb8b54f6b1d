"""A torch module of one's own as a model: where it comes from, and which part of it is trained.

What is not trained becomes a buffer, so that `named_parameters()` is the trained part for
everything downstream.
"""

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import FunctionType, MappingProxyType
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


@dataclass(frozen=True)
class ProvidedModule:
    """A module object that this process was given.

    Attributes:
        module: Copied whenever it is built.
        identity: Unlike that of any other object, also of one with the same name.
    """

    module: nn.Module
    identity: object


_provided: ContextVar[Mapping[str, ProvidedModule]] = ContextVar(
    "provided", default=MappingProxyType({})
)


@contextmanager
def provided(module: nn.Module) -> Iterator[str]:
    """Let this process build copies of a module object while the context lasts.

    Another process cannot have the object: only engine `inline` runs it.

    Args:
        module: The object.

    Yields:
        Its name, `model.factory` of a scenario: `object:` and a SHA-256 of what the module is made
        of and of all values that require no gradient.
    """
    name = PROVIDED + _digest(module)
    entry = ProvidedModule(module=module, identity=object())
    token = _provided.set({**_provided.get(), name: entry})
    try:
        yield name
    finally:
        _provided.reset(token)


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256(f"{type(module).__qualname__}\n{module!r}".encode())
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        digest.update(f"\n{name} {tuple(value.shape)}".encode())
        if not value.requires_grad:
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def given_object(model: Model) -> object:
    """Tell one provided object from another of the same name, whose computation may differ.

    Args:
        model: Of a scenario.

    Returns:
        The object's identity; None of a model that names no provided object.
    """
    if not isinstance(model, ModuleModel) or model.factory not in _provided.get():
        return None
    return _provided.get()[model.factory].identity


def own_module(model: ModuleModel, seed: int, weights_folder: Path | None = None) -> nn.Module:
    """Make the module: its trained part as parameters, all else a public constant in buffers.

    Layers of which nothing is trained are in evaluation mode.

    Args:
        model: It names the factory, the trained part and the file of weights.
        seed: At which the factory draws the trained part; the rest is drawn at the model's seed.
            Values that the file of weights holds are as there.
        weights_folder: Where files of weights lie.

    Returns:
        The module, on the CPU, float32.

    Raises:
        UserError: There is no such factory, it does not return a module, or the weights are missing
            or do not fit.
    """
    module = _made(model, model.seed)
    trained = _trained_parameters(module, model.trainable)
    if model.factory.startswith(PROVIDED):
        _check_digest_covers_the_rest(module, trained)
    if seed != model.seed:
        drawn = dict(_made(model, seed).named_parameters())
        for name, value in trained.items():
            value.data = drawn[name].data
    if model.weights is not None:
        state, origin = stored_state(model.weights, folder=weights_folder, key="model.weights")
        _load(module, state=state, origin=origin)
    _freeze_all_but(module, list(trained.values()))
    return module.float()


def _check_digest_covers_the_rest(module: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
    """Refuse an object with parameters that its name does not cover and that are not trained."""
    for name, value in module.named_parameters():
        if value.requires_grad and name not in trained:
            raise UserError(
                f"model.trainable leaves out {name!r} of a module object: call "
                "requires_grad_(False) on it"
            )


def _freeze_all_but(module: nn.Module, trained: Sequence[nn.Parameter]) -> None:
    trained_ids = {id(value) for value in trained}
    for layer in list(module.modules()):
        parameters = list(layer.parameters())
        if parameters and not any(id(value) in trained_ids for value in parameters):
            layer.eval()
        for name, value in list(layer.named_parameters(recurse=False)):
            is_trained = id(value) in trained_ids
            value.requires_grad_(is_trained)
            if not is_trained:
                delattr(layer, name)
                layer.register_buffer(name, value.detach())


def unbuilt_size(model: ModuleModel) -> float:
    """Count a module's numbers, trained or not, where they take no memory.

    Args:
        model: It is made on torch's device `meta`.

    Returns:
        How many; infinite where the factory fails there or has numbers from elsewhere, since
        nothing bounds these before the module is built.
    """
    try:
        return _unbuilt_size(model)
    except UserError:
        return math.inf


def checked_shapes(model: ModuleModel, input_shape: tuple[int, ...], outputs: int) -> Shapes:
    """Return the shapes of the trained parameters of a module, after checking it.

    Args:
        model: Of a scenario; its weights are not read.
        input_shape: Of what the module is given of one record.
        outputs: How many logits it must return.

    Returns:
        Shapes by name.

    Raises:
        UserError: As `own_module`; or, with the remedy, the module mixes records, changes from call
            to call, or does not return (N, classes).
    """
    is_object = model.factory.startswith(PROVIDED)
    title = "the module" if is_object else f"model.factory {model.factory!r}: the module"
    if math.isinf(_unbuilt_size(model)):
        raise UserError(f"{title} cannot be counted {ON_META}")
    without_weights = model.model_copy(update={"weights": None})
    module = own_module(without_weights, model.seed)
    made_again = own_module(without_weights, model.seed)
    for (name, value), value_again in zip(
        module.named_buffers(), made_again.buffers(), strict=True
    ):
        if not torch.equal(value, value_again):
            raise UserError(
                f"{title} has another {name!r} each time it is made: draw what is not trained "
                "by torch's generator, which is seeded, or give it by model.weights"
            )
    check_records_apart(module, input_shape, named=title, outputs=outputs)
    return parameter_shapes(module)


def _unbuilt_size(model: ModuleModel) -> float:
    with torch.device("meta"):
        module = _made(model, model.seed)
    values = [*module.parameters(), *module.buffers()]
    is_bounded = model.factory.startswith(PROVIDED) or all(value.is_meta for value in values)
    return sum(value.numel() for value in values) if is_bounded else math.inf


def _made(model: ModuleModel, seed: int) -> nn.Module:
    if model.factory.startswith(PROVIDED):
        return _copied_object(model.factory)
    factory = _imported(model.factory)
    try:
        # The CPU's generator alone: torch.manual_seed would move those of other devices for good.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = factory(**model.settings)
    except Exception as error:
        where = f" (this was {ON_META})" if "meta" in str(error) else ""
        raise UserError(
            f"model.factory {model.factory!r} fails with model.settings "
            f"{str(model.settings)[:200]}: {_in_short(error)}{where}"
        ) from None
    if not isinstance(module, nn.Module):
        raise UserError(
            f"model.factory {model.factory!r} returns a {type(module).__name__}, not a "
            "torch.nn.Module"
        )
    return module


def _copied_object(name: str) -> nn.Module:
    entry = _provided.get().get(name)
    if entry is None:
        raise UserError(
            f"model.factory {name[:19]}... is a module object, which no other process has: "
            "name a factory 'package.module:function', or give it to the inline engine"
        )
    return copy.deepcopy(entry.module)


def _imported(name: str) -> Any:
    """Import a factory.

    It is nothing but a class of modules, or a plain function of the very package that it names.
    """
    module_name, _, attributes = name.partition(":")
    package = module_name.partition(".")[0]
    if package in foundations():
        raise UserError(
            f"model.factory {name!r} is refused, as {package!r} belongs to Python, to this package "
            "or to what it needs: write a function in a package of your own that returns the "
            "module, and name that"
        )
    try:
        factory: Any = reduce(getattr, attributes.split("."), import_module(module_name))
    except Exception as error:
        raise UserError(
            f"model.factory {name!r} cannot be imported: {_in_short(error)}; install the package "
            "that has it (or set PYTHONPATH to its folder) here and at every site, or correct the "
            "name"
        ) from None
    is_module_class = isinstance(factory, type) and issubclass(factory, nn.Module)
    if not is_module_class and not _is_function_of(factory, package):
        raise UserError(
            f"model.factory {name!r} is refused: name a subclass of torch.nn.Module, or a plain "
            f"function that {package!r} itself defines"
        )
    return factory


def _is_function_of(value: object, package: str) -> bool:
    return isinstance(value, FunctionType) and str(value.__module__).partition(".")[0] == package


def _trained_parameters(module: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name, each once.

    A shared one is trained if any of its names matches. Without patterns those are trained that
    require a gradient.
    """
    named = list(module.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _ in named):
            names = ", ".join(name for name, _ in named[:20])
            raise UserError(
                f"model.trainable {pattern!r} matches no parameter: the module has "
                f"{names or 'none'}"
            )
    if patterns:
        chosen = {
            id(value)
            for name, value in named
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }
    else:
        chosen = {id(value) for _, value in named if value.requires_grad}
    trained = {name: value for name, value in module.named_parameters() if id(value) in chosen}
    if not trained:
        raise UserError(
            "the module of model.factory has no parameter that requires a gradient: "
            "nothing to train"
        )
    return trained


def _load(module: nn.Module, state: dict[str, Tensor], origin: str) -> None:
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    for name, value in state.items():
        shape = tuple(value.shape) if isinstance(value, Tensor) else None
        if shape is None or shapes.get(name) != shape:
            expected = shapes.get(name, "none of that name")
            raise UserError(
                f"{origin} holds {name[:100]!r} of shape {shape}, the module's has {expected}: "
                "give weights of this module, by its own names, or correct model.weights"
            )
        if not torch.isfinite(value).all():
            raise UserError(
                f"{origin} holds a value of {name!r} that is not a finite number: give other "
                "weights"
            )
    module.load_state_dict(state, strict=False)


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"
