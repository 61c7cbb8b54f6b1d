"""Private, calibrated Bayesian federated learning for hospitals, on Flower.

Names are looked up when they are first asked for: importing torch takes seconds that a command need
not pay.
"""

from importlib import import_module
from sys import modules
from typing import TYPE_CHECKING, Any

from fl_dpbayes.reproducible_products import ask_for_reproducible_products
from fl_dpbayes.version import __version__

if TYPE_CHECKING:
    from fl_dpbayes.api.public_names import *

__all__ = [
    "CNN",
    "DPSGD",
    "DPSGHMC",
    "DPSGLD",
    "FALD",
    "MLP",
    "ChainRelease",
    "Consensus",
    "DPAdam",
    "DPBayesByBackprop",
    "DPMCDropout",
    "Distillation",
    "FedAvg",
    "FedBE",
    "FedPA",
    "Logistic",
    "Mixture",
    "ModuleModel",
    "NoPrivacy",
    "PredBayes",
    "Privacy",
    "PrivateChain",
    "Product",
    "Run",
    "UserError",
    "__version__",
    "load_run",
    "predict_proba",
    "private_chain",
    "register_opacus_accountant",
    "simulate",
    "sites_from_arrays",
    "sites_from_datasets",
    "sites_from_frame",
    "strategies",
]

# MKL reads it at torch's first product.
ask_for_reproducible_products()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=modules[__name__]
        )
    return getattr(import_module("fl_dpbayes.api.public_names"), name)


def __dir__() -> list[str]:
    return __all__
