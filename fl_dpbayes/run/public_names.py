"""What `import fl_dpbayes as fl` offers, by the names that it has there; the package looks here when it is asked."""

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
DPSGLD = spoken(sampler.SGLD, "DPSGLD")
DPSGD = spoken(sampler.SGD, "DPSGD")
DPAdam = spoken(sampler.Adam, "DPAdam")
DPSGHMC = spoken(sampler.SGHMC, "DPSGHMC")
DPBayesByBackprop = spoken(sampler.BayesByBackprop, "DPBayesByBackprop")
DPMCDropout = spoken(sampler.MCDropout, "DPMCDropout")
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
