"""A check that generic module names mean ours."""

from pathlib import Path
from types import ModuleType

import fl_dpbayes
from fl_dpbayes.config.errors import UserError


def check_origin(module: ModuleType) -> None:
    """Check that a top-level module such as `clients` or `server` lies beside this package.

    Args:
        module: the imported package.

    Raises:
        UserError: if another distribution's module of that name was imported in its place.
    """
    # A folder without __init__.py is a namespace package: it has a path but no file.
    origin = Path(module.__file__).resolve().parent.parent if module.__file__ else Path(next(iter(module.__path__)))
    expected = Path(fl_dpbayes.__file__).resolve().parent.parent
    if origin != expected:
        raise UserError(
            f"the module {module.__name__!r} was imported from {origin}, not from {expected}: another package uses the "
            "same name; remove it or start from another folder"
        )
