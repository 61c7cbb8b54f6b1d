"""What `import fl_dpbayes as fl` offers, by the names that it has there.

The package looks here when it is asked.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from pydantic import BaseModel

from fl_dpbayes.api import strategies
from fl_dpbayes.api.chain_release import ChainRelease, predict_proba
from fl_dpbayes.api.finished_run import Run, load_run
from fl_dpbayes.api.frames import sites_from_arrays, sites_from_datasets, sites_from_frame
from fl_dpbayes.api.from_python import simulate
from fl_dpbayes.api.keywords import check_keywords
from fl_dpbayes.api.opacus_accountant import register_opacus_accountant
from fl_dpbayes.api.private_chain import PrivateChain, private_chain
from fl_dpbayes.config import aggregation, plan, read_record, sampler, task
from fl_dpbayes.errors import UserError

Keys = ParamSpec("Keys")
Record = TypeVar("Record", bound=BaseModel)


def _maker_of(name: str, record: Callable[Keys, Record]) -> Callable[Keys, Record]:
    """Return a function with the keys of a record, whose mistakes are a UserError of one line."""
    record_class = cast(type[Record], record)

    @wraps(record, updated=())
    def make(*nameless: Keys.args, **keys: Keys.kwargs) -> Record:
        if nameless:
            raise UserError(
                f"{name} has {nameless[0]!r} without a name: write its keys by name, "
                f"{', '.join(record_class.model_fields)}"
            )
        check_keywords(name, keys, record_class.model_fields)
        return read_record(record_class, keys, name)

    make.__name__ = make.__qualname__ = name
    return make


Privacy = _maker_of("Privacy", plan.Privacy)
NoPrivacy = _maker_of("NoPrivacy", plan.NoPrivacyPlan)
Mixture = _maker_of("Mixture", aggregation.Mixture)
FALD = _maker_of("FALD", aggregation.FALD)
FedAvg = _maker_of("FedAvg", aggregation.FedAvg)
FedBE = _maker_of("FedBE", aggregation.FedBE)
FedPA = _maker_of("FedPA", aggregation.FedPA)
Consensus = _maker_of("Consensus", aggregation.Consensus)
Product = _maker_of("Product", aggregation.Product)
DPSGLD = _maker_of("DPSGLD", sampler.SGLD)
DPSGD = _maker_of("DPSGD", sampler.SGD)
DPAdam = _maker_of("DPAdam", sampler.Adam)
DPSGHMC = _maker_of("DPSGHMC", sampler.SGHMC)
DPBayesByBackprop = _maker_of("DPBayesByBackprop", sampler.BayesByBackprop)
DPMCDropout = _maker_of("DPMCDropout", sampler.MCDropout)
Logistic = _maker_of("Logistic", task.LogisticModel)
MLP = _maker_of("MLP", task.MLPModel)
CNN = _maker_of("CNN", task.CNNModel)
ModuleModel = _maker_of("ModuleModel", task.ModuleModel)
Distillation = _maker_of("Distillation", aggregation.Distillation)
PredBayes = _maker_of("PredBayes", aggregation.PredBayes)
