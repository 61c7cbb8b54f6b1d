"""What `import fl_dpbayes as fl` offers, by the names that it has there; the package looks here when it is asked."""

from collections.abc import Callable

from fl_dpbayes.config import aggregation, plan, sampler, task
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.run import strategies
from fl_dpbayes.run.finished_run import Run, load_run
from fl_dpbayes.run.frames import sites_from_arrays, sites_from_frame
from fl_dpbayes.run.from_python import simulate
from fl_dpbayes.run.opacus_accountant import register_opacus_accountant
from fl_dpbayes.run.private_chain import PrivateChain, predict_proba, private_chain

Privacy = plan.Privacy
NoPrivacy = plan.NoPrivacyPlan
# Not as types: a number is a constant step size, which a type checker cannot know of the record.
DPSGLD: Callable[..., sampler.SGLD] = sampler.SGLD
DPSGD: Callable[..., sampler.SGD] = sampler.SGD
DPAdam: Callable[..., sampler.Adam] = sampler.Adam
DPSGHMC: Callable[..., sampler.SGHMC] = sampler.SGHMC
DPBayesByBackprop: Callable[..., sampler.BayesByBackprop] = sampler.BayesByBackprop
DPMCDropout: Callable[..., sampler.MCDropout] = sampler.MCDropout
Logistic = task.LogisticModel
MLP = task.MLPModel
CNN = task.CNNModel
ModuleModel = task.ModuleModel
Mixture = aggregation.Mixture
FALD = aggregation.FALD
FedAvg = aggregation.FedAvg
FedBE = aggregation.FedBE
FedPA = aggregation.FedPA
Consensus = aggregation.Consensus
Product = aggregation.Product
Distillation = aggregation.Distillation
PredBayes = aggregation.PredBayes
