"""Everything that people write, each kind with its properties: scenario, study, site file.

What comes in: TOML, keywords and packages that register kinds. What goes out: frozen records that
are valid, or an error that names the value, what is allowed and the remedy.
"""

from fl_dpbayes.config.aggregation import (
    FALD,
    AveragingRule,
    Consensus,
    Distillation,
    DistillingRule,
    FedAvg,
    FedBE,
    FedPA,
    Mixture,
    PredBayes,
    Product,
    prior_scale,
)
from fl_dpbayes.config.approvals import (
    MOST_HELD_BYTES,
    Kind,
    approvals_file,
    approve,
    held,
    hold,
    node_log,
    read_approvals,
)
from fl_dpbayes.config.approved_code import (
    approve_bundle,
    asks_for_approval,
    site_code,
    unapproved_code,
)
from fl_dpbayes.config.data import (
    ClassesPartition,
    DirichletPartition,
    FeaturePartition,
    ImageShift,
    NaturalPartition,
    Partition,
    QuantityPartition,
    Shift,
    ShiftKind,
    SiteSpec,
    roles_sharing_records,
    with_part_of_owner,
)
from fl_dpbayes.config.data_folder import (
    SHARED_RECORDS,
    VARIABLE,
    backbone_folder,
    check_rows,
    damaged,
    data_file,
    known_folder,
)
from fl_dpbayes.config.image_library import (
    NotInstalledError,
    require_torchvision,
)
from fl_dpbayes.config.installed_code import (
    InstalledCode,
    foundations,
    installed_package,
)
from fl_dpbayes.config.kinds import (
    check_origin,
    implementation,
    import_apps,
)
from fl_dpbayes.config.names import (
    MAX_GROUP_ATTRIBUTES,
    MAX_GROUP_TEXT,
    PREDICTORS,
    EvaluationRelease,
    GroupText,
    OutsideText,
    Role,
    SiteName,
    column_hint,
    counted,
    first_names,
    is_group_text,
    near_hint,
    near_names,
    outside_text,
    site_name,
)
from fl_dpbayes.config.other_libraries import (
    OTHER_LIBRARIES,
    key_hint,
)
from fl_dpbayes.config.outcome import (
    AnyOutcome,
    Classification,
    Measures,
    Targets,
    as_classification,
    class_keys,
)
from fl_dpbayes.config.plan import (
    FLAT,
    MAX_STEPS,
    Adjacency,
    AnyPrivacyPlan,
    AutomaticClipping,
    Clipping,
    FlatClipping,
    GlobalClipping,
    NoiseCoupling,
    NoPrivacyPlan,
    PerLayerClipping,
    PrivacyPlan,
    Probability,
    TrainingPlan,
)
from fl_dpbayes.config.recalibration import (
    COUNTED,
    ISOTONIC_BINS,
    PARAMETER_BOUND,
    AnyRecalibrationPlan,
    CountingPlan,
    DescentMethod,
    Parameters,
    RecalibrationMap,
    RecalibrationPlan,
    parameter_count,
    recalibration_plan,
)
from fl_dpbayes.config.record_schema import (
    RecordSchema,
)
from fl_dpbayes.config.rule import (
    PublicFile,
    PublicInputs,
    Rule,
    SyntheticInputs,
    cannot_be_kept,
    register_rule,
)
from fl_dpbayes.config.run_warning import (
    RunWarning,
    warning,
)
from fl_dpbayes.config.sampler import (
    SGD,
    SGHMC,
    SGLD,
    Adam,
    BayesByBackprop,
    ConstantStepSize,
    ExponentialStepSize,
    FlatPrior,
    GaussianPrior,
    LaplacePrior,
    MCDropout,
    Prior,
    Sampler,
    SamplerSettings,
    StepSizeSchedule,
    register_sampler,
    spread_of,
)
from fl_dpbayes.config.scenario import (
    PATH_KEYS,
    STUDY_PREFIX,
    Resources,
    Scenario,
    Training,
    apply_overrides,
    load_scenario,
    scenario_content,
    set_key,
    shipped_scenarios,
    site_plan,
    training_plan,
    with_absolute_paths,
    write_scenario,
)
from fl_dpbayes.config.site_file import (
    Connection,
    LedgerSettings,
    Policy,
    Selection,
    SiteFile,
    Split,
    read_own_site_file,
    read_site_file,
    write_site_file,
)
from fl_dpbayes.config.sources import (
    Arrays,
    BuiltIn,
    FileSource,
    GaussianClasses,
    HuggingFace,
    ImageFolder,
    Logistic2D,
    OfficialPart,
    Radiographs,
    Source,
    SplitNames,
    SyntheticSites,
    Table,
    register_source,
)
from fl_dpbayes.config.study_file import (
    PREDICTOR,
    SEED,
    SHIFT_AXES,
    AxisValue,
    Study,
    load_study,
    same_study,
    shipped_papers,
    shipped_studies,
    write_study,
)
from fl_dpbayes.config.task import (
    PROVIDED,
    BackboneFeatures,
    CNNModel,
    Features,
    FrozenBody,
    LogisticModel,
    MLPModel,
    Model,
    ModuleModel,
    ScatteringFeatures,
    SitePrevalence,
    StandardFeatures,
    StridedCNNModel,
    StrokeProjection,
    Task,
    TrainedPrevalence,
    check_prevalence,
)
from fl_dpbayes.config.validation_text import (
    explain,
    read_record,
)
