"""Everything that people write, each kind with its properties: scenario, study, site file.

What comes in: TOML, keywords and packages that register kinds. What goes out: frozen records that
are valid, or an error that names the value, what is allowed and the remedy.

Names are looked up when they are first asked for: a package that registers a record may import its
base before the records of all packages are joined.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_dpbayes.config.aggregation import *
    from fl_dpbayes.config.approvals import *
    from fl_dpbayes.config.approved_code import *
    from fl_dpbayes.config.data import *
    from fl_dpbayes.config.data_folder import *
    from fl_dpbayes.config.image_library import *
    from fl_dpbayes.config.installed_code import *
    from fl_dpbayes.config.kinds import *
    from fl_dpbayes.config.names import *
    from fl_dpbayes.config.outcome import *
    from fl_dpbayes.config.plan import *
    from fl_dpbayes.config.recalibration import *
    from fl_dpbayes.config.record_schema import *
    from fl_dpbayes.config.rule import *
    from fl_dpbayes.config.run_warning import *
    from fl_dpbayes.config.sampler import *
    from fl_dpbayes.config.scenario import *
    from fl_dpbayes.config.site_file import *
    from fl_dpbayes.config.sources import *
    from fl_dpbayes.config.study_file import *
    from fl_dpbayes.config.task import *
    from fl_dpbayes.config.validation_text import *

_NAMES_OF_MODULES = {
    "aggregation": (
        "AveragingRule",
        "Consensus",
        "Distillation",
        "DistillingRule",
        "FALD",
        "FedAvg",
        "FedBE",
        "FedPA",
        "Mixture",
        "PredBayes",
        "Product",
        "prior_scale",
    ),
    "approvals": (
        "Kind",
        "MOST_HELD_BYTES",
        "approvals_file",
        "approve",
        "held",
        "hold",
        "node_log",
        "read_approvals",
    ),
    "approved_code": (
        "approve_bundle",
        "asks_for_approval",
        "site_code",
        "unapproved_code",
    ),
    "data": (
        "ClassesPartition",
        "DirichletPartition",
        "FeaturePartition",
        "ImageShift",
        "NaturalPartition",
        "Partition",
        "QuantityPartition",
        "Shift",
        "ShiftKind",
        "SiteSpec",
        "roles_sharing_records",
        "with_part_of_owner",
    ),
    "data_folder": (
        "SHARED_RECORDS",
        "VARIABLE",
        "backbone_folder",
        "check_rows",
        "damaged",
        "data_file",
        "known_folder",
    ),
    "image_library": (
        "NotInstalledError",
        "require_torchvision",
    ),
    "installed_code": (
        "InstalledCode",
        "foundations",
        "installed_package",
    ),
    "kinds": (
        "check_origin",
        "implementation",
        "import_apps",
    ),
    "names": (
        "EvaluationRelease",
        "GroupText",
        "MAX_GROUP_TEXT",
        "OutsideText",
        "PREDICTORS",
        "Role",
        "SiteName",
        "counted",
        "is_group_text",
        "outside_text",
        "site_name",
    ),
    "outcome": (
        "AnyOutcome",
        "Classification",
        "OutcomeConfig",
        "Targets",
    ),
    "plan": (
        "Adjacency",
        "AnyPrivacyPlan",
        "AutomaticClipping",
        "Clipping",
        "FLAT",
        "FlatClipping",
        "GlobalClipping",
        "MAX_STEPS",
        "NoPrivacyPlan",
        "NoiseCoupling",
        "PerLayerClipping",
        "PrivacyPlan",
        "Probability",
        "TrainingPlan",
    ),
    "recalibration": (
        "AnyRecalibrationPlan",
        "COUNTED",
        "CountingPlan",
        "DescentMethod",
        "ISOTONIC_BINS",
        "PARAMETER_BOUND",
        "Parameters",
        "RecalibrationMap",
        "RecalibrationPlan",
        "parameter_count",
        "recalibration_plan",
    ),
    "record_schema": ("RecordSchema",),
    "rule": (
        "PublicFile",
        "PublicInputs",
        "Rule",
        "SyntheticInputs",
        "cannot_be_kept",
    ),
    "run_warning": (
        "RunWarning",
        "warning",
    ),
    "sampler": (
        "Adam",
        "BayesByBackprop",
        "ConstantStepSize",
        "ExponentialStepSize",
        "FlatPrior",
        "GaussianPrior",
        "LaplacePrior",
        "MCDropout",
        "Prior",
        "SGD",
        "SGHMC",
        "SGLD",
        "Sampler",
        "SamplerSettings",
        "StepSizeSchedule",
        "spread_of",
    ),
    "scenario": (
        "PATH_KEYS",
        "Resources",
        "STUDY_PREFIX",
        "Scenario",
        "apply_overrides",
        "load_scenario",
        "scenario_content",
        "set_key",
        "shipped_scenarios",
        "site_plan",
        "training_plan",
        "with_absolute_paths",
        "write_scenario",
    ),
    "site_file": (
        "Connection",
        "LedgerSettings",
        "Policy",
        "Selection",
        "SiteFile",
        "Split",
        "read_own_site_file",
        "read_site_file",
        "write_site_file",
    ),
    "sources": (
        "Arrays",
        "BuiltIn",
        "HuggingFace",
        "ImageFolder",
        "Logistic2D",
        "OfficialPart",
        "Radiographs",
        "Source",
        "SyntheticSites",
        "Table",
    ),
    "study_file": (
        "AxisValue",
        "PREDICTOR",
        "SEED",
        "SHIFT_AXES",
        "Study",
        "load_study",
        "same_study",
        "shipped_papers",
        "shipped_studies",
        "write_study",
    ),
    "task": (
        "BackboneFeatures",
        "CNNModel",
        "Features",
        "FrozenBody",
        "LogisticModel",
        "MLPModel",
        "Model",
        "ModuleModel",
        "PROVIDED",
        "ScatteringFeatures",
        "SitePrevalence",
        "StandardFeatures",
        "StrokeProjection",
        "Task",
        "TrainedPrevalence",
        "check_prevalence",
        "is_prevalence_of",
    ),
    "validation_text": (
        "explain",
        "read_record",
    ),
}
_MODULES = {name: module for module, names in _NAMES_OF_MODULES.items() for name in names}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
