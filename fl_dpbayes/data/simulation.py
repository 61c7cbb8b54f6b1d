"""From a scenario to the folder of a simulated federation: plan and check all that it names, then write it down."""

import hashlib
import json
import math
import uuid
from pathlib import Path

import numpy as np

from fl_dpbayes.config import (
    BackboneFeatures,
    BuiltIn,
    LedgerSettings,
    Model,
    ModuleModel,
    Policy,
    PublicFile,
    Scenario,
    Selection,
    SiteFile,
    Split,
    Task,
    backbone_folder,
    check_prevalence_classes,
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
from fl_dpbayes.files import (
    JOURNAL_FILE,
    Journal,
    JournalMark,
    file_entry,
    write_atomically,
    written,
)
from fl_dpbayes.models import build_model, model_input_shape, model_shapes, stored_weights
from fl_dpbayes.models.frozen_body import frozen_body
from fl_dpbayes.privacy import PARTS

SITES_FOLDER, TRACES_FOLDER = "sites", "traces"
SCENARIO_FILE, PARTITION_FILE, BASELINES_FILE = "scenario.toml", "partition.json", "baselines.json"


def plan_sites(scenario: Scenario, data_dir: Path | None) -> SitePlan:
    """Deal the scenario's records to its sites, and check all that it names.

    The one way into a simulation.

    Nothing is written. Raises UserError as `check_task`, or if the partition is impossible, data,
    weights or public records are missing, or delta is not below 1/n at a training site.
    """
    plan = dealt_sites(scenario, data_dir)
    check_task(scenario, plan.task)
    for site in plan.sites:
        most = _most_units(site, scenario)
        if site.spec.role == "train" and scenario.privacy.delta * most >= 1:
            bound = f"below 1/n = {1 / most:.3g} at site {site.name!r} for every n up to {most:.0f}"
            raise UserError(
                f"privacy.delta is {scenario.privacy.delta}: it must be {bound}, which its "
                f"declared {site.train_units} "
                "admits, or one record could be disclosed outright: lower it"
            )
    rule, model = scenario.aggregation, scenario.model
    _check_weights(model, plan.task, plan.weights_folder)
    if rule.inputs is not None:
        # The server's process knows the environment's data folder only.
        _check_weights(model, plan.task, backbone_folder(None))
    if isinstance(rule.inputs, PublicFile):
        read_public_records(
            rule.inputs.path, plan.task, most=rule.inputs.count, labelled=rule.needs_labels
        )
    return plan


def check_task(scenario: Scenario, task: Task) -> None:
    """Check what depends on the shape of a record and the number of classes.

    Raises UserError if the method of recalibration is not for so many classes, a prevalence names
    another number, the model does not fit the records, or the rule needs more samples of each site
    than its chains keep.
    """
    if scenario.recalibration is not None:
        try:
            parameter_count(scenario.recalibration.method, task.classes)
        except ValueError as error:
            raise UserError(f"recalibration: {error}") from None
    check_prevalence_classes("data.prevalence", scenario.data.prevalence, task.classes)
    for name, site in scenario.sites.items():
        check_prevalence_classes(f"sites.{name}.prevalence", site.prevalence, task.classes)
    if scenario.hierarchical is not None and task.classes != 2:
        raise UserError(
            f"[hierarchical] is for 2 classes, the records have {task.classes}: remove the section"
        )
    rule, shapes = scenario.aggregation, model_shapes(scenario.model, task)
    if rule.own_rounds:
        return
    parameters = sum(math.prod(shape) for shape in shapes.values())
    plan = training_plan(scenario, prior_share=1.0, chain_start="own_last")
    least, planned = rule.least_samples(parameters), plan.kept_before(plan.total_steps)
    if planned < least:
        raise UserError(
            f"aggregation.rule {rule.rule!r} needs {counted(least, 'sample')} of each site for "
            f"{parameters} "
            f"parameters, training keeps {planned}: lower thinning or burn_in, run more rounds, "
            "or choose a rule "
            "without precision matrices"
        )


def prepare_simulation(
    scenario: Scenario, plan: SitePlan, run_folder: Path, *, cache_folder: Path | None = None
) -> list[Path]:
    """Write a run's resolved scenario, site files, ledgers and the beginning of its journal.

    `cache_folder`: where the sites keep features of records; runs may share one. None: `cache` in
    the run directory. Returns the site files `sites/<number>-<name>.toml`, in the plan's order,
    which is also their alphabetical order.
    """
    folder = run_folder / SITES_FOLDER
    with written(run_folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_scenario(scenario, run_folder / SCENARIO_FILE)
    partition = {
        "label_total_variation": plan.label_total_variation,
        **(
            {}
            if plan.feature_total_variation is None
            else {"feature_total_variation": plan.feature_total_variation}
        ),
        "warnings": [found.model_dump(mode="json") for found in plan.warnings],
        "units": {
            site.name: {part: getattr(site, f"{part}_units") for part in PARTS}
            for site in plan.sites
        },
    }
    write_atomically(run_folder / PARTITION_FILE, json.dumps(partition, indent=2) + "\n")
    digits = max(2, len(str(len(plan.sites) - 1)))
    paths = []
    for number, site in enumerate(plan.sites):
        path = folder / f"{number:0{digits}d}-{site.name}.toml"
        with written(path.with_suffix(".npy")):
            np.save(path.with_suffix(".npy"), site.indices, allow_pickle=False)
        write_site_file(
            _site_file(scenario, plan, site, Path(f"{path.stem}.npy"), cache_folder), path
        )
        prepare_simulated_ledger(path)
        paths.append(path)
    entries = [file_entry(name, run_folder / name) for name in (SCENARIO_FILE, PARTITION_FILE)]
    Journal(run_folder / JOURNAL_FILE, JournalMark()).append(entries)
    return paths


def run_identifier(scenario: Scenario) -> str:
    """Name a run (32 hexadecimal digits): at random, or by its scenario where noise is seeded, so that it repeats."""
    if scenario.simulation.insecure_seed is None:
        return uuid.uuid4().hex
    source = scenario.data.source
    named = source.with_place(
        lambda place: None if isinstance(source, BuiltIn) else Path(place.name)
    )
    changes = {
        "data": scenario.data.model_copy(update={"source": named}),
        "simulation": scenario.simulation.model_copy(update={"traces": False}),
        "aggregation": scenario.aggregation.with_public_path(lambda path: Path(path.name)),
    }
    # Seeded runs keep their names, hence their random numbers, from when scenarios had this
    # section.
    content = scenario.model_copy(update=changes).model_dump(mode="json") | {
        "transport": {"precision": "float32"}
    }
    digest = hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    return hashlib.sha256(f"run:{digest}".encode()).hexdigest()[:32]


def _most_units(site: PlannedSite, scenario: Scenario) -> float:
    most, (test, fraction) = most_declared(site.train_units), scenario.kept_fractions
    if not site.recalibration_units:
        return most
    return max(most, most_in_part(site.train_units, fraction / (1 - test - fraction)))


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
    scenario: Scenario, plan: SitePlan, site: PlannedSite, indices: Path, cache_folder: Path | None
) -> SiteFile:
    """Say what a virtual site is as a hospital would, so that the code that guards a hospital runs in it."""
    privacy, training, simulation = scenario.privacy, scenario.training, scenario.simulation
    trains, again = site.spec.role == "train", scenario.recalibration
    test, recalibration = scenario.kept_fractions if trains else (1.0, 0.0)
    run_epsilon = max(privacy.epsilon, (again and again.epsilon) or 0.0)
    fit = recalibration_plan(again, privacy).steps if again else 0
    steps = max(training.chains * training.rounds * training.steps_per_round, fit)
    return SiteFile(
        name=site.name,
        role=site.spec.role,
        source=plan.source,
        selection=Selection(part=site.spec.part, indices=indices),
        units=site.train_units if trains else site.test_units,
        split=Split(test_fraction=test, recalibration_fraction=recalibration, key=site.split_key),
        shift=site.spec.shift,
        shift_seed=site.shift_seed,
        ledger=LedgerSettings(
            path=Path("..") / "ledgers" / f"{site.name}.sqlite",
            witness=Path("..") / "witnesses" / f"{site.name}.json",
            cohort=f"simulation of {scenario.name}",
            delta=privacy.delta,
            adjacency=privacy.adjacency,
            epsilon=site.spec.epsilon or simulation.cohort_epsilon or run_epsilon,
            durability="normal",
        ),
        policy=Policy(
            max_run_epsilon=run_epsilon,
            allow_non_private=privacy.kind == "none",
            allow_downloads=True,
            max_steps=steps,
            max_samples=steps,
            allowed_code=scenario.named_code,
            groups=plan.groups,
            least_group_units=1,
            max_evaluations_per_run="unlimited",
            max_evaluations="unlimited",
            evaluation_release=scenario.evaluation.release,
            min_evaluation_noise_multiplier=scenario.evaluation.noise_multiplier or 1.0,
        ),
        threads=scenario.resources.threads_per_site,
        device=scenario.resources.device,
        insecure_seed=simulation.insecure_seed,
        cache_folder=Path("..") / "cache" if cache_folder is None else cache_folder.resolve(),
        backbone_folder=None if plan.weights_folder is None else plan.weights_folder.resolve(),
        trace_folder=Path("..") / TRACES_FOLDER / site.name
        if simulation.traces and trains
        else None,
        prevalence=site.spec.prevalence,
    )
