"""Private, calibrated Bayesian federated learning for hospitals, on Flower.

Names are looked up when they are first asked for, so that `import fl_dpbayes` takes no time.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_dpbayes.run.public_names import *

__version__ = "0.1.0"
__all__ = [
    "CNN", "DPSGD", "DPSGHMC", "DPSGLD", "FALD", "MLP", "Consensus", "DPAdam", "DPBayesByBackprop", "DPMCDropout",
    "Distillation", "FedAvg", "FedBE", "FedPA", "Logistic", "Mixture", "NoPrivacy", "PredBayes", "Privacy", "Product",
    "Run", "UserError", "__version__", "load_run", "simulate", "sites_from_arrays", "sites_from_frame",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fl_dpbayes' has no attribute {name!r}: it has {', '.join(__all__)}")
    from fl_dpbayes.run import public_names

    return getattr(public_names, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
