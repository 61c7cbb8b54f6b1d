"""From a scenario to the folder of a simulated federation: resolved scenario, site files, ledgers' place."""

import hashlib
import json
import uuid
from pathlib import Path

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.files.atomic_file import write_atomically, written
from fl_dpbayes.config.files.file_list import file_entry
from fl_dpbayes.config.files.journal import JOURNAL_FILE, Journal, JournalMark
from fl_dpbayes.config.recalibration_plan import recalibration_plan
from fl_dpbayes.config.scenario import Scenario, write_scenario
from fl_dpbayes.config.site_file import Policy
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.declared_units import most_declared, most_in_part
from fl_dpbayes.data.planned_samples import check_planned_samples
from fl_dpbayes.data.task_fit import check_task_fit
from fl_dpbayes.data.virtual_site_files import write_virtual_sites
from fl_dpbayes.data.virtual_sites import PlannedSite, SitePlan, plan_virtual_sites

SITES_FOLDER = "sites"
SCENARIO_FILE, PARTITION_FILE = "scenario.toml", "partition.json"


def plan_sites(scenario: Scenario, data_dir: Path | None) -> SitePlan:
    """Deal the scenario's records to its sites and check that its privacy settings fit their sizes.

    Args:
        scenario: the validated scenario.
        data_dir: where the data sets lie; None suffices for `digits`.

    Returns:
        Which records each site holds, and how many privacy units.

    Raises:
        UserError: if the partition is impossible, data are missing, the chains keep too few samples for the rule,
            recalibration or a prevalence does not fit the classes, or delta is not below 1/n at a training site.
    """
    fraction = scenario.recalibration.fraction if scenario.recalibration else 0.0
    plan = plan_virtual_sites(scenario.data, scenario.partition, scenario.sites, scenario.seed, data_dir, fraction)
    check_task_fit(scenario, plan.task.classes)
    check_planned_samples(scenario, plan.task)
    for site in plan.sites:
        most = _most_units(site, plan)
        if site.spec.role == "train" and scenario.privacy.delta * most >= 1:
            raise UserError(
                f"privacy.delta is {scenario.privacy.delta}: it must be below 1/n = {1 / most:.3g} at site "
                f"{site.name!r} for every n up to {most:.0f}, which its declared {site.train_units} admits, or one "
                "record could be disclosed outright: lower it"
            )
    return plan


def _most_units(site: PlannedSite, plan: SitePlan) -> float:
    most, fraction = most_declared(site.train_units), plan.recalibration_fraction
    if not site.recalibration_units:
        return most
    return max(most, most_in_part(site.train_units, fraction / (1 - plan.test_fraction - fraction)))


def prepare_simulation(
    scenario: Scenario, plan: SitePlan, run_folder: Path, *, cache_folder: Path | None = None
) -> None:
    """Write a run's resolved scenario, site files, ledgers and the beginning of its journal.

    Args:
        scenario: the validated scenario.
        plan: the sites' records.
        run_folder: the run directory; made if absent.
        cache_folder: where the sites keep features of records; runs may share one. None: `cache` in the run directory.
    """
    with written(run_folder):
        run_folder.mkdir(parents=True, exist_ok=True)
    write_scenario(scenario, run_folder / SCENARIO_FILE)
    partition = {
        "label_total_variation": plan.label_total_variation,
        **({} if plan.feature_total_variation is None else {"feature_total_variation": plan.feature_total_variation}),
        "units": {
            site.name: {"train": site.train_units, "test": site.test_units, "recalibration": site.recalibration_units}
            for site in plan.sites
        },
    }
    write_atomically(run_folder / PARTITION_FILE, json.dumps(partition, indent=2) + "\n")
    simulation, privacy = scenario.simulation, scenario.privacy
    recalibration = scenario.recalibration
    epsilon = max(privacy.epsilon, (recalibration and recalibration.epsilon) or 0.0)
    policy = Policy(
        max_run_epsilon=epsilon,
        allow_non_private=privacy.kind == "none",
        allow_downloads=True,
        max_steps=max(
            scenario.training.chains * scenario.training.rounds * scenario.training.steps_per_round,
            recalibration_plan(recalibration, privacy).steps if recalibration else 0,
        ),
        evaluation_release=scenario.evaluation.release,
        min_evaluation_noise_multiplier=scenario.evaluation.noise_multiplier or 1.0,
    )
    write_virtual_sites(
        plan,
        run_folder / SITES_FOLDER,
        cohort=f"simulation of {scenario.name}",
        epsilon=simulation.cohort_epsilon or epsilon,
        delta=privacy.delta,
        adjacency=privacy.adjacency,
        policy=policy,
        insecure_seed=simulation.insecure_seed,
        threads=scenario.resources.threads_per_site,
        device=scenario.resources.device,
        traces=simulation.traces,
        cache_folder=cache_folder,
    )
    entries = [file_entry(name, run_folder / name) for name in (SCENARIO_FILE, PARTITION_FILE)]
    Journal(run_folder / JOURNAL_FILE, JournalMark()).append(entries)


def run_identifier(scenario: Scenario) -> str:
    """Name a run: at random, or by its scenario where noise is seeded, so that a seeded run can be repeated exactly.

    Args:
        scenario: the validated scenario; where its records lie and whether it keeps traces is not part of the name.

    Returns:
        32 hexadecimal characters.
    """
    if scenario.simulation.insecure_seed is None:
        return uuid.uuid4().hex
    source = scenario.data.source
    named = source.with_place(lambda place: None if isinstance(source, BuiltIn) else Path(place.name))
    data = scenario.data.model_copy(update={"source": named})
    simulation = scenario.simulation.model_copy(update={"traces": False})
    aggregation = scenario.aggregation.with_public_path(lambda path: Path(path.name))
    repeated = scenario.model_copy(update={"data": data, "simulation": simulation, "aggregation": aggregation})
    # Seeded runs keep their names, hence their random numbers, from when scenarios had this section.
    content = repeated.model_dump(mode="json") | {"transport": {"precision": "float32"}}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return hashlib.sha256(f"run:{digest}".encode()).hexdigest()[:32]
