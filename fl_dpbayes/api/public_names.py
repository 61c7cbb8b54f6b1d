"""What `import fl_dpbayes as fl` offers, by the names that it has there.

The package looks here when it is asked.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from pydantic import BaseModel

from fl_dpbayes.api import strategies
from fl_dpbayes.api.finished_run import Run, load_run
from fl_dpbayes.api.frames import sites_from_arrays, sites_from_frame
from fl_dpbayes.api.from_python import simulate
from fl_dpbayes.api.opacus_accountant import register_opacus_accountant
from fl_dpbayes.api.private_chain import PrivateChain, predict_proba, private_chain
from fl_dpbayes.config import aggregation, plan, read_record, sampler, task
from fl_dpbayes.errors import UserError

R = TypeVar("R", bound=BaseModel)


def _of(record: type[R]) -> Callable[..., R]:
    """Make a record of its keys; a mistake is one line."""

    # Without a type for each key: a number is a constant step size, which a type checker cannot
    # know of the record.
    @wraps(record, updated=())
    def made(**keys: object) -> R:
        return read_record(record, keys, record.__name__)

    return made


Privacy = _of(plan.Privacy)
NoPrivacy = _of(plan.NoPrivacyPlan)
DPSGLD = _of(sampler.SGLD)
DPSGD = _of(sampler.SGD)
DPAdam = _of(sampler.Adam)
DPSGHMC = _of(sampler.SGHMC)
DPBayesByBackprop = _of(sampler.BayesByBackprop)
DPMCDropout = _of(sampler.MCDropout)
Logistic = _of(task.LogisticModel)
MLP = _of(task.MLPModel)
CNN = _of(task.CNNModel)
ModuleModel = _of(task.ModuleModel)
Mixture = _of(aggregation.Mixture)
FALD = _of(aggregation.FALD)
FedAvg = _of(aggregation.FedAvg)
FedBE = _of(aggregation.FedBE)
FedPA = _of(aggregation.FedPA)
Consensus = _of(aggregation.Consensus)
Product = _of(aggregation.Product)
Distillation = _of(aggregation.Distillation)
PredBayes = _of(aggregation.PredBayes)
