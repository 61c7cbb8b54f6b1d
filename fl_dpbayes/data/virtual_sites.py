"""The sites of a simulation: whose records are whose."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.data import DataSpec, FeaturePartition, NaturalPartition, Partition, Shift, SiteSpec
from fl_dpbayes.config.data_folder import backbone_folder
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.shared_records import with_part_of_owner
from fl_dpbayes.config.sources import BuiltIn, OfficialPart, Source
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.feature_score import feature_scores, feature_total_variation
from fl_dpbayes.data.load import load_unscaled
from fl_dpbayes.data.partition import label_total_variation, partition_labels
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.apply import check_shift, kept_indices
from fl_dpbayes.privacy.splits import in_recalibration_part, in_test_part

Indices = npt.NDArray[np.int64]


class Pool(NamedTuple):
    """A part's privacy units in the order in which sites draw them, and the records of every unit."""

    order: Indices
    of_unit: list[Indices]


@dataclass(frozen=True)
class PlannedSite:
    """One virtual site: which records of the official part `spec.part` it holds and how they are split.

    `train_units` and `recalibration_units` are 0 at a held-out or shifted site; `test_units` counts the units that it
    is evaluated on.
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

    `label_total_variation` is the mean total variation distance between a training site's label frequencies and the
    pooled ones, before any shift; `feature_total_variation` that of the score by which feature skew divides, None for
    other partitions. `weights_folder`: where the sites look for frozen weights.
    """

    source: Source
    task: Task
    unit: str
    test_fraction: float
    recalibration_fraction: float
    sites: tuple[PlannedSite, ...]
    label_total_variation: float
    weights_folder: Path | None
    feature_total_variation: float | None = None


def plan_virtual_sites(
    data: DataSpec,
    partition: Partition,
    sites: dict[str, SiteSpec],
    seed: int,
    data_dir: Path | None,
    recalibration_fraction: float = 0.0,
) -> SitePlan:
    """Decide which records each site holds; writes nothing.

    Held-out and shifted sites draw disjoint sets of privacy units from their official part first; the partition divides
    what is left of the part `train` over the training sites. A unit of several records goes to one site, by the label
    of its first record. A site with `records_of` gets the records and the shift's draws of the site that it names.

    Args:
        data: source, test fraction and how many records of the part `train` are used.
        partition: how the training sites differ.
        sites: name -> site, at least one of them a training site.
        seed: the scenario's seed; every draw follows from it and from names.
        data_dir: folder of the built-in data sets; None for the source's own or the environment's (FL_DPBAYES_DATA).
        recalibration_fraction: share of each training site's units that is kept for recalibration.

    Returns:
        The plan.

    Raises:
        UserError: if the records do not suffice or a name is not one of the data set's own sites; the text names the
            scenario's key and the remedy.
    """
    source = data.source.located(data_dir)
    sites = with_part_of_owner(sites)
    parts: dict[OfficialPart, Records] = {
        part: load_unscaled(source, part) for part in dict.fromkeys(spec.part for spec in sites.values())
    }
    pools = {
        part: _pool(records, part, seed, data.records if part == "train" else None) for part, records in parts.items()
    }
    owners = {name: spec for name, spec in sites.items() if spec.records_of is None}
    scores = None
    if isinstance(partition, NaturalPartition):
        chosen = _natural_sites(parts, pools, owners)
    else:
        if isinstance(partition, FeaturePartition):
            scores = feature_scores(parts["train"], partition.feature)
        chosen = _divided_sites(parts, pools, partition, owners, seed, scores)
    chosen |= {name: chosen[spec.records_of] for name, spec in sites.items() if spec.records_of is not None}
    fractions = (data.test_fraction, recalibration_fraction)
    train = [chosen[name] for name, spec in sites.items() if spec.role == "train"]
    records = parts["train"] if "train" in parts else next(iter(parts.values()))
    return SitePlan(
        source=source,
        task=records.task,
        unit=records.unit,
        test_fraction=data.test_fraction,
        recalibration_fraction=recalibration_fraction,
        sites=tuple(
            _planned_site(name, spec, parts[spec.part], chosen[name], seed, fractions) for name, spec in sites.items()
        ),
        label_total_variation=label_total_variation(records.labels, train),
        weights_folder=backbone_folder(source.folder if isinstance(source, BuiltIn) else data_dir),
        feature_total_variation=None if scores is None else feature_total_variation(scores, train),
    )


def _pool(records: Records, part: OfficialPart, seed: int, most: int | None) -> Pool:
    """Put the privacy units of a part in random order, as many of them as hold `most` records."""
    of_unit = _records_of_units(records)
    order = _generator(seed, "pool", part).permutation(len(of_unit))
    if most is not None:
        if most > len(records):
            raise UserError(
                f"data.records is {most}, but the part {part!r} has {len(records)} records: choose at most that"
            )
        order = order[: _units_that_hold(most, order, of_unit)]
    return Pool(order, of_unit)


def _natural_sites(
    parts: dict[OfficialPart, Records], pools: dict[OfficialPart, Pool], sites: dict[str, SiteSpec]
) -> dict[str, Indices]:
    chosen = {}
    for name, spec in sites.items():
        natural_site = parts[spec.part].natural_site
        if natural_site is None:
            raise UserError(
                "partition.kind is 'natural', but the source does not say which site a record is from: use source "
                "'heart', 'logistic-2d' or 'radiographs', or one of kind 'huggingface' with site_column, or another "
                "partition"
            )
        if spec.records is not None:
            raise UserError(f"sites.{name}.records: a natural site has the records that it has: remove the key")
        chosen[name] = np.flatnonzero(natural_site == name)
        if not len(chosen[name]):
            allowed = ", ".join(sorted(set(natural_site.tolist())))
            raise UserError(f"sites.{name}: the data set has no site of that name: choose among {allowed}")
        order, of_unit = pools[spec.part]
        chosen[name] = np.intersect1d(chosen[name], _union(of_unit, order))
        if not len(chosen[name]):
            raise UserError(f"sites.{name}: data.records leaves no record to this natural site: raise it")
    return chosen


def _divided_sites(
    parts: dict[OfficialPart, Records],
    pools: dict[OfficialPart, Pool],
    partition: Partition,
    sites: dict[str, SiteSpec],
    seed: int,
    scores: npt.NDArray[np.float64] | None,
) -> dict[str, Indices]:
    chosen: dict[str, Indices] = {}
    for part, records in parts.items():
        members = {name: spec for name, spec in sites.items() if spec.part == part}
        pool, of_unit = pools[part]
        for name, spec in members.items():
            if spec.role == "train":
                continue
            taken = _set_aside(name, spec, pool, of_unit, alone=len(members) == 1)
            chosen[name] = _union(of_unit, pool[:taken])
            pool = pool[taken:]
        trainers = [name for name, spec in members.items() if spec.role == "train"]
        if trainers:
            rest = np.sort(pool)
            first = np.array([of_unit[unit][0] for unit in rest], dtype=np.int64)
            first_scores = None if scores is None else scores[first]
            generator = _generator(seed, "partition")
            dealt = partition_labels(records.labels[first], partition, len(trainers), generator, first_scores)
            chosen |= {name: _union(of_unit, rest[share]) for name, share in zip(trainers, dealt, strict=True)}
    return chosen


def _set_aside(name: str, spec: SiteSpec, pool: Indices, of_unit: list[Indices], *, alone: bool) -> int:
    available = sum(len(of_unit[unit]) for unit in pool)
    if spec.records is None:
        if not alone:
            raise UserError(
                f"sites.{name}.records is missing: other sites share the part {spec.part!r}, so say how many records "
                "are set aside for this one"
            )
        return len(pool)
    if spec.records > available:
        raise UserError(
            f"sites.{name}.records is {spec.records}, but {available} records of the part {spec.part!r} are left: "
            "choose at most that"
        )
    return _units_that_hold(spec.records, pool, of_unit)


def _units_that_hold(count: int, pool: Indices, of_unit: list[Indices]) -> int:
    return int(np.searchsorted(np.cumsum([len(of_unit[unit]) for unit in pool]), count)) + 1


def _planned_site(
    name: str, spec: SiteSpec, records: Records, indices: Indices, seed: int, fractions: tuple[float, float]
) -> PlannedSite:
    shift_seed = int.from_bytes(_hash(seed, spec.records_of or name, "shift")[:7], "big")
    split_key = _hash(seed, name, "split").hex()
    kept = indices if spec.shift is None else indices[_kept(name, spec.shift, records.subset(indices), shift_seed)]
    units = np.unique(records.units[kept])
    in_test, in_recalibration = np.ones(len(units), dtype=bool), np.zeros(len(units), dtype=bool)
    if spec.role == "train":
        in_test = in_test_part(units.tolist(), split_key, fractions[0])
        in_recalibration = in_recalibration_part(units.tolist(), split_key, *fractions)
        if (in_test | in_recalibration).all():
            raise UserError(
                f"sites.{name}: none of its {len(units)} units is left to train on: give it more records, or lower "
                "data.test_fraction (and recalibration.fraction)"
            )
    return PlannedSite(
        name=name,
        spec=spec,
        indices=indices,
        shift_seed=shift_seed,
        split_key=split_key,
        train_units=int((~(in_test | in_recalibration)).sum()),
        test_units=int(in_test.sum()),
        recalibration_units=int(in_recalibration.sum()),
    )


def _kept(name: str, shift: Shift, records: Records, shift_seed: int) -> Indices:
    try:
        check_shift(records, shift)
        return kept_indices(records, shift, np.random.default_rng(shift_seed))
    except UserError as error:
        raise UserError(f"sites.{name}.{error}") from None


def _records_of_units(records: Records) -> list[Indices]:
    _, unit_index = np.unique(records.units, return_inverse=True)
    order = np.argsort(unit_index, kind="stable")
    return np.split(order, np.cumsum(np.bincount(unit_index))[:-1])


def _union(of_unit: list[Indices], units: Indices) -> Indices:
    return np.sort(np.concatenate([of_unit[unit] for unit in units])).astype(np.int64)


def _hash(seed: int, *names: str) -> bytes:
    return hashlib.blake2b("\0".join([str(seed), *names]).encode(), digest_size=16).digest()


def _generator(seed: int, *names: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(_hash(seed, *names), "big"))
