"""The Python code that computes a layer.

Code written anew in this process counts as another module: a function of a notebook's cell, or of a
file that is reloaded, keeps its name when it is written anew.
"""

import sys
import sysconfig
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType

from torch import Tensor, nn
from torch.jit import ScriptFunction, ScriptModule

_FOLDERS = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = tuple({sysconfig.get_path(name) for name in _FOLDERS})
# From a layer's class to its function, to one that this calls, and to what that calls.
STEPS_TO_COMPILED_CODE = 5
_TENSORS_AND_LAYERS = ("_parameters", "_buffers", "_modules")


def code_behind(layer: nn.Module) -> tuple[Hashable, ...]:
    """Return the code that a layer's class and attributes reach, with the plain values it reads.

    Followed are functions, closures, defaults, global names and objects, outside of installed
    packages, which stay as they are while a process lasts.

    Args:
        layer: Its parameters, buffers and layers are left out.

    Returns:
        Code and values, to be compared.
    """
    parts: list[Hashable] = []
    waiting: list[object] = [type(layer)]
    waiting += [value for name, value in vars(layer).items() if name not in _TENSORS_AND_LAYERS]
    reached: dict[int, object] = {}
    while waiting:
        value = waiting.pop()
        if isinstance(value, bool | int | float | str):
            parts.append((type(value), value))
            continue
        if id(value) in reached:
            continue
        # Kept here, so that no other object gets its id.
        reached[id(value)] = value
        if isinstance(value, FunctionType) and not _is_installed_code(value):
            parts.append(value.__code__)
        waiting += _behind(value)
    return tuple(parts)


def reaches_compiled_code(layer: nn.Module) -> bool:
    """Say whether a layer is, or names within a few steps, what torch.jit compiled.

    Steps are those of `code_behind`: from a class to its functions, and from a function to what it
    reads. What installed packages call is not looked at.
    """
    reached: dict[int, object] = {}
    waiting: list[object] = [layer, type(layer)]
    waiting += [value for name, value in vars(layer).items() if name not in _TENSORS_AND_LAYERS]
    for _ in range(STEPS_TO_COMPILED_CODE):
        if any(isinstance(value, ScriptModule | ScriptFunction) for value in waiting):
            return True
        new = {id(value): value for value in waiting if id(value) not in reached}
        reached |= new
        waiting = [behind for value in new.values() for behind in _behind(value)]
    return False


def _is_installed_code(function: FunctionType) -> bool:
    return function.__code__.co_filename.startswith(_INSTALLED)


def _behind(value: object) -> list[object]:
    """Return what a value leads to, one step on."""
    match value:
        case FunctionType():
            return [] if _is_installed_code(value) else list(_read_by(value))
        case MethodType():
            return [value.__func__, value.__self__]
        case staticmethod() | classmethod():
            return [value.__func__]
        case property():
            return [value.fget]
        case partial():
            return [value.func, value.args, value.keywords]
        case Mapping():
            return list(value.values())
        case list() | tuple():
            return list(value)
        case type():
            return [member for base in value.__mro__ for member in _members(base)]
        case Tensor() | ModuleType():
            return []
    if _is_installed(type(value)):
        return []
    return [type(value), getattr(value, "__dict__", None)]


def _members(owner: type) -> list[object]:
    """Return what a class defines, of an installed one what a notebook may have put there."""
    if owner.__module__.partition(".")[0] in ("builtins", "torch"):
        return []
    members = list(vars(owner).values())
    if not _is_installed(owner):
        return members
    return [member for member in members if isinstance(member, FunctionType)]


def _read_by(function: FunctionType) -> Iterator[object]:
    """Yield defaults, closure and global values that a function may read."""
    yield function.__defaults__
    yield function.__kwdefaults__
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            # The variable has no value yet.
            continue
    names = set(_names(function.__code__))
    # Attributes of a module that is a global are read by their names too.
    waiting: list[Mapping[str, object]] = [function.__globals__]
    # Modules may name each other.
    looked_at: set[int] = set()
    while waiting:
        space = waiting.pop()
        if id(space) in looked_at:
            continue
        looked_at.add(id(space))
        for name in sorted(names & space.keys()):
            value = space[name]
            if not isinstance(value, ModuleType):
                yield value
            elif not _has_installed_file(value):
                waiting.append(vars(value))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_installed(owner: type) -> bool:
    module = sys.modules.get(owner.__module__)
    return owner.__module__ != "__main__" and module is not None and _has_installed_file(module)


def _has_installed_file(module: ModuleType) -> bool:
    # What has no file is built in.
    return str(getattr(module, "__file__", None) or _INSTALLED[0]).startswith(_INSTALLED)
