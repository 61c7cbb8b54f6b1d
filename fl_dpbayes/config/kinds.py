"""Where code is found: a kind's in the module of its name, that of the apps beside this package."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from fl_dpbayes.config.errors import UserError


def implementation(package: str, kind: str, implemented_by: str = "") -> ModuleType:
    """Import what implements a kind, such as `fl_dpbayes.posterior.rules` and `product`.

    `implemented_by`: the module that a registered record names, which has no place in the package.
    """
    return import_module(implemented_by or f"{package}.{kind.replace('-', '_')}")


def check_origin(module: ModuleType) -> None:
    """Check that a top-level module such as `clients` or `server` lies beside this package.

    Raises UserError if another distribution's module of that name was imported in its place.
    """
    # A folder without __init__.py is a namespace package: it has a path but no file.
    origin = Path(module.__file__).resolve().parent.parent if module.__file__ else Path(next(iter(module.__path__)))
    expected = Path(__file__).resolve().parents[2]
    if origin != expected:
        raise UserError(
            f"the module {module.__name__!r} was imported from {origin}, not from {expected}: another package uses the "
            "same name; remove it or start from another folder"
        )
