"""Where the code of a kind is found: in the module of its name."""

from importlib import import_module
from types import ModuleType


def implementation(package: str, kind: str) -> ModuleType:
    """Import what implements a kind, such as `fl_dpbayes.posterior.rules` and `product`.

    Args:
        package: holds one module per kind.
        kind: of a validated record, hence one of ours; a hyphen stands for an underscore.

    Returns:
        The module.
    """
    return import_module(f"{package}.{kind.replace('-', '_')}")
