"""The validated scenario: everything that a run is, in one file."""

import copy
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from fl_dpbayes.config.aggregation import AveragingRule, with_default_rule
from fl_dpbayes.config.data import (
    DataSpec,
    IIDPartition,
    Partition,
    SiteSpec,
    check_prevalences,
    check_shared_records,
)
from fl_dpbayes.config.names import EvaluationRelease, GroupText, SiteName, near_hint
from fl_dpbayes.config.plan import AnyPrivacyPlan, ChainStart, TrainingPlan, check_temperature
from fl_dpbayes.config.recalibration import AnyRecalibration
from fl_dpbayes.config.rule import Aggregation
from fl_dpbayes.config.sampler import Sampler
from fl_dpbayes.config.task import LogisticModel, Model, ModuleModel
from fl_dpbayes.config.validation_text import (
    SWITCHES,
    drop_keys_of_other_kinds,
    explain,
    read_record,
    read_toml,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import LEFT_OUT, Config, write_atomically

STUDY_PREFIX = "study-"
PATH_KEYS = ("path", "folder")
STUDY_TABLES = {"axes", "variants", "study", "paper"}


class Training(Config):
    """How many chains each site runs, how long, and which of each chain's states are kept.

    The chains run one after the other. `burn_in` and `thinning` count steps of a chain. Every
    further chain costs as much privacy as the first.
    """

    rounds: PositiveInt
    steps_per_round: PositiveInt
    chains: Annotated[int, Field(ge=1, le=1000)] = 1
    burn_in: Annotated[int, Field(ge=0)] = 0
    thinning: PositiveInt


class Evaluation(Config):
    """How test results may leave a site, and how many posterior samples are sent to be evaluated.

    `public`: the sites' test records are declared public and their sums leave exactly. `noised`:
    one table of counts leaves with Gaussian noise that the site's ledger pays for. `none`: nothing
    leaves. `baselines`: a simulation also measures simpler predictors; they are fitted to the
    training records without privacy, which no epsilon covers. `max_records_per_unit`: how many
    records of one unit a site may count in a noised table; a table whose noise is for more is
    rejected, as a site could hide all results behind it.
    """

    release: EvaluationRelease = "public"
    noise_multiplier: PositiveFloat | None = None
    max_samples: Annotated[int, Field(ge=1, le=10_000)] = 100
    max_records_per_unit: Annotated[int, Field(ge=1, le=1000)] = 1
    baselines: bool = False

    def _check_keys(self) -> None:
        if (self.release == "noised") != (self.noise_multiplier is not None):
            raise ValueError("noise_multiplier must be given exactly when release is 'noised'")


class Resources(Config):
    """What a site's process may use, how long a round may last, and how many sites it takes.

    `min_sites`: the run stops after a round in which fewer training sites gave a usable reply. By
    default that is more than half of those that have steps left, so that no site that outlasts the
    others decides alone. `silent_rounds`: a site that let so many rounds in a row pass without a
    reply is asked no more, since each costs the others `round_timeout`. `start_nodes`: how many
    nodes must be connected to start (default: one per site); others may join before any later
    round. `nodes_may_change`: a site that is gone may come back on another node that shows the same
    card; a card is no proof of who shows it, so allow it only where every node is authenticated. A
    fraction in `gpus_per_site` is the share of a GPU's memory that a site's process takes at most.
    `ray_address`: of a Ray cluster, as `127.0.0.1:6379` on the machine of `ray start --head
    --port=6379`, which others join by `ray start --address=HOST:6379`; all have package and data,
    and the run directory at the same place of a shared disk.
    """

    cpus_per_site: PositiveInt = 1
    gpus_per_site: Annotated[float, Field(ge=0)] = 0.0
    threads_per_site: PositiveInt = 1
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    ray_address: str | None = None
    round_timeout: PositiveFloat = 3600.0
    min_sites: PositiveInt | None = None
    silent_rounds: PositiveInt = 3
    start_nodes: PositiveInt | None = None
    nodes_may_change: bool = False


class Simulation(Config):
    """What only a simulation may set.

    `insecure_seed` makes noise and sampling repeatable, so that nothing released is private: the
    report says so. `cohort_epsilon` is what each virtual site may ever spend (default:
    `privacy.epsilon`). `traces` keeps a trace of every chain (log posterior, clipped share) in the
    run's folder `traces`; it is not private, and no site sends it.
    """

    insecure_seed: int | None = None
    cohort_epsilon: PositiveFloat | None = None
    traces: bool = False


class Hierarchical(Config):
    """Hospitals differ in the level of the outcome.

    Each has an intercept of its own, drawn from a population. `group`: what the sites' `group`
    names, for example "country"; it makes a level above the hospitals, and every site needs one.
    Without it there is one level. `largest_sd`: no standard deviation, in log odds, is taken to
    be larger. Features should be centred and of one scale: that is how the clipping
    of scores sees them.
    """

    group: GroupText | None = None
    largest_sd: Annotated[float, Field(gt=0, le=10)] = 3.0


class Scenario(Config):
    """A whole run: records, sites, model, sampler, privacy, aggregation, evaluation, resources."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    data: DataSpec
    partition: Partition = IIDPartition()
    sites: Annotated[dict[SiteName, SiteSpec], Field(min_length=1, max_length=10_000)]
    model: Model
    sampler: Sampler
    training: Training
    privacy: AnyPrivacyPlan
    aggregation: Aggregation
    evaluation: Evaluation = Evaluation()
    recalibration: AnyRecalibration | None = None
    hierarchical: Annotated[Hierarchical | None, LEFT_OUT] = None
    resources: Resources = Resources()
    simulation: Simulation = Simulation()
    configurations_tried: PositiveInt = 1

    @model_validator(mode="before")
    @classmethod
    def _rule_by_default(cls, content: Any) -> Any:
        return with_default_rule(content)

    @property
    def named_code(self) -> tuple[str, ...]:
        """The code beside this package that a run needs at every site.

        It is the model's factory and a registered sampler, where the scenario names them.
        """
        names: list[str] = []
        if isinstance(self.model, ModuleModel):
            names.append(self.model.factory)
        if self.sampler.implemented_by:
            names.append(self.sampler.kind)
        return tuple(names)

    @property
    def least_nodes(self) -> int:
        """How many nodes must be there before the run begins."""
        return self.resources.start_nodes or len(self.sites)

    @property
    def kept_fractions(self) -> tuple[float, float]:
        """Shares of a training site's units that are kept for testing and for recalibration."""
        recalibration_fraction = self.recalibration.fraction if self.recalibration else 0.0
        return self.data.test_fraction, recalibration_fraction

    def _check_keys(self) -> None:
        training_sites = [name for name, site in self.sites.items() if site.role == "train"]
        if not training_sites:
            raise ValueError("no site has role 'train': give at least one site that role")
        check_shared_records(self.sites)
        shared = [name for name, site in self.sites.items() if site.records_of is not None]
        if shared and self.evaluation.release == "noised":
            problem = (
                f"sites.{shared[0]}.records_of: the same patients would pay for noised tables "
                "in two ledgers"
            )
            raise ValueError(
                f"{problem}: set evaluation.release to 'public' or 'none', or give the site "
                "its own records"
            )
        self._check_resources(len(training_sites))
        self.aggregation.check(self.sampler, len(training_sites))
        test_fraction, recalibration_fraction = self.kept_fractions
        if recalibration_fraction + test_fraction >= 1:
            raise ValueError(
                f"recalibration.fraction {recalibration_fraction}, test_fraction "
                f"{test_fraction}: that leaves nothing to train on: lower one"
            )
        if self.sampler.needs_hidden_units:
            self._check_hidden_units()
        check_temperature(self.sampler, self.privacy)
        check_prevalences(self.data, self.sites, self.evaluation.release)
        self._check_hierarchical()
        try:
            plan = training_plan(self, prior_share=1.0, chain_start="own_last")
        except ValidationError as error:
            raise ValueError(f"training: {explain(error, TrainingPlan)}") from None
        self.aggregation.site_plan(plan)

    def _check_resources(self, training_sites: int) -> None:
        min_sites = self.resources.min_sites
        if min_sites is not None and min_sites > training_sites:
            raise ValueError(
                f"resources.min_sites is {min_sites} but {training_sites} sites train: lower it"
            )
        start_nodes = self.resources.start_nodes
        if start_nodes is not None and start_nodes > len(self.sites):
            raise ValueError(
                f"resources.start_nodes is {start_nodes} but there are {len(self.sites)} sites: "
                "lower it"
            )

    def _check_hidden_units(self) -> None:
        """Refuse a model without trained hidden units, which the sampler would drop."""
        drops = f"sampler.kind {self.sampler.kind!r} drops hidden units, and"
        if isinstance(self.model, ModuleModel):
            raise ValueError(
                f"{drops} those of a module of one's own are not known: choose another sampler"
            )
        if isinstance(self.model, LogisticModel):
            raise ValueError(
                f"{drops} model.kind 'logistic' has none: choose 'mlp' or 'cnn', or another sampler"
            )
        if self.model.frozen_body is not None:
            raise ValueError(
                f"{drops} those of model.frozen_body are fixed: remove frozen_body, or "
                "choose another"
            )

    def _check_hierarchical(self) -> None:
        """Check that a state tells the noisy sum of clipped gradients exactly.

        It does after one plain step at sampling rate 1.
        """
        section = self.hierarchical
        privacy = self.privacy
        level = section.group if section else None
        for name, site in self.sites.items():
            if (site.group is None) != (level is None):
                problem = f"hierarchical.group is {level!r} and sites.{name}.group {site.group!r}"
                raise ValueError(
                    f"{problem}: set both, as group = 'country' and group = 'uk', or neither"
                )
        if section is None:
            return
        features = self.model.features
        rule = self.aggregation
        robust = rule.robust if isinstance(rule, AveragingRule) else "none"
        needs = (
            ("model.kind", self.model.kind, "logistic"),
            ("aggregation.rule", self.aggregation.rule, "fald"),
            ("model.features.kind", features.kind if features else "standard", "standard"),
            ("aggregation.robust", robust, "none"),
            ("sampler.kind", self.sampler.algorithm, "sgld"),
            ("privacy.sampling_rate", privacy.sampling_rate, 1.0),
            ("training.steps_per_round", self.training.steps_per_round, 1),
            ("privacy.clipping.kind", privacy.clipping.kind, "flat"),
            ("privacy.pre_noise", privacy.pre_noise, 0.0),
        )
        reads = "[hierarchical] reads the sites' clipped sums from their states, which needs"
        for key, value, needed in needs:
            if value != needed:
                raise ValueError(
                    f"{key} is {value!r}, and {reads} {needed!r}: set it, or remove [hierarchical]"
                )


def training_plan(
    scenario: Scenario, *, prior_share: float, chain_start: ChainStart
) -> TrainingPlan:
    """Build the plan of the whole run, which every training request carries.

    Args:
        scenario: The scenario.
        prior_share: Share s in (0, 1] of the prior that one site targets; the aggregation rule
            sets it.
        chain_start: Where a site's chain starts in each round.
    """
    chains = {"prior_share": prior_share, "chain_start": chain_start, **dict(scenario.training)}
    return TrainingPlan(sampler=scenario.sampler, privacy=scenario.privacy, **chains)


def site_plan(scenario: Scenario, sites: int) -> TrainingPlan:
    """Build the plan that fits the scenario's rule and K training sites."""
    rule = scenario.aggregation
    start: ChainStart = "broadcast" if rule.own_rounds else "own_last"
    return rule.site_plan(
        training_plan(scenario, prior_share=rule.prior_share(sites), chain_start=start)
    )


def scenario_folder() -> Path:
    """Return the folder of the scenarios that come with the package."""
    package = Path(__file__).parents[1]
    inside = package / "scenarios"
    return inside if inside.is_dir() else package.parent / "scenarios"


def shipped_scenarios() -> list[str]:
    """Return the names of the package's scenarios, in alphabetical order, without studies."""
    names = (path.stem for path in scenario_folder().glob("*.toml"))
    return sorted(name for name in names if not name.startswith(STUDY_PREFIX))


def load_scenario(name_or_path: str, overrides: list[str] | tuple[str, ...] = ()) -> Scenario:
    """Read, override and validate a scenario.

    Its paths become absolute: the file's own start at its folder.

    Args:
        name_or_path: A shipped name, or the path of a TOML file.
        overrides: Assignments `key.sub_key=value`. The value is read as TOML, or else as text; no
            value removes the key. Where a table's kind or rule is set, keys of the file that only
            its other kinds have are dropped.

    Raises:
        UserError: There is no such scenario, it is not TOML, or a key is unknown, missing or out
            of range.
    """
    content = scenario_content(name_or_path)
    apply_overrides(content, overrides)
    scenario = read_record(Scenario, content, origin=f"scenario {name_or_path!r}")
    return with_absolute_paths(scenario)


def scenario_content(name_or_path: str) -> dict[str, Any]:
    """Return what a scenario's file says, with its name and absolute paths, not yet validated.

    Args:
        name_or_path: A shipped name, or the path of a TOML file.

    Raises:
        UserError: There is no such scenario, it is not TOML, or it is a study.
    """
    path = _find(name_or_path)
    content = place_paths(read_toml(path, "scenario"), path.parent)
    if STUDY_TABLES & content.keys():
        raise UserError(
            f"{name_or_path!r} is a study, not one scenario: run it with  fl-dpbayes study "
            f"{name_or_path}"
        )
    content.setdefault("name", path.stem)
    return content


def apply_overrides(content: dict[str, Any], overrides: Sequence[str]) -> None:
    """Apply assignments to a parsed scenario or study file, in place, as `load_scenario` does."""
    given = {_key(assignment) for assignment in overrides}
    for assignment in overrides:
        key = _key(assignment)
        _, separator, text = assignment.partition("=")
        if not separator or not all(key):
            raise UserError(
                f"setting {assignment!r}: write it as key.sub_key=value, for example "
                "privacy.epsilon=2"
            )
        value = _toml_value(assignment, text.strip()) if text.strip() else None
        set_key(content, key, value, given=given, origin=f"setting {assignment!r}")


def set_key(
    content: dict[str, Any],
    key: tuple[str, ...],
    value: Any,
    given: Collection[tuple[str, ...]],
    origin: str,
) -> None:
    """Set a key of a parsed file, in place.

    A new kind drops the keys that it does not have, save those `given`.

    Args:
        content: The parsed file.
        key: The key's sections and its name.
        value: The value; None removes the key.
        given: Keys that are set beside it.
        origin: What an error begins with.

    Raises:
        UserError: A section of the key is no table.
    """
    *sections, name = key
    table = content
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UserError(
                f"{origin}: {section!r} is a value, not a table, so it has no key {name!r}"
            )
    if value is None:
        table.pop(name, None)
        return
    table[name] = copy.deepcopy(value)
    if name in SWITCHES:
        drop_keys_of_other_kinds(content, location=tuple(sections), model=Scenario, given=given)


def place_paths(content: Any, folder: Path) -> Any:
    """Make the relative paths of a parsed file absolute, in place; they start at `folder`."""
    if isinstance(content, dict):
        items = list(content.items())
    elif isinstance(content, list):
        items = list(enumerate(content))
    else:
        items = []
    for key, value in items:
        if key in PATH_KEYS and isinstance(value, str):
            content[key] = str((folder / value).resolve())
        elif key in PATH_KEYS and isinstance(value, list):
            content[key] = [
                str((folder / path).resolve()) if isinstance(path, str) else path for path in value
            ]
        else:
            place_paths(value, folder)
    return content


def with_absolute_paths(scenario: Scenario) -> Scenario:
    """Resolve the scenario's paths against the working directory.

    They then mean the same from any other directory.
    """
    aggregation = scenario.aggregation.with_public_path(Path.resolve)
    data = scenario.data.model_copy(
        update={"source": scenario.data.source.with_place(Path.resolve)}
    )
    return scenario.model_copy(update={"data": data, "aggregation": aggregation})


def write_scenario(scenario: Scenario, path: Path) -> None:
    """Write the resolved scenario as TOML; whoever reads it meets the whole file or none."""
    write_atomically(path, tomli_w.dumps(scenario.model_dump(mode="json", exclude_none=True)))


def _find(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return path
    shipped = scenario_folder() / f"{name_or_path}.toml"
    if "/" in name_or_path or not shipped.is_file():
        names = shipped_scenarios()
        hint = near_hint(name_or_path, names)
        raise UserError(
            f"no scenario {name_or_path!r}: {hint}choose one of {', '.join(names)}, or give the "
            "path of a .toml file"
        )
    return shipped


def _key(assignment: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in assignment.partition("=")[0].split("."))


def _toml_value(assignment: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if text[:1] in ("{", "[", '"', "'"):
            raise UserError(
                f"setting {assignment!r}: the value is not valid TOML: {error}"
            ) from None
        return text
