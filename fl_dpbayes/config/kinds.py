"""Where code is found: a kind's in the module of its name, that of the apps beside this package."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from fl_dpbayes.errors import UserError

HOME = Path(__file__).resolve().parents[2]


def implementation(package: str, kind: str, implemented_by: str = "") -> ModuleType:
    """Import what implements a kind, such as `fl_dpbayes.posterior.rules` and `product`.

    Args:
        package: Name of the package that holds a module for every kind.
        kind: The kind; dashes in it are underscores in the module's name.
        implemented_by: Module that a registered record names, outside the package; empty: none.
    """
    return import_module(implemented_by or f"{package}.{kind.replace('-', '_')}")


def import_apps() -> None:
    """Import the apps beside this package, whatever modules of their names the working folder has.

    Raises:
        UserError: Such a module was imported before.
    """
    sys.path.insert(0, str(HOME))
    try:
        for name in ("clients", "server"):
            check_origin(import_module(name))
    finally:
        sys.path.remove(str(HOME))


def check_origin(module: ModuleType) -> None:
    """Check that a top-level module such as `clients` or `server` lies beside this package.

    Raises:
        UserError: It does not; the error names the file or folder imported in its place.
    """
    # A folder without __init__.py is a namespace package: it has a path but no file.
    origin = Path(module.__file__ or next(iter(module.__path__))).resolve()
    if HOME / module.__name__ not in [origin, *origin.parents]:
        problem = f"{origin} is in the way: Python took it for {HOME / module.__name__}; rename it"
        raise UserError(
            f"{problem}, or start where it is not imported first, for example by the "
            "command fl-dpbayes"
        )
