"""What `import fl_dpbayes as fl` offers, by the names that it has there; the package looks here when it is asked."""

from collections.abc import Callable

from fl_dpbayes.config import aggregation, plan, sampler, task
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.spoken import spoken
from fl_dpbayes.run import strategies
from fl_dpbayes.run.finished_run import Run, load_run
from fl_dpbayes.run.frames import sites_from_arrays, sites_from_frame
from fl_dpbayes.run.from_python import simulate
from fl_dpbayes.run.opacus_accountant import register_opacus_accountant
from fl_dpbayes.run.private_chain import PrivateChain, predict_proba, private_chain

Privacy = spoken(plan.Privacy, "Privacy")
NoPrivacy = spoken(plan.NoPrivacyPlan, "NoPrivacy")
# Not as types: a number is a constant step size, which a type checker cannot know of the record.
DPSGLD: Callable[..., sampler.SGLD] = spoken(sampler.SGLD, "DPSGLD")
DPSGD: Callable[..., sampler.SGD] = spoken(sampler.SGD, "DPSGD")
DPAdam: Callable[..., sampler.Adam] = spoken(sampler.Adam, "DPAdam")
DPSGHMC: Callable[..., sampler.SGHMC] = spoken(sampler.SGHMC, "DPSGHMC")
DPBayesByBackprop: Callable[..., sampler.BayesByBackprop] = spoken(sampler.BayesByBackprop, "DPBayesByBackprop")
DPMCDropout: Callable[..., sampler.MCDropout] = spoken(sampler.MCDropout, "DPMCDropout")
Logistic = spoken(task.LogisticModel, "Logistic")
MLP = spoken(task.MLPModel, "MLP")
CNN = spoken(task.CNNModel, "CNN")
ModuleModel = spoken(task.ModuleModel, "ModuleModel")
Mixture = spoken(aggregation.Mixture, "Mixture")
FALD = spoken(aggregation.FALD, "FALD")
FedAvg = spoken(aggregation.FedAvg, "FedAvg")
FedBE = spoken(aggregation.FedBE, "FedBE")
FedPA = spoken(aggregation.FedPA, "FedPA")
Consensus = spoken(aggregation.Consensus, "Consensus")
Product = spoken(aggregation.Product, "Product")
Distillation = spoken(aggregation.Distillation, "Distillation")
PredBayes = spoken(aggregation.PredBayes, "PredBayes")
