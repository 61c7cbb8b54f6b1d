"""What `import fl_dpbayes as fl` offers, by the names that it has there.

The package looks here when it is asked.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from pydantic import BaseModel

from fl_dpbayes.api import strategies
from fl_dpbayes.api.finished_run import Run, load_run
from fl_dpbayes.api.frames import sites_from_arrays, sites_from_frame
from fl_dpbayes.api.from_python import simulate
from fl_dpbayes.api.opacus_accountant import register_opacus_accountant
from fl_dpbayes.api.private_chain import PrivateChain, predict_proba, private_chain
from fl_dpbayes.config import aggregation, plan, read_record, sampler, task
from fl_dpbayes.errors import UserError

Keys = ParamSpec("Keys")
Record = TypeVar("Record", bound=BaseModel)


def _maker_of(record: Callable[Keys, Record]) -> Callable[Keys, Record]:
    """Return a function with the keys of a record, whose mistakes are a UserError of one line."""
    record_class = cast(type[Record], record)

    @wraps(record, updated=())
    def make(*_: Keys.args, **keys: Keys.kwargs) -> Record:
        return read_record(record_class, keys, record_class.__name__)

    return make


Privacy = _maker_of(plan.Privacy)
NoPrivacy = _maker_of(plan.NoPrivacyPlan)
Mixture = _maker_of(aggregation.Mixture)
FALD = _maker_of(aggregation.FALD)
FedAvg = _maker_of(aggregation.FedAvg)
FedBE = _maker_of(aggregation.FedBE)
FedPA = _maker_of(aggregation.FedPA)
Consensus = _maker_of(aggregation.Consensus)
Product = _maker_of(aggregation.Product)

# These also take a number for a step size, lists and dictionaries, of which a type checker cannot
# know that they become the record's own types.
DPSGLD: Callable[..., sampler.SGLD] = _maker_of(sampler.SGLD)
DPSGD: Callable[..., sampler.SGD] = _maker_of(sampler.SGD)
DPAdam: Callable[..., sampler.Adam] = _maker_of(sampler.Adam)
DPSGHMC: Callable[..., sampler.SGHMC] = _maker_of(sampler.SGHMC)
DPBayesByBackprop: Callable[..., sampler.BayesByBackprop] = _maker_of(sampler.BayesByBackprop)
DPMCDropout: Callable[..., sampler.MCDropout] = _maker_of(sampler.MCDropout)
Logistic: Callable[..., task.LogisticModel] = _maker_of(task.LogisticModel)
MLP: Callable[..., task.MLPModel] = _maker_of(task.MLPModel)
CNN: Callable[..., task.CNNModel] = _maker_of(task.CNNModel)
ModuleModel: Callable[..., task.ModuleModel] = _maker_of(task.ModuleModel)
Distillation: Callable[..., aggregation.Distillation] = _maker_of(aggregation.Distillation)
PredBayes: Callable[..., aggregation.PredBayes] = _maker_of(aggregation.PredBayes)
