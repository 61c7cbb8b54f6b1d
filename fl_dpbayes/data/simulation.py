"""From a scenario to the folder of a simulated federation: plan and check, then write it down."""

import hashlib
import json
import math
import uuid
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
from pydantic import NonNegativeInt

from fl_dpbayes.config import (
    BackboneFeatures,
    LedgerSettings,
    Model,
    ModuleModel,
    Policy,
    PublicFile,
    RunWarning,
    Scenario,
    Selection,
    SiteFile,
    Split,
    Task,
    backbone_folder,
    check_prevalence,
    counted,
    parameter_count,
    recalibration_plan,
    training_plan,
    write_scenario,
    write_site_file,
)
from fl_dpbayes.data.public_records import read_public_records
from fl_dpbayes.data.site import most_declared, most_in_part
from fl_dpbayes.data.site_ledger import prepare_simulated_ledger
from fl_dpbayes.data.virtual_sites import PlannedSite, SitePlan, dealt_sites
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import LEFT_OUT, Config, RunStore, file_sha256, written
from fl_dpbayes.models import build_model, model_input_shape, model_shapes, stored_weights
from fl_dpbayes.models.frozen_body import frozen_body
from fl_dpbayes.privacy import Part

SITES_FOLDER = "sites"
TRACES_FOLDER = "traces"
SCENARIO_FILE = "scenario.toml"
# Keys of entries in a run's store.
PARTITION = "partition"
BASELINES = "baselines"


class PartitionRecord(Config):
    """How a simulation dealt its records, as the run's store holds it.

    Attributes:
        label_total_variation: As of `SitePlan`.
        feature_total_variation: As of `SitePlan`.
        warnings: As of `SitePlan`.
        units: Site -> part -> number of privacy units.
    """

    label_total_variation: float
    feature_total_variation: Annotated[float | None, LEFT_OUT] = None
    warnings: tuple[RunWarning, ...]
    units: dict[str, dict[Part, NonNegativeInt]]

    def _check_keys(self) -> None:
        if any(parts.keys() != set(get_args(Part)) for parts in self.units.values()):
            raise ValueError("units needs a number for each part of a site's records")


def plan_sites(scenario: Scenario, data_dir: Path | None) -> SitePlan:
    """Deal the scenario's records to its sites, and check all that it names.

    The one way into a simulation. Nothing is written.

    Args:
        scenario: The scenario.
        data_dir: Where built-in data are, as `BuiltIn.located`.

    Raises:
        UserError: As `check_task`, or if the partition is impossible, data, weights or public
            records are missing, or delta is not below 1/n at a training site.
    """
    plan = dealt_sites(scenario, data_dir)
    check_task(scenario, plan.task)
    for site in plan.sites:
        if site.spec.role == "train":
            _check_delta(site, scenario)
    rule = scenario.aggregation
    _check_weights(scenario.model, plan.task, plan.weights_folder)
    if rule.inputs is not None:
        # The server's process knows the environment's data folder only.
        _check_weights(scenario.model, plan.task, backbone_folder(None))
    if isinstance(rule.inputs, PublicFile):
        read_public_records(
            rule.inputs.path, plan.task, most=rule.inputs.count, labelled=rule.needs_labels
        )
    return plan


def _check_delta(site: PlannedSite, scenario: Scenario) -> None:
    most = _most_units(site, scenario)
    if scenario.privacy.delta * most >= 1:
        raise UserError(
            f"privacy.delta is {scenario.privacy.delta}: it must be below 1/n = {1 / most:.3g} at "
            f"site {site.name!r} for every n up to {most:.0f}, which its declared "
            f"{site.train_units} admits, or one record could be disclosed outright: lower it"
        )


def check_task(scenario: Scenario, task: Task) -> None:
    """Check what depends on the shape of a record and the outcome.

    Args:
        scenario: The scenario.
        task: The records' shape and outcome.

    Raises:
        UserError: If the method of recalibration is not for this outcome, a prevalence names
            another number, the model does not fit the records, or the rule needs more samples of
            each site than its chains keep.
    """
    if scenario.recalibration is not None:
        try:
            parameter_count(scenario.recalibration.method, task.outcome)
        except ValueError as error:
            raise UserError(f"recalibration: {error}") from None
    check_prevalence("data.prevalence", scenario.data.prevalence, task.outcome)
    for name, site in scenario.sites.items():
        check_prevalence(f"sites.{name}.prevalence", site.prevalence, task.outcome)
    if scenario.hierarchical is not None and not task.outcome.is_event:
        raise UserError(
            f"[hierarchical] is for 2 classes, the records have {task.outcome.description}: remove "
            "the section"
        )
    shapes = model_shapes(scenario.model, task)
    if not scenario.aggregation.own_rounds:
        _check_least_samples(scenario, sum(math.prod(shape) for shape in shapes.values()))


def _check_least_samples(scenario: Scenario, parameters: int) -> None:
    rule = scenario.aggregation
    plan = training_plan(scenario, prior_share=1.0, chain_start="own_last")
    least = rule.least_samples(parameters)
    planned = plan.kept_before(plan.total_steps)
    if planned < least:
        raise UserError(
            f"aggregation.rule {rule.rule!r} needs {counted(least, 'sample')} of each site for "
            f"{parameters} parameters, training keeps {planned}: lower thinning or burn_in, run "
            "more rounds, or choose a rule without precision matrices"
        )


def prepare_simulation(
    scenario: Scenario, plan: SitePlan, run_folder: Path, *, cache_folder: Path | None = None
) -> list[Path]:
    """Write a run's resolved scenario, site files, ledgers and the beginning of its store.

    Args:
        scenario: The scenario.
        plan: Its sites, from `plan_sites`.
        run_folder: The run's folder, made if it is absent.
        cache_folder: Where the sites keep features of records; runs may share one. None: `cache` in
            the run's folder.

    Returns:
        The site files `sites/<number>-<name>.toml`, in the plan's order, which is also their
        alphabetical order.

    Raises:
        UserError: If a run in the folder has begun, or something cannot be written.
    """
    sites_folder = run_folder / SITES_FOLDER
    with written(run_folder):
        sites_folder.mkdir(parents=True, exist_ok=True)
    # Made before the scenario: a folder that has a scenario and no store has lost it.
    with RunStore.make(run_folder) as store:
        store.clear()
        write_scenario(scenario, run_folder / SCENARIO_FILE)
        paths = _write_sites(scenario, plan, sites_folder, cache_folder)
        scenario_digest = file_sha256(run_folder / SCENARIO_FILE)
        partition = _partition_record(plan).model_dump(mode="json")
        store.append(**{PARTITION: partition, "files": {SCENARIO_FILE: scenario_digest}})
    return paths


def _write_sites(
    scenario: Scenario, plan: SitePlan, sites_folder: Path, cache_folder: Path | None
) -> list[Path]:
    digits = max(2, len(str(len(plan.sites) - 1)))
    paths = []
    for number, site in enumerate(plan.sites):
        path = sites_folder / f"{number:0{digits}d}-{site.name}.toml"
        indices_path = path.with_suffix(".npy")
        with written(indices_path):
            np.save(indices_path, site.indices, allow_pickle=False)
        site_file = _site_file(
            scenario=scenario,
            plan=plan,
            site=site,
            indices=Path(f"{path.stem}.npy"),
            cache_folder=cache_folder,
        )
        write_site_file(site_file, path)
        prepare_simulated_ledger(path)
        paths.append(path)
    return paths


def read_partition(run_folder: Path) -> PartitionRecord:
    """Read how the records of a run were dealt."""
    with RunStore.open(run_folder, to_read=True) as store, store.reading():
        return PartitionRecord.model_validate(store.latest(PARTITION))


def _partition_record(plan: SitePlan) -> PartitionRecord:
    return PartitionRecord(
        label_total_variation=plan.label_total_variation,
        feature_total_variation=plan.feature_total_variation,
        warnings=plan.warnings,
        units={
            site.name: {
                "train": site.train_units,
                "test": site.test_units,
                "recalibration": site.recalibration_units,
            }
            for site in plan.sites
        },
    )


def run_identifier(scenario: Scenario) -> str:
    """Name a run by 32 hexadecimal digits.

    The name is random, or follows from the scenario where noise is seeded, so that it repeats.

    Args:
        scenario: The run's scenario. Folders of its files do not enter the name.
    """
    if scenario.simulation.insecure_seed is None:
        return uuid.uuid4().hex
    source = scenario.data.source.without_folder()
    changes = {
        "data": scenario.data.model_copy(update={"source": source}),
        "simulation": scenario.simulation.model_copy(update={"traces": False}),
        "aggregation": scenario.aggregation.with_public_path(lambda path: Path(path.name)),
    }
    content = scenario.model_copy(update=changes).model_dump(mode="json")
    # Scenarios once had these keys: with them seeded runs keep their names, hence their random
    # numbers.
    content["transport"] = {"precision": "float32"}
    content["privacy"]["kind"] = "dp" if scenario.sampler.is_private else "none"
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return hashlib.sha256(f"run:{digest}".encode()).hexdigest()[:32]


def _most_units(site: PlannedSite, scenario: Scenario) -> float:
    most = most_declared(site.train_units)
    if not site.recalibration_units:
        return most
    test_fraction, recalibration_fraction = scenario.kept_fractions
    ratio = recalibration_fraction / (1 - test_fraction - recalibration_fraction)
    return max(most, most_in_part(site.train_units, ratio))


def _check_weights(model: Model, task: Task, folder: Path | None) -> None:
    if isinstance(model.features, BackboneFeatures) and model.features.weights is not None:
        stored_weights(model.features.weights, folder, "model.features.weights")
    if isinstance(model, ModuleModel):
        build_model(model, task, model.seed, folder)
    body = model.frozen_body
    if body is not None and body.weights is not None:
        shape = model_input_shape(model.model_copy(update={"frozen_body": None}), task)
        frozen_body(model, body, shape, weights_folder=folder)


def _site_file(
    *,
    scenario: Scenario,
    plan: SitePlan,
    site: PlannedSite,
    indices: Path,
    cache_folder: Path | None,
) -> SiteFile:
    """Describe a virtual site as a hospital would, so that the code that guards one runs in it."""
    is_training = site.spec.role == "train"
    test_fraction, recalibration_fraction = scenario.kept_fractions if is_training else (1.0, 0.0)
    run_epsilon = _run_epsilon(scenario)
    has_traces = scenario.simulation.traces and is_training
    return SiteFile(
        name=site.name,
        role=site.spec.role,
        source=plan.source,
        selection=Selection(part=site.spec.part, indices=indices),
        units=site.train_units if is_training else site.test_units,
        split=Split(
            test_fraction=test_fraction,
            recalibration_fraction=recalibration_fraction,
            key=site.split_key,
        ),
        shift=site.spec.shift,
        shift_seed=site.shift_seed,
        ledger=LedgerSettings(
            path=Path("..") / "ledgers" / f"{site.name}.sqlite",
            witness=Path("..") / "witnesses" / f"{site.name}.json",
            cohort=f"simulation of {scenario.name}",
            delta=scenario.privacy.delta,
            adjacency=scenario.privacy.adjacency,
            epsilon=site.spec.epsilon or scenario.simulation.cohort_epsilon or run_epsilon,
            durability="normal",
        ),
        policy=_policy(scenario, plan, run_epsilon),
        threads=scenario.resources.threads_per_site,
        device=scenario.resources.device,
        insecure_seed=scenario.simulation.insecure_seed,
        cache_folder=Path("..") / "cache" if cache_folder is None else cache_folder.resolve(),
        backbone_folder=None if plan.weights_folder is None else plan.weights_folder.resolve(),
        trace_folder=Path("..") / TRACES_FOLDER / site.name if has_traces else None,
        prevalence=site.spec.prevalence,
    )


def _run_epsilon(scenario: Scenario) -> float:
    """Return the largest epsilon that one message of a run may ask for."""
    recalibration = scenario.recalibration
    if recalibration is None:
        return scenario.privacy.epsilon
    return max(scenario.privacy.epsilon, recalibration.epsilon or 0.0)


def _policy(scenario: Scenario, plan: SitePlan, run_epsilon: float) -> Policy:
    """Allow what the scenario asks for, and no longer a chain."""
    training = scenario.training
    steps = training.chains * training.rounds * training.steps_per_round
    if scenario.recalibration is not None:
        recalibration_steps = recalibration_plan(scenario.recalibration, scenario.privacy).steps
        steps = max(steps, recalibration_steps)
    return Policy(
        max_run_epsilon=run_epsilon,
        allow_non_private=not scenario.sampler.is_private,
        allow_downloads=True,
        max_steps=steps,
        max_samples=steps,
        allowed_code=scenario.named_code,
        # Each attribute adds to the noise on all results, of sites this small to the point where
        # nothing is told.
        groups={} if scenario.evaluation.release == "noised" else plan.groups,
        least_group_units=1,
        max_evaluations_per_run="unlimited",
        max_evaluations="unlimited",
        evaluation_release=scenario.evaluation.release,
        min_evaluation_noise_multiplier=scenario.evaluation.noise_multiplier or 1.0,
    )
