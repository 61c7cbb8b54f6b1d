"""The sites of a simulation: whose records are whose, and a site file for each."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.data.data_folder import backbone_folder, known_folder
from fl_dpbayes.data.load import load_unscaled
from fl_dpbayes.data.partition import label_total_variation, partition_labels
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.shifts.population import prevalence_indices
from fl_dpbayes.data.site_file import LedgerSettings, Policy, Selection, SiteFile, Split, write_site_file
from fl_dpbayes.data.specs import (
    BuiltIn,
    DataSpec,
    ImageFolder,
    NaturalPartition,
    OfficialPart,
    Partition,
    SiteSpec,
    Source,
    Table,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.splits import in_recalibration_part, in_test_part
from fl_dpbayes.protocol.plan import Adjacency
from fl_dpbayes.protocol.task import Task

Indices = npt.NDArray[np.int64]


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
    pooled ones, before any shift. `weights_folder`: where the sites look for frozen weights.
    """

    source: Source
    task: Task
    unit: str
    test_fraction: float
    recalibration_fraction: float
    sites: tuple[PlannedSite, ...]
    label_total_variation: float
    weights_folder: Path | None


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
    of its first record.

    Args:
        data: source and test fraction.
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
    source = _located(data.source, data_dir)
    parts: dict[OfficialPart, Records] = {
        part: load_unscaled(source, part) for part in dict.fromkeys(spec.part for spec in sites.values())
    }
    if isinstance(partition, NaturalPartition):
        chosen = _natural_sites(parts, sites)
    else:
        chosen = _divided_sites(parts, partition, sites, seed)
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
    )


def write_virtual_sites(
    plan: SitePlan,
    folder: Path,
    *,
    cohort: str,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    policy: Policy,
    insecure_seed: int | None = None,
    threads: int = 1,
    device: str = "auto",
    traces: bool = False,
) -> list[Path]:
    """Write one site file per virtual site, with its ledger under `folder/../ledgers`.

    Args:
        plan: from `plan_virtual_sites`.
        folder: where the files go; made if absent.
        cohort: name of the cohort that each ledger accounts for.
        epsilon: what each cohort may ever spend, unless its site says otherwise.
        delta: the cohort's delta.
        adjacency: which data sets are neighbours.
        policy: what each site allows.
        insecure_seed: makes noise and sampling repeatable, so that nothing is private; None for real entropy.
        threads: threads per site.
        device: `auto`, `cpu` or `cuda[:index]`.
        traces: let each training site keep a trace of its chain in `folder/../traces/<site>`.

    Returns:
        The paths `<number>-<name>.toml`, in the plan's order, which is also their alphabetical order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    backbones = plan.weights_folder
    digits = max(2, len(str(len(plan.sites) - 1)))
    paths = []
    for number, site in enumerate(plan.sites):
        stem = f"{number:0{digits}d}-{site.name}"
        np.save(folder / f"{stem}.npy", site.indices, allow_pickle=False)
        site_file = SiteFile(
            name=site.name,
            role=site.spec.role,
            source=plan.source,
            selection=Selection(part=site.spec.part, indices=Path(f"{stem}.npy")),
            units=site.train_units if site.spec.role == "train" else site.test_units,
            split=_split(plan, site),
            shift=site.spec.shift,
            shift_seed=site.shift_seed,
            ledger=LedgerSettings(
                path=Path("..") / "ledgers" / f"{site.name}.sqlite",
                cohort=cohort,
                epsilon=site.spec.epsilon or epsilon,
                delta=delta,
                adjacency=adjacency,
                durability="normal",
            ),
            policy=policy,
            threads=threads,
            device=device,
            insecure_seed=insecure_seed,
            cache_folder=Path("..") / "cache",
            backbone_folder=None if backbones is None else backbones.resolve(),
            trace_folder=Path("..") / "traces" / site.name if traces and site.spec.role == "train" else None,
        )
        write_site_file(site_file, folder / f"{stem}.toml")
        paths.append(folder / f"{stem}.toml")
    return paths


def _split(plan: SitePlan, site: PlannedSite) -> Split:
    if site.spec.role != "train":
        return Split(test_fraction=1.0, key=site.split_key)
    return Split(
        test_fraction=plan.test_fraction, recalibration_fraction=plan.recalibration_fraction, key=site.split_key
    )


def _located(source: Source, data_dir: Path | None) -> Source:
    if isinstance(source, BuiltIn):
        folder = known_folder(data_dir or source.folder)
        return source.model_copy(update={"folder": None if folder is None else folder.resolve()})
    if isinstance(source, Table | ImageFolder):
        return source.model_copy(update={"path": source.path.resolve()})
    return source


def _natural_sites(parts: dict[OfficialPart, Records], sites: dict[str, SiteSpec]) -> dict[str, Indices]:
    chosen = {}
    for name, spec in sites.items():
        natural_site = parts[spec.part].natural_site
        if natural_site is None:
            raise UserError(
                "partition.kind is 'natural', but the source does not say which site a record is from: use source "
                "'heart', 'logistic-2d' or 'radiographs', or another partition"
            )
        if spec.records is not None:
            raise UserError(f"sites.{name}.records: a natural site has the records that it has: remove the key")
        chosen[name] = np.flatnonzero(natural_site == name)
        if not len(chosen[name]):
            allowed = ", ".join(sorted(set(natural_site.tolist())))
            raise UserError(f"sites.{name}: the data set has no site of that name: choose among {allowed}")
    return chosen


def _divided_sites(
    parts: dict[OfficialPart, Records], partition: Partition, sites: dict[str, SiteSpec], seed: int
) -> dict[str, Indices]:
    chosen: dict[str, Indices] = {}
    for part, records in parts.items():
        members = {name: spec for name, spec in sites.items() if spec.part == part}
        of_unit = _records_of_units(records)
        pool = _generator(seed, "pool", part).permutation(len(of_unit))
        for name, spec in members.items():
            if spec.role == "train":
                continue
            taken = _set_aside(name, spec, pool, of_unit, alone=len(members) == 1)
            chosen[name] = _union(of_unit, pool[:taken])
            pool = pool[taken:]
        trainers = [name for name, spec in members.items() if spec.role == "train"]
        if trainers:
            rest = np.sort(pool)
            labels = np.array([records.labels[of_unit[unit][0]] for unit in rest], dtype=np.int64)
            dealt = partition_labels(labels, partition, len(trainers), _generator(seed, "partition"))
            chosen |= {name: _union(of_unit, rest[share]) for name, share in zip(trainers, dealt, strict=True)}
    return chosen


def _set_aside(name: str, spec: SiteSpec, pool: Indices, of_unit: list[Indices], *, alone: bool) -> int:
    sizes = np.cumsum([len(of_unit[unit]) for unit in pool])
    available = int(sizes[-1]) if len(sizes) else 0
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
    return int(np.searchsorted(sizes, spec.records)) + 1


def _planned_site(
    name: str, spec: SiteSpec, records: Records, indices: Indices, seed: int, fractions: tuple[float, float]
) -> PlannedSite:
    shift_seed = int.from_bytes(_hash(seed, name, "shift")[:7], "big")
    split_key = _hash(seed, name, "split").hex()
    kept = indices
    if spec.shift is not None and spec.shift.kind == "prevalence":
        generator = np.random.default_rng(shift_seed)
        labels = records.labels[indices]
        kept = indices[prevalence_indices(labels, records.task.classes, spec.shift.severity, generator)]
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
