"""Deal records to training sites by the partitioners of flwr-datasets, and measure how much the sites differ."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import (
    ClassesPartition,
    DirichletPartition,
    FeaturePartition,
    Partition,
    QuantityPartition,
)
from fl_dpbayes.data.records import Records
from fl_dpbayes.errors import UserError

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
BINS = 10
MAX_ATTEMPTS = 50


def partition_labels(
    labels: Indices,
    partition: Partition,
    sites: int,
    generator: np.random.Generator,
    scores: Floats | None = None,
) -> list[Indices]:
    """Divide N items (records, or privacy units of several) over sites by labels or scores, each to exactly one site.

    `scores`: (N,), finite, what feature skew sorts by; other kinds do not look at it. Raises
    UserError if the request cannot be met; the text names the scenario's key and the remedy. Raises
    ValueError if the partition is natural, which has nothing to divide, or lacks scores. Source:
    kinds of Li et al., Federated Learning on Non-IID Data Silos, 2022; for the Dirichlet division,
    Yurochkin et al. 2019; for feature skew, flwr-datasets' ContinuousPartitioner.
    """
    # Importing it takes seconds.
    from flwr_datasets import partitioner as partitioners

    _check_feasible(labels, partition, sites)
    order = generator.permutation(len(labels))
    shuffled = labels[order]
    match partition.kind:
        case "iid":
            parts = _deal(shuffled, partitioners.IidPartitioner(num_partitions=sites), sites)
        case "dirichlet":
            least, seed = partition.min_records, int(generator.integers(2**31))
            skew = partitioners.DirichletPartitioner(
                sites, "label", partition.alpha, least, seed=seed
            )
            try:
                parts = _deal(shuffled, skew, sites)
            except ValueError:
                raise _no_division(partition, len(labels), sites) from None
        case "classes":
            parts = _classes(shuffled, partition.classes_per_site, sites, generator)
        case "quantity":
            sizes = _sizes(len(labels), partition, sites, generator)
            parts = _deal(shuffled, partitioners.SizePartitioner(partition_sizes=sizes), sites)
        case "feature":
            if scores is None:
                raise ValueError("feature skew needs a score for each item")
            strictness, seed = partition.strictness, int(generator.integers(2**31))
            blurred = partitioners.ContinuousPartitioner(
                sites, "score", strictness=strictness, seed=seed
            )
            parts = _deal(_standard(scores[order], partition), blurred, sites, column="score")
        case "natural":
            raise ValueError(
                "a natural partition has nothing to divide: select records by their natural site"
            )
    return [np.sort(order[part]) for part in parts]


def feature_scores(records: Records, feature: str | None) -> Floats:
    """Return each image's mean pixel, or a column of a table, (N,).

    UserError if the column does not fit them.
    """
    if len(records.task.input_shape) == 3:
        if feature is not None:
            raise UserError(
                f"partition.feature is {feature!r}, but the records are images: remove the key"
            )
        return records.features.mean(axis=(1, 2, 3), dtype=np.float64)
    if feature not in records.feature_names:
        given = "missing" if feature is None else repr(feature)
        allowed = (
            ", ".join(records.feature_names)
            or "none, as the source does not name them: choose another partition"
        )
        raise UserError(
            f"partition.feature is {given}: name the feature that sites differ in: {allowed}"
        )
    return records.features[:, records.feature_names.index(feature)].astype(np.float64)


def label_total_variation(labels: Indices, parts: list[Indices]) -> float:
    """Measure how far the sites' label frequencies are from the pooled ones: 0 (alike) to 1.

        (1/K) sum_k (1/2) sum_c |p_k(c) - p(c)|

    `labels`: (N,). `parts`: K arrays of indices into `labels`, none empty; the pool is their union.
    """
    classes = int(labels.max()) + 1
    return _mean_distance([np.bincount(labels[part], minlength=classes) for part in parts])


def feature_total_variation(scores: Floats, parts: list[Indices]) -> float:
    """Measure the same of a finite score, (N,), in bins of a tenth of the pool, or of one of up to ten values each."""
    pool = scores[np.concatenate(parts)]
    edges = np.unique(pool)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(pool, np.arange(1, BINS) / BINS))
    bins = (np.searchsorted(edges, scores[part]) for part in parts)
    return _mean_distance([np.bincount(found, minlength=len(edges) + 1) for found in bins])


def _mean_distance(frequencies: list[Indices]) -> float:
    counts = np.stack(frequencies)
    pooled = counts.sum(axis=0) / counts.sum()
    return float(
        0.5 * np.abs(counts / counts.sum(axis=1, keepdims=True) - pooled).sum(axis=1).mean()
    )


def _check_feasible(labels: Indices, partition: Partition, sites: int) -> None:
    count = len(labels)
    least = (
        partition.min_records
        if isinstance(partition, DirichletPartition | QuantityPartition)
        else 1
    )
    if sites * least > count:
        remedy = "fewer sites" if least == 1 else "a lower partition.min_records or fewer sites"
        wanted = f"{sites} training sites of at least {least} records need {sites * least}"
        raise UserError(f"partition: {wanted}, but there are {count}: choose {remedy}")
    if isinstance(partition, ClassesPartition):
        classes, most = len(np.unique(labels)), sites * partition.classes_per_site
        key = f"partition.classes_per_site is {partition.classes_per_site}"
        if partition.classes_per_site > classes:
            raise UserError(f"{key}, but there are {classes} classes: choose at most that")
        if most < classes:
            raise UserError(
                f"{key}: sites would hold at most {most} of {classes} classes: raise it, "
                "or add sites"
            )


def _classes(
    labels: Indices, classes_per_site: int, sites: int, generator: np.random.Generator
) -> list[Indices]:
    """Give each site the next few classes of a shuffled circle: every class is used, and equally often to within one.

    Chance, as in flwr-datasets' PathologicalPartitioner, drops classes that no site drew.
    """
    classes = generator.permutation(np.unique(labels))
    places = np.arange(sites * classes_per_site)
    parts: list[list[Indices]] = [[] for _ in range(sites)]
    for position, label in enumerate(classes):
        holders = places[places % len(classes) == position] // classes_per_site
        members = np.flatnonzero(labels == label)
        if len(members) < len(holders):
            lacks = (
                f"{len(holders)} of them would share class {label}, which has "
                f"{len(members)} records"
            )
            problem = (
                f"partition.classes_per_site is {classes_per_site}: no division over {sites} "
                "training sites"
            )
            raise UserError(f"{problem}, since {lacks}: lower it, or use fewer training sites")
        for holder, share in zip(holders, np.array_split(members, len(holders)), strict=True):
            parts[holder].append(share)
    return [np.concatenate(part) for part in parts]


def _sizes(
    count: int, partition: QuantityPartition, sites: int, generator: np.random.Generator
) -> list[int]:
    for _ in range(MAX_ATTEMPTS):
        shares = generator.dirichlet(np.full(sites, partition.alpha))
        ends = np.round(np.cumsum(shares) * count).astype(int)
        ends[-1] = count
        sizes = np.diff(ends, prepend=0)
        if sizes.min() >= partition.min_records:
            return sizes.tolist()
    raise _no_division(partition, count, sites)


def _standard(scores: Floats, partition: FeaturePartition) -> Floats:
    spread = scores.std()
    if not spread > 0:
        what = "mean pixel" if partition.feature is None else f"value of {partition.feature!r}"
        same = f"all {len(scores)} records have the same {what}"
        raise UserError(
            f"partition.kind is 'feature', but {same}: choose another partition.feature "
            "or partition"
        )
    # The partitioner takes small values for equal ones.
    return (scores - scores.mean()) / spread


def _no_division(
    partition: DirichletPartition | QuantityPartition, count: int, sites: int
) -> UserError:
    return UserError(
        f"partition.alpha is {partition.alpha:g} and partition.min_records is "
        f"{partition.min_records}: none of the "
        f"divisions of {count} records over {sites} training sites gave each that many: raise "
        "alpha, lower min_records"
    )


def _deal(
    values: npt.NDArray, partitioner: "Partitioner", sites: int, column: str = "label"
) -> list[Indices]:
    from datasets import Dataset

    items: dict[str, Any] = {column: values, "index": np.arange(len(values))}
    partitioner.dataset = Dataset.from_dict(items)
    with warnings.catch_warnings():
        # Its retries and dropped classes come as warnings; what they mean is checked and reported
        # by our callers.
        warnings.simplefilter("ignore")
        return [
            np.array(partitioner.load_partition(site)["index"][:], dtype=np.int64)
            for site in range(sites)
        ]
