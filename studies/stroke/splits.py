"""Patients of a scenario, as one seed deals them to training and test."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import Scenario, StandardFeatures, read_site_file
from fl_dpbayes.data import (
    SITES_FOLDER,
    Site,
    SiteSplit,
    load_site,
    load_unscaled,
    plan_sites,
    prepare_simulation,
)
from fl_dpbayes.models.feature_map import feature_map
from studies.stroke.rivals import Cohort, Split

UNGROUPED = ""


def read_split(scenario: Scenario) -> Split:
    """Deal the patients of a scenario as its seed does.

    Args:
        scenario: The scenario; hospitals of its records that it does not name are outside.
    """
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        prepare_simulation(scenario, plan_sites(scenario, None), run)
        files = sorted((run / SITES_FOLDER).glob("*.toml"))
        sites = [load_site(read_site_file(path)) for path in files]
    return Split(
        seed=scenario.seed,
        train=_cohort(scenario, ((site, site.train) for site in sites if site.train is not None)),
        test=_cohort(scenario, ((site, site.test) for site in sites)),
        outside=outside_cohort(scenario),
    )


def outside_cohort(scenario: Scenario) -> Cohort:
    """Return the patients of hospitals that a scenario does not name."""
    records = load_unscaled(scenario.data.source.located(None), "train").scaled()
    assert records.natural_site is not None
    records = records.subset(~np.isin(records.natural_site, list(scenario.sites)))
    assert records.natural_site is not None
    return Cohort(
        features=model_inputs(scenario, records.features),
        labels=records.labels,
        hospitals=records.natural_site.astype(str),
        countries=np.array([_country(scenario, name) for name in records.natural_site], dtype=str),
    )


def model_inputs(scenario: Scenario, features: npt.NDArray) -> npt.NDArray[np.float64]:
    """Return what the scenario's model sees of records, shape (N, D)."""
    declared = scenario.model.features
    assert isinstance(declared, StandardFeatures)
    mapped = feature_map(declared, features.shape[1:])(features)
    return mapped.astype(np.float64)


def _cohort(scenario: Scenario, parts: Iterable[tuple[Site, SiteSplit]]) -> Cohort:
    dealt = list(parts)
    names = [np.full(len(part.labels), site.name) for site, part in dealt]
    hospitals = np.concatenate(names)
    features = np.concatenate([part.features for _, part in dealt])
    return Cohort(
        features=model_inputs(scenario, features),
        labels=np.concatenate([part.labels for _, part in dealt]),
        hospitals=hospitals,
        countries=np.array([_country(scenario, name) for name in hospitals], dtype=str),
    )


def _country(scenario: Scenario, hospital: str) -> str:
    """Return a hospital's country; that of the stroke trial's is its name without the number."""
    if hospital in scenario.sites:
        return scenario.sites[hospital].group or UNGROUPED
    is_grouped = scenario.hierarchical is not None and scenario.hierarchical.group is not None
    return hospital.rpartition("-")[0] if is_grouped else UNGROUPED
