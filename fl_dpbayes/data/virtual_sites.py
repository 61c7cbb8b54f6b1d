"""The sites of a simulation: whose records are whose."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import (
    BuiltIn,
    FeaturePartition,
    NaturalPartition,
    OfficialPart,
    RunWarning,
    Scenario,
    Shift,
    SiteSpec,
    Source,
    Task,
    backbone_folder,
    with_part_of_owner,
)
from fl_dpbayes.data.partition import (
    feature_scores,
    feature_total_variation,
    label_total_variation,
    partition_labels,
)
from fl_dpbayes.data.records import Records, load_unscaled, magnitude_warnings
from fl_dpbayes.data.shifts.apply import check_shift, kept_indices
from fl_dpbayes.data.site import of_natural_site
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy import in_recalibration_part, in_test_part

Indices = npt.NDArray[np.int64]


class Pool(NamedTuple):
    """An official part's records, and its privacy units in the order in which sites draw them."""

    records: Records
    order: Indices
    of_unit: list[Indices]

    def records_of(self, units: Indices) -> Indices:
        """Return the records of units, in increasing order."""
        return np.sort(np.concatenate([self.of_unit[unit] for unit in units])).astype(np.int64)

    def first_units(self, count: int) -> int:
        """Say how many units, from the first on, hold `count` records."""
        return (
            int(np.searchsorted(np.cumsum([len(self.of_unit[unit]) for unit in self.order]), count))
            + 1
        )


@dataclass(frozen=True)
class PlannedSite:
    """One virtual site: which records of `spec.part` it holds, their split, and its units, 0 in parts that it lacks."""

    name: str
    spec: SiteSpec
    indices: Indices
    shift_seed: int
    split_key: str
    train_units: int
    test_units: int
    recalibration_units: int


@dataclass(frozen=True)
class SitePlan:
    """All virtual sites of a simulation, in the scenario's order.

    `label_total_variation` is the mean total variation distance between a training site's label
    frequencies and the pooled ones, before any shift; `feature_total_variation` that of the score
    by which feature skew divides, None for other partitions. `weights_folder`: where the sites look
    for frozen weights. `groups`: attribute -> the values that subgroups have. `warnings`: what the
    records gave cause for.
    """

    source: Source
    task: Task
    sites: tuple[PlannedSite, ...]
    label_total_variation: float
    weights_folder: Path | None
    groups: dict[str, tuple[str, ...]]
    feature_total_variation: float | None = None
    warnings: tuple[RunWarning, ...] = ()


def dealt_sites(scenario: Scenario, data_dir: Path | None) -> SitePlan:
    """Decide which records each site holds.

    Held-out and shifted sites draw disjoint sets of privacy units from their official part first;
    the partition divides what is left of the part `train` over the training sites. A unit of
    several records goes to one site, by the label of its first record. A site with `records_of`
    gets the records and the shift's draws of the site that it names. Every draw follows from the
    scenario's seed and from names. `data_dir`: as of `BuiltIn.located`. Raises UserError if the
    records do not suffice or a name is not one of the data set's own sites; the text names key and
    remedy.
    """
    data, seed = scenario.data, scenario.seed
    source = data.source.located(data_dir)
    sites = with_part_of_owner(scenario.sites)
    parts = dict.fromkeys(spec.part for spec in sites.values())
    pools = {part: _pool(load_unscaled(source, part), part, seed, data.records) for part in parts}
    owners = {name: spec for name, spec in sites.items() if spec.records_of is None}
    scores = None
    if isinstance(scenario.partition, NaturalPartition):
        found = {part: (pool, _by_natural_site(pool)) for part, pool in pools.items()}
        chosen = {
            name: _natural_site(name, spec, *found[spec.part]) for name, spec in owners.items()
        }
    else:
        if isinstance(scenario.partition, FeaturePartition):
            scores = feature_scores(pools["train"].records, scenario.partition.feature)
        chosen = {}
        for part, pool in pools.items():
            members = {name: spec for name, spec in owners.items() if spec.part == part}
            chosen |= _divided_sites(members, pool, scenario, scores)
    chosen |= {
        name: chosen[spec.records_of] for name, spec in sites.items() if spec.records_of is not None
    }
    train = [chosen[name] for name, spec in sites.items() if spec.role == "train"]
    records = pools["train"].records
    planned = [
        _planned_site(name, spec, pools[spec.part], chosen[name], scenario)
        for name, spec in sites.items()
    ]
    groups = {
        name: np.concatenate([pool.records.groups[name] for pool in pools.values()])
        for name in records.groups
    }
    return SitePlan(
        source,
        records.task,
        tuple(planned),
        label_total_variation(records.labels, train),
        weights_folder=backbone_folder(source.folder if isinstance(source, BuiltIn) else data_dir),
        groups={name: tuple(map(str, np.unique(values))) for name, values in groups.items()},
        feature_total_variation=None if scores is None else feature_total_variation(scores, train),
        warnings=tuple(magnitude_warnings(records, source)),
    )


def _pool(records: Records, part: OfficialPart, seed: int, most: int | None) -> Pool:
    """Put the privacy units of a part in random order.

    Of the part `train`, as many of them as hold `most` records.
    """
    _, unit_index = np.unique(records.units, return_inverse=True)
    of_unit = np.split(
        np.argsort(unit_index, kind="stable"), np.cumsum(np.bincount(unit_index))[:-1]
    )
    pool = Pool(records, _generator(seed, "pool", part).permutation(len(of_unit)), of_unit)
    if most is None or part != "train":
        return pool
    if most > len(records):
        raise UserError(
            f"data.records is {most}, but the part {part!r} has {len(records)}: choose at most that"
        )
    return pool._replace(order=pool.order[: pool.first_units(most)])


def _by_natural_site(pool: Pool) -> dict[str, Indices]:
    """Return natural site -> which records of the pool's units it collected, in increasing order.

    Looked at once.
    """
    kept = pool.records_of(pool.order)
    if pool.records.natural_site is None:
        return {}
    names, which = np.unique(pool.records.natural_site[kept], return_inverse=True)
    ends = np.cumsum(np.bincount(which))[:-1]
    return dict(
        zip(names.tolist(), np.split(kept[np.argsort(which, kind="stable")], ends), strict=True)
    )


def _natural_site(name: str, spec: SiteSpec, pool: Pool, collected: dict[str, Indices]) -> Indices:
    if spec.records is not None:
        raise UserError(
            f"sites.{name}.records: a natural site has the records that it has: remove the key"
        )
    if name not in collected:
        of_natural_site(pool.records, name, f"partition.kind is 'natural', sites.{name}")
        raise UserError(
            f"sites.{name}: data.records leaves no record to this natural site: raise it"
        )
    return collected[name]


def _divided_sites(
    sites: dict[str, SiteSpec],
    pool: Pool,
    scenario: Scenario,
    scores: npt.NDArray[np.float64] | None,
) -> dict[str, Indices]:
    """Set aside what held-out and shifted sites hold of one part, and divide the rest over its training sites."""
    chosen: dict[str, Indices] = {}
    for name, spec in sites.items():
        if spec.role != "train":
            taken = _set_aside(name, spec, pool, alone=len(sites) == 1)
            chosen[name] = pool.records_of(pool.order[:taken])
            pool = pool._replace(order=pool.order[taken:])
    trainers = [name for name, spec in sites.items() if spec.role == "train"]
    if trainers:
        rest = np.sort(pool.order)
        first = np.array([pool.of_unit[unit][0] for unit in rest], dtype=np.int64)
        labels, scored = pool.records.labels[first], None if scores is None else scores[first]
        generator = _generator(scenario.seed, "partition")
        dealt = partition_labels(labels, scenario.partition, len(trainers), generator, scored)
        chosen |= {
            name: pool.records_of(rest[share]) for name, share in zip(trainers, dealt, strict=True)
        }
    return chosen


def _set_aside(name: str, spec: SiteSpec, pool: Pool, *, alone: bool) -> int:
    key, part = f"sites.{name}.records", f"the part {spec.part!r}"
    if spec.records is None:
        if not alone:
            raise UserError(
                f"{key} is missing: other sites share {part}, so say how many are set aside "
                "for this one"
            )
        return len(pool.order)
    available = sum(len(pool.of_unit[unit]) for unit in pool.order)
    if spec.records > available:
        raise UserError(
            f"{key} is {spec.records}, but {available} records of {part} are left: choose "
            "at most that"
        )
    return pool.first_units(spec.records)


def _planned_site(
    name: str, spec: SiteSpec, pool: Pool, indices: Indices, scenario: Scenario
) -> PlannedSite:
    records, seed, fractions = pool.records, scenario.seed, scenario.kept_fractions
    shift_seed = int.from_bytes(_hash(seed, spec.records_of or name, "shift")[:7], "big")
    split_key = _hash(seed, name, "split").hex()
    kept = (
        indices
        if spec.shift is None
        else indices[_kept(name, spec.shift, records.subset(indices), shift_seed)]
    )
    units = np.unique(records.units[kept])
    in_test, in_recalibration = np.ones(len(units), dtype=bool), np.zeros(len(units), dtype=bool)
    if spec.role == "train":
        in_test = in_test_part(units.tolist(), split_key, fractions[0])
        in_recalibration = in_recalibration_part(units.tolist(), split_key, *fractions)
        if (in_test | in_recalibration).all():
            left = f"none of its {len(units)} units is left to train on: give it more records"
            raise UserError(
                f"sites.{name}: {left}, or lower data.test_fraction (and recalibration.fraction)"
            )
    counts = (
        int(part.sum()) for part in (~(in_test | in_recalibration), in_test, in_recalibration)
    )
    return PlannedSite(name, spec, indices, shift_seed, split_key, *counts)


def _kept(name: str, shift: Shift, records: Records, shift_seed: int) -> Indices:
    try:
        check_shift(records, shift)
        return kept_indices(records, shift, np.random.default_rng(shift_seed))
    except UserError as error:
        raise UserError(f"sites.{name}.{error}") from None


def _hash(seed: int, *names: str) -> bytes:
    return hashlib.blake2b("\0".join([str(seed), *names]).encode(), digest_size=16).digest()


def _generator(seed: int, *names: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(_hash(seed, *names), "big"))
