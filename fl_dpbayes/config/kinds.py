"""Where code is found: a kind's in the module of its name, that of the apps beside this package."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from fl_dpbayes.errors import UserError

HOME = Path(__file__).resolve().parents[2]


def implementation(package: str, kind: str, implemented_by: str = "") -> ModuleType:
    """Import what implements a kind, such as `fl_dpbayes.posterior.rules` and `product`.

    `implemented_by`: the module that a registered record names, which has no place in the package.
    """
    return import_module(implemented_by or f"{package}.{kind.replace('-', '_')}")


def import_apps() -> None:
    """Import the apps beside this package, whatever modules of their names the working folder has.

    Raises UserError if such a module was imported before.
    """
    sys.path.insert(0, str(HOME))
    try:
        for name in ("clients", "server"):
            check_origin(import_module(name))
    finally:
        sys.path.remove(str(HOME))


def check_origin(module: ModuleType) -> None:
    """Check that a top-level module such as `clients` or `server` lies beside this package.

    Raises UserError naming the file or folder that was imported in its place.
    """
    # A folder without __init__.py is a namespace package: it has a path but no file.
    found = Path(module.__file__ or next(iter(module.__path__))).resolve()
    if HOME / module.__name__ not in [found, *found.parents]:
        problem = f"{found} is in the way: Python took it for {HOME / module.__name__}; rename it"
        raise UserError(
            f"{problem}, or start where it is not imported first, for example by the "
            "command fl-dpbayes"
        )
