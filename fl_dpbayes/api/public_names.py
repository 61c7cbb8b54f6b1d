"""What `import fl_dpbayes as fl` offers, by the names that it has there.

The package looks here when it is asked.
"""

from inspect import signature
from typing import TYPE_CHECKING

from pydantic import BaseModel

from fl_dpbayes.api import strategies as strategies
from fl_dpbayes.api.chain_release import ChainRelease as ChainRelease
from fl_dpbayes.api.chain_release import predict_proba as predict_proba
from fl_dpbayes.api.finished_run import Run as Run
from fl_dpbayes.api.finished_run import load_run as load_run
from fl_dpbayes.api.frames import sites_from_arrays as sites_from_arrays
from fl_dpbayes.api.frames import sites_from_datasets as sites_from_datasets
from fl_dpbayes.api.frames import sites_from_frame as sites_from_frame
from fl_dpbayes.api.from_python import simulate as simulate
from fl_dpbayes.api.keywords import check_keywords
from fl_dpbayes.api.opacus_accountant import (
    register_opacus_accountant as register_opacus_accountant,
)
from fl_dpbayes.api.private_chain import PrivateChain as PrivateChain
from fl_dpbayes.api.private_chain import private_chain as private_chain
from fl_dpbayes.config import aggregation, plan, read_record, sampler, task
from fl_dpbayes.errors import UserError as UserError


class _RecordFace(type):
    """A class that makes records of another, whose mistakes are a UserError of one line."""

    record: type[BaseModel]

    def __call__(cls, *nameless: object, **keys: object) -> BaseModel:
        record = cls.record
        if nameless:
            raise UserError(
                f"{cls.__name__} has {nameless[0]!r} without a name: write its keys by name, "
                f"{', '.join(record.model_fields)}"
            )
        check_keywords(cls.__name__, keys, record.model_fields)
        return read_record(record, keys, cls.__name__)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.record)


def _face_of(name: str, record: type[BaseModel]) -> _RecordFace:
    shown = {"__doc__": record.__doc__, "__signature__": signature(record), "record": record}
    return _RecordFace(name, (), shown)


Privacy = plan.Privacy
NoPrivacy = plan.NoPrivacyPlan
Mixture = aggregation.Mixture
FALD = aggregation.FALD
FedAvg = aggregation.FedAvg
FedBE = aggregation.FedBE
FedPA = aggregation.FedPA
Consensus = aggregation.Consensus
Product = aggregation.Product
DPSGLD = sampler.SGLD
DPSGD = sampler.SGD
DPAdam = sampler.Adam
DPSGHMC = sampler.SGHMC
DPBayesByBackprop = sampler.BayesByBackprop
DPMCDropout = sampler.MCDropout
Logistic = task.LogisticModel
MLP = task.MLPModel
CNN = task.CNNModel
ModuleModel = task.ModuleModel
Distillation = aggregation.Distillation
PredBayes = aggregation.PredBayes

if not TYPE_CHECKING:
    # A type checker sees the records themselves, which annotations may name.
    RECORDS = {
        name: record
        for name, record in globals().items()
        if isinstance(record, type) and issubclass(record, BaseModel) and record is not BaseModel
    }
    globals().update({name: _face_of(name, record) for name, record in RECORDS.items()})
