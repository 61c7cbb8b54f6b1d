"""The hospitals of `aggregation`: dealt as a simulation deals them, their features computed once per process."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.data import SiteSpec
from fl_dpbayes.config.features import Features
from fl_dpbayes.config.names import Role
from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.config.sources import BuiltIn, OfficialPart
from fl_dpbayes.config.task import Model, Task
from fl_dpbayes.data.load import load_unscaled
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.apply import apply_shift
from fl_dpbayes.data.simulation import plan_sites
from fl_dpbayes.data.virtual_sites import PlannedSite, SitePlan
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.privacy.splits import in_test_part
from fl_dpbayes.run.reproduce.closer_recalibration_sites import Labelled


@dataclass(frozen=True)
class Hospitals:
    """A federation's records as the model sees them.

    Attributes:
        task: shape of an image and number of classes.
        model: what is trained.
        training: training site -> records that it trains on.
        test: all test records, those of training sites first.
        owners: training site of each test record, empty at the other sites, shape (N,).
        roles: role of each test record's site, shape (N,).
        label_total_variation: how far the training sites' label frequencies are from the pooled ones, 0 to 1.
    """

    task: Task
    model: Model
    training: Mapping[str, Labelled]
    test: Labelled
    owners: npt.NDArray[np.str_]
    roles: npt.NDArray[np.str_]
    label_total_variation: float

    def rows(self, role: Role) -> npt.NDArray[np.bool_]:
        """Say which test records belong to sites of a role."""
        return self.roles == role


def hospitals(scenario: Scenario, data_dir: Path | None) -> Hospitals:
    """Deal a scenario's records to its sites, shift those that are to be, and compute all features.

    Args:
        scenario: with a built-in source and a model on fixed features.
        data_dir: the data folder.

    Returns:
        The hospitals; which records they hold follows from the scenario's seed alone.

    Raises:
        UserError: if the data set is missing, or the partition is impossible.
    """
    plan = plan_sites(scenario, data_dir)
    training, tests = {}, []
    for site in plan.sites:
        records = _site_records(plan, site, scenario.model.features)
        in_test = np.ones(len(records), bool)
        if site.spec.role == "train":
            in_test = in_test_part(records.units.tolist(), site.split_key, plan.test_fraction)
            training[site.name] = Labelled(records.features[~in_test], records.labels[~in_test])
        tests.append((site, records.features[in_test], records.labels[in_test]))
    tests.sort(key=lambda one: one[0].spec.role != "train")
    return Hospitals(
        task=plan.task,
        model=scenario.model,
        training=training,
        test=Labelled(np.concatenate([one[1] for one in tests]), np.concatenate([one[2] for one in tests])),
        owners=np.concatenate([np.full(len(y), s.name if s.spec.role == "train" else "") for s, _, y in tests]),
        roles=np.concatenate([np.full(len(labels), site.spec.role) for site, _, labels in tests]),
        label_total_variation=plan.label_total_variation,
    )


def _site_records(plan: SitePlan, site: PlannedSite, features: Features | None) -> Records:
    assert isinstance(plan.source, BuiltIn)
    assert features is not None
    if site.spec.shift is None:
        return _part(plan.source, site.spec.part, features).subset(site.indices)
    return _shifted(plan.source, site.spec, site.shift_seed, site.indices.tobytes(), features)


@functools.lru_cache(maxsize=6)
def _part(source: BuiltIn, part: OfficialPart, features: Features) -> Records:
    return _seen(load_unscaled(source, part).scaled(), features)


# A seed's cells differ in partition and budget, not in their shifted sites.
@functools.lru_cache(maxsize=4)
def _shifted(source: BuiltIn, spec: SiteSpec, seed: int, indices: bytes, features: Features) -> Records:
    assert spec.shift is not None
    records = load_unscaled(source, spec.part).subset(np.frombuffer(indices, np.int64)).scaled()
    return _seen(apply_shift(records, spec.shift, np.random.default_rng(seed)), features)


def _seen(records: Records, features: Features) -> Records:
    seen = feature_map(features, records.task.input_shape)(records.features)
    return Records(seen, records.labels, records.units, records.natural_site, records.task, records.unit)
