"""The sites of a simulation: whose records are whose."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas

from fl_dpbayes.config import (
    BuiltIn,
    ClassesPartition,
    DirichletPartition,
    FeaturePartition,
    NaturalPartition,
    OfficialPart,
    RunWarning,
    Scenario,
    Shift,
    SiteSpec,
    Source,
    Task,
    as_classification,
    backbone_folder,
    warning,
    with_part_of_owner,
)
from fl_dpbayes.data.partition import (
    feature_scores,
    feature_total_variation,
    label_total_variation,
    partition_labels,
)
from fl_dpbayes.data.records import Records, load_unscaled, magnitude_warnings
from fl_dpbayes.data.shared_units import check_shared_units, shared_units
from fl_dpbayes.data.shifts.apply import check_shift, kept_indices
from fl_dpbayes.data.site import of_natural_site
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy import parts_of_units

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ALLOW_SHARED_UNITS = (
    "allow it: add  --set data.allow_shared_units=true , write  allow_shared_units = true  under "
    '[data] of the scenario, or in Python give  settings={"data.allow_shared_units": True}'
)


@dataclass(frozen=True)
class Pool:
    """An official part's records, and its privacy units in the order in which sites draw them.

    Attributes:
        records: All records of the part.
        order: Numbers of the units that are still to be dealt, in random order.
        records_by_unit: Unit -> its records, in increasing order.
    """

    records: Records
    order: Indices
    records_by_unit: list[Indices]

    def records_of(self, units: Indices) -> Indices:
        """Return the records of units, in increasing order."""
        indices = np.concatenate([self.records_by_unit[unit] for unit in units])
        return np.sort(indices).astype(np.int64)

    def count_records(self) -> int:
        """Return how many records the units in `order` hold."""
        return sum(len(self.records_by_unit[unit]) for unit in self.order)

    def first_units(self, count: int) -> int:
        """Return how many units, from the first on, hold `count` records."""
        totals = np.cumsum([len(self.records_by_unit[unit]) for unit in self.order])
        return int(np.searchsorted(totals, count)) + 1


@dataclass(frozen=True)
class PlannedSite:
    """One virtual site.

    Attributes:
        name: The site's name.
        spec: What the scenario says of it.
        indices: Which records of `spec.part` it holds, in increasing order.
        shift_seed: The seed of its shift's draws.
        split_key: The key of its split.
        train_units: Privacy units in its training part, 0 where it has none.
        test_units: Privacy units in its test part.
        recalibration_units: Privacy units in its recalibration part, 0 where it has none.
    """

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

    Attributes:
        source: Where the records are.
        task: Their shape and number of classes.
        sites: The sites.
        label_total_variation: The mean total variation distance between a training site's label
            frequencies and the pooled ones, before any shift.
        weights_folder: Where the sites look for frozen weights.
        groups: Attribute -> the values that subgroups have.
        feature_total_variation: The same distance of the score by which feature skew divides, None
            for other partitions.
        warnings: What the records gave cause for.
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
    scenario's seed and from names.

    Args:
        scenario: The scenario.
        data_dir: Where built-in data are, as `BuiltIn.located`.

    Raises:
        UserError: If the records do not suffice, a name is not one of the data set's own sites, or
            units stand at several of these and that was not allowed.
    """
    source = scenario.data.source.located(data_dir)
    sites = with_part_of_owner(scenario.sites)
    pools: dict[OfficialPart, Pool] = {}
    for spec in sites.values():
        if spec.part not in pools:
            pools[spec.part] = _pool(load_unscaled(source, spec.part), spec.part, scenario)
    scores = None
    if isinstance(scenario.partition, FeaturePartition):
        scores = feature_scores(pools["train"].records, scenario.partition.feature)
    indices = _dealt_records(sites, pools, scenario, scores)
    training_indices = [indices[name] for name, spec in sites.items() if spec.role == "train"]
    records = pools["train"].records
    planned = [
        _planned_site(
            name=name,
            spec=spec,
            records=pools[spec.part].records,
            indices=indices[name],
            scenario=scenario,
        )
        for name, spec in sites.items()
    ]
    return SitePlan(
        source=source,
        task=records.task,
        sites=tuple(planned),
        label_total_variation=label_total_variation(records.labels, training_indices),
        weights_folder=backbone_folder(source.folder if isinstance(source, BuiltIn) else data_dir),
        groups=_group_values(pools),
        feature_total_variation=(
            None if scores is None else feature_total_variation(scores, training_indices)
        ),
        warnings=(
            *magnitude_warnings(records, source),
            *_shared_unit_warnings(sites, pools, indices, scenario),
        ),
    )


def _shared_unit_warnings(
    sites: Mapping[str, SiteSpec],
    pools: Mapping[OfficialPart, Pool],
    indices: Mapping[str, Indices],
    scenario: Scenario,
) -> list[RunWarning]:
    """Warn of privacy units that stand at several sites, or refuse them.

    Only natural sites can share a unit: the other partitions deal whole units.
    """
    if not isinstance(scenario.partition, NaturalPartition):
        return []
    warnings = []
    for part, pool in pools.items():
        members = [
            name for name, spec in sites.items() if spec.part == part and spec.records_of is None
        ]
        units = pandas.Series(
            np.concatenate([pool.records.units[indices[name]] for name in members]),
            name=pool.records.unit,
        )
        if pandas.api.types.is_integer_dtype(units):
            # Each record is its own.
            continue
        places = pandas.Series(np.repeat(members, [len(indices[name]) for name in members]))
        shared = shared_units(units, places)
        check_shared_units(
            shared, are_allowed=scenario.data.allow_shared_units, allow=ALLOW_SHARED_UNITS
        )
        if shared is not None:
            warnings.append(warning("shared-units"))
    return warnings


def _group_values(pools: Mapping[OfficialPart, Pool]) -> dict[str, tuple[str, ...]]:
    group_values = {}
    for name in pools["train"].records.groups:
        values = np.concatenate([pool.records.groups[name] for pool in pools.values()])
        group_values[name] = tuple(map(str, np.unique(values)))
    return group_values


def _pool(records: Records, part: OfficialPart, scenario: Scenario) -> Pool:
    """Order a part's units at random; of `train` keep as many as hold `data.records` records."""
    _, records_by_unit = _grouped(records.units)
    order = _generator(scenario.seed, "pool", part).permutation(len(records_by_unit))
    pool = Pool(records=records, order=order, records_by_unit=records_by_unit)
    most = scenario.data.records
    if most is None or part != "train":
        return pool
    if most > len(records):
        raise UserError(
            f"data.records is {most}, but the part {part!r} has {len(records)}: choose at most that"
        )
    return replace(pool, order=pool.order[: pool.first_units(most)])


def _dealt_records(
    sites: Mapping[str, SiteSpec],
    pools: Mapping[OfficialPart, Pool],
    scenario: Scenario,
    scores: Floats | None,
) -> dict[str, Indices]:
    """Return each site's records of its official part, in increasing order."""
    owners = {name: spec for name, spec in sites.items() if spec.records_of is None}
    if isinstance(scenario.partition, NaturalPartition):
        indices = _natural_sites(owners, pools)
    else:
        indices = {}
        for part, pool in pools.items():
            members = {name: spec for name, spec in owners.items() if spec.part == part}
            indices |= _divided_sites(members, pool, scenario, scores)
    for name, spec in sites.items():
        if spec.records_of is not None:
            indices[name] = indices[spec.records_of]
    return indices


def _natural_sites(
    sites: Mapping[str, SiteSpec], pools: Mapping[OfficialPart, Pool]
) -> dict[str, Indices]:
    collected = {part: _by_natural_site(pool) for part, pool in pools.items()}
    indices = {}
    for name, spec in sites.items():
        if spec.records is not None:
            raise UserError(
                f"sites.{name}.records: a natural site has the records that it has: remove the key"
            )
        if name not in collected[spec.part]:
            records = pools[spec.part].records
            of_natural_site(records, name, f"partition.kind is 'natural', sites.{name}")
            raise UserError(
                f"sites.{name}: data.records leaves no record to this natural site: raise it"
            )
        indices[name] = collected[spec.part][name]
    return indices


def _by_natural_site(pool: Pool) -> dict[str, Indices]:
    """Return natural site -> which records of the pool's units it collected, increasing."""
    if pool.records.natural_site is None:
        return {}
    indices = pool.records_of(pool.order)
    names, places = _grouped(pool.records.natural_site[indices])
    return {name: indices[group] for name, group in zip(names.tolist(), places, strict=True)}


def _grouped(values: npt.NDArray) -> tuple[npt.NDArray, list[Indices]]:
    """Return the distinct values in order, and where each stands, in increasing order."""
    names, numbers = np.unique(values, return_inverse=True)
    ends = np.cumsum(np.bincount(numbers))[:-1]
    return names, np.split(np.argsort(numbers, kind="stable"), ends)


def _divided_sites(
    sites: Mapping[str, SiteSpec], pool: Pool, scenario: Scenario, scores: Floats | None
) -> dict[str, Indices]:
    """Set aside one part's held-out and shifted sites, divide what is left over those training."""
    indices: dict[str, Indices] = {}
    for name, spec in sites.items():
        if spec.role != "train":
            count = _units_to_set_aside(name, spec, pool, is_only_site=len(sites) == 1)
            indices[name] = pool.records_of(pool.order[:count])
            pool = replace(pool, order=pool.order[count:])
    training_names = [name for name, spec in sites.items() if spec.role == "train"]
    if not training_names:
        return indices
    units = np.sort(pool.order)
    first_records = np.array([pool.records_by_unit[unit][0] for unit in units], dtype=np.int64)
    if isinstance(scenario.partition, ClassesPartition | DirichletPartition):
        as_classification(pool.records.task.outcome, f"partition.kind {scenario.partition.kind!r}")
    shares = partition_labels(
        labels=pool.records.labels[first_records],
        partition=scenario.partition,
        sites=len(training_names),
        generator=_generator(scenario.seed, "partition"),
        scores=None if scores is None else scores[first_records],
    )
    for name, share in zip(training_names, shares, strict=True):
        indices[name] = pool.records_of(units[share])
    return indices


def _units_to_set_aside(name: str, spec: SiteSpec, pool: Pool, *, is_only_site: bool) -> int:
    key = f"sites.{name}.records"
    part = f"the part {spec.part!r}"
    if spec.records is None:
        if not is_only_site:
            raise UserError(
                f"{key} is missing: other sites share {part}, so say how many are set aside "
                "for this one"
            )
        return len(pool.order)
    available = pool.count_records()
    if spec.records > available:
        raise UserError(
            f"{key} is {spec.records}, but {available} records of {part} are left: choose "
            "at most that"
        )
    return pool.first_units(spec.records)


def _planned_site(
    *, name: str, spec: SiteSpec, records: Records, indices: Indices, scenario: Scenario
) -> PlannedSite:
    """Plan a site that holds the records at `indices` of its official part."""
    shift_seed = int.from_bytes(_hash(scenario.seed, spec.records_of or name, "shift")[:7], "big")
    split_key = _hash(scenario.seed, name, "split").hex()
    indices_after_shift = indices
    if spec.shift is not None:
        indices_after_shift = indices[
            _indices_that_shift_keeps(name, spec.shift, records.subset(indices), shift_seed)
        ]
    units = np.unique(records.units[indices_after_shift])
    fractions = scenario.kept_fractions if spec.role == "train" else (1.0, 0.0)
    counts = Counter(parts_of_units(units.tolist(), split_key, *fractions).tolist())
    if spec.role == "train" and not counts["train"]:
        raise UserError(
            f"sites.{name}: none of its {len(units)} units is left to train on: give it more "
            "records, or lower data.test_fraction (and recalibration.fraction)"
        )
    return PlannedSite(
        name=name,
        spec=spec,
        indices=indices,
        shift_seed=shift_seed,
        split_key=split_key,
        train_units=counts["train"],
        test_units=counts["test"],
        recalibration_units=counts["recalibration"],
    )


def _indices_that_shift_keeps(
    name: str, shift: Shift, records: Records, shift_seed: int
) -> Indices:
    try:
        check_shift(records, shift)
        return kept_indices(records, shift, np.random.default_rng(shift_seed))
    except UserError as error:
        raise UserError(f"sites.{name}.{error}") from None


def _hash(seed: int, *names: str) -> bytes:
    return hashlib.blake2b("\0".join([str(seed), *names]).encode(), digest_size=16).digest()


def _generator(seed: int, *names: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(_hash(seed, *names), "big"))
