"""From a scenario to the folder of a simulated federation: resolved scenario, site files, ledgers' place."""

import hashlib
import json
import uuid
from pathlib import Path

from fl_dpbayes.data.site_file import Policy
from fl_dpbayes.data.virtual_sites import SitePlan, plan_virtual_sites, write_virtual_sites
from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol.record import digest
from fl_dpbayes.scenario import Scenario, write_scenario

SITES_FOLDER = "sites"
PARTITION_FILE = "partition.json"


def plan_sites(scenario: Scenario, data_dir: Path | None) -> SitePlan:
    """Deal the scenario's records to its sites and check that its privacy settings fit their sizes.

    Args:
        scenario: the validated scenario.
        data_dir: where the data sets lie; None suffices for `digits`.

    Returns:
        Which records each site holds, and how many privacy units.

    Raises:
        UserError: if the partition is impossible, data are missing, or delta is not below 1/n at a training site.
    """
    plan = plan_virtual_sites(scenario.data, scenario.partition, scenario.sites, scenario.seed, data_dir)
    for site in plan.sites:
        if site.spec.role == "train" and scenario.privacy.delta >= 1 / site.train_units:
            raise UserError(
                f"privacy.delta is {scenario.privacy.delta}: it must be below 1/n = {1 / site.train_units:.3g} at site "
                f"{site.name!r} (n = {site.train_units}), or one record could be disclosed outright: lower it"
            )
    return plan


def prepare_simulation(scenario: Scenario, plan: SitePlan, run_folder: Path) -> None:
    """Write the resolved scenario and one site file per virtual site.

    Args:
        scenario: the validated scenario.
        plan: the sites' records.
        run_folder: the run directory; made if absent.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    write_scenario(scenario, run_folder / "scenario.toml")
    partition = {
        "label_total_variation": plan.label_total_variation,
        "units": {site.name: {"train": site.train_units, "test": site.test_units} for site in plan.sites},
    }
    (run_folder / PARTITION_FILE).write_text(json.dumps(partition, indent=2) + "\n", encoding="utf-8")
    simulation, privacy = scenario.simulation, scenario.privacy
    policy = Policy(
        max_run_epsilon=privacy.epsilon,
        max_steps=scenario.training.rounds * scenario.training.steps_per_round,
        evaluation_release=scenario.evaluation.release,
        min_evaluation_noise_multiplier=scenario.evaluation.noise_multiplier or 1.0,
    )
    write_virtual_sites(
        plan,
        run_folder / SITES_FOLDER,
        cohort=f"simulation of {scenario.name}",
        epsilon=simulation.cohort_epsilon or privacy.epsilon,
        delta=privacy.delta,
        adjacency=privacy.adjacency,
        policy=policy,
        insecure_seed=simulation.insecure_seed,
        threads=scenario.resources.threads_per_site,
        device=scenario.resources.device,
    )


def run_identifier(scenario: Scenario) -> str:
    """Name a run: at random, or by its scenario where noise is seeded, so that a seeded run can be repeated exactly.

    Args:
        scenario: the validated scenario.

    Returns:
        32 hexadecimal characters.
    """
    if scenario.simulation.insecure_seed is None:
        return uuid.uuid4().hex
    return hashlib.sha256(f"run:{digest(scenario)}".encode()).hexdigest()[:32]
