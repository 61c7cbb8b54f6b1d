"""Private, calibrated Bayesian federated learning for hospitals, on Flower."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_dpbayes.config.plan import Privacy
    from fl_dpbayes.run import strategies
    from fl_dpbayes.run.private_chain import PrivateChain, predict_proba, private_chain

__version__ = "0.1.0"
__all__ = ["Privacy", "PrivateChain", "predict_proba", "private_chain", "strategies"]
# Where each name is found when it is first asked for: importing torch takes seconds that a command need not pay.
_HOMES = {
    "Privacy": "config.plan",
    "PrivateChain": "run.private_chain",
    "predict_proba": "run.private_chain",
    "private_chain": "run.private_chain",
    "strategies": "run.strategies",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES[name]}")
    return home if home.__name__.endswith(f".{name}") and not hasattr(home, name) else getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
