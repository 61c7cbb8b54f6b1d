"""Deal records to training sites by flwr-datasets' partitioners, and measure how sites differ."""

import warnings
from typing import TYPE_CHECKING

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
    """Divide items (records, or privacy units of several) over sites, each to exactly one site.

    Args:
        labels: (N,), each item's class.
        partition: How to divide them; not a natural one.
        sites: The number of training sites.
        generator: Draws the division.
        scores: (N,), finite, what feature skew sorts by; other kinds do not look at it.

    Returns:
        Each site's items, numbers in 0 .. N - 1 in increasing order.

    Raises:
        UserError: If the request cannot be met; the text names the scenario's key and the remedy.
        ValueError: If the partition is natural, which has nothing to divide, or lacks scores.

    Source:
        Kinds of Li et al., Federated Learning on Non-IID Data Silos, 2022; for the Dirichlet
        division, Yurochkin et al. 2019; for feature skew, flwr-datasets' ContinuousPartitioner.
    """
    _check_feasible(labels, partition, sites)
    order = generator.permutation(len(labels))
    shuffled = labels[order]
    # Each kind imports its partitioner itself, as that takes seconds.
    match partition.kind:
        case "iid":
            parts = _iid(shuffled, sites)
        case "dirichlet":
            parts = _dirichlet(shuffled, partition, sites, generator)
        case "classes":
            parts = _classes(shuffled, partition.classes_per_site, sites, generator)
        case "quantity":
            parts = _quantity(shuffled, partition, sites, generator)
        case "feature":
            if scores is None:
                raise ValueError("feature skew needs a score for each item")
            parts = _feature(scores[order], partition, sites, generator)
        case "natural":
            raise ValueError(
                "a natural partition has nothing to divide: select records by their natural site"
            )
    return [np.sort(order[part]) for part in parts]


def feature_scores(records: Records, feature: str | None) -> Floats:
    """Return each image's mean pixel, or a column of a table, (N,).

    Args:
        records: N records.
        feature: The column's name, None for images.

    Raises:
        UserError: If the column does not fit the records.
    """
    if len(records.task.input_shape) == 3:
        if feature is not None:
            raise UserError(
                f"partition.feature is {feature!r}, but the records are images: remove the key"
            )
        return records.features.mean(axis=(1, 2, 3), dtype=np.float64)
    if feature not in records.feature_names:
        value = "missing" if feature is None else repr(feature)
        allowed = (
            ", ".join(records.feature_names)
            or "none, as the source does not name them: choose another partition"
        )
        raise UserError(
            f"partition.feature is {value}: name the feature that sites differ in: {allowed}"
        )
    return records.features[:, records.feature_names.index(feature)].astype(np.float64)


def label_total_variation(labels: Indices, parts: list[Indices]) -> float:
    """Measure how far the sites' label frequencies are from the pooled ones: 0 (alike) to 1.

        (1/K) sum_k (1/2) sum_c |p_k(c) - p(c)|

    Args:
        labels: (N,), each record's class.
        parts: K arrays of indices into `labels`, none empty; the pool is their union.
    """
    values, numbers = np.unique(labels, return_inverse=True)
    counts = [np.bincount(numbers[part], minlength=len(values)) for part in parts]
    return _mean_distance(counts)


def feature_total_variation(scores: Floats, parts: list[Indices]) -> float:
    """Measure how far the sites' frequencies of a score are from the pooled ones: 0 to 1.

    The distance is that of `label_total_variation`, over bins in place of classes: each of up to
    ten values is its own bin, or else a bin is a tenth of the pool.

    Args:
        scores: (N,), finite.
        parts: K arrays of indices into `scores`, none empty; the pool is their union.
    """
    pool = scores[np.concatenate(parts)]
    edges = np.unique(pool)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(pool, np.arange(1, BINS) / BINS))
    bins_of_sites = [np.searchsorted(edges, scores[part]) for part in parts]
    return _mean_distance([np.bincount(bins, minlength=len(edges) + 1) for bins in bins_of_sites])


def _mean_distance(frequencies: list[Indices]) -> float:
    """Return the mean total variation distance of K rows of counts from their sum."""
    counts = np.stack(frequencies)
    pooled = counts.sum(axis=0) / counts.sum()
    differences = np.abs(counts / counts.sum(axis=1, keepdims=True) - pooled)
    return float(0.5 * differences.sum(axis=1).mean())


def _check_feasible(labels: Indices, partition: Partition, sites: int) -> None:
    least = 1
    if isinstance(partition, DirichletPartition | QuantityPartition):
        least = partition.min_records
    if sites * least > len(labels):
        remedy = "fewer sites" if least == 1 else "a lower partition.min_records or fewer sites"
        raise UserError(
            f"partition: {sites} training sites of at least {least} records need {sites * least}, "
            f"but there are {len(labels)}: choose {remedy}"
        )
    if isinstance(partition, ClassesPartition):
        classes = len(np.unique(labels))
        most = sites * partition.classes_per_site
        key = f"partition.classes_per_site is {partition.classes_per_site}"
        if partition.classes_per_site > classes:
            raise UserError(f"{key}, but there are {classes} classes: choose at most that")
        if most < classes:
            raise UserError(
                f"{key}: sites would hold at most {most} of {classes} classes: raise it, "
                "or add sites"
            )


def _iid(labels: Indices, sites: int) -> list[Indices]:
    from flwr_datasets.partitioner import IidPartitioner

    return _deal(labels, IidPartitioner(num_partitions=sites), sites)


def _dirichlet(
    labels: Indices, partition: DirichletPartition, sites: int, generator: np.random.Generator
) -> list[Indices]:
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=sites,
        partition_by="label",
        alpha=partition.alpha,
        min_partition_size=partition.min_records,
        seed=int(generator.integers(2**31)),
    )
    try:
        return _deal(labels, partitioner, sites)
    except ValueError:
        raise _no_division(partition, len(labels), sites) from None


def _classes(
    labels: Indices, classes_per_site: int, sites: int, generator: np.random.Generator
) -> list[Indices]:
    """Give each site the next few classes of a shuffled circle.

    So every class is used, and equally often to within one. Chance, as in flwr-datasets'
    PathologicalPartitioner, drops classes that no site drew.
    """
    classes = generator.permutation(np.unique(labels))
    places = np.arange(sites * classes_per_site)
    parts: list[list[Indices]] = [[] for _ in range(sites)]
    for position, label in enumerate(classes):
        holders = places[places % len(classes) == position] // classes_per_site
        members = np.flatnonzero(labels == label)
        if len(members) < len(holders):
            raise UserError(
                f"partition.classes_per_site is {classes_per_site}: no division over {sites} "
                f"training sites, since {len(holders)} of them would share class {label}, which "
                f"has {len(members)} records: lower it, or use fewer training sites"
            )
        for holder, share in zip(holders, np.array_split(members, len(holders)), strict=True):
            parts[holder].append(share)
    return [np.concatenate(part) for part in parts]


def _quantity(
    labels: Indices, partition: QuantityPartition, sites: int, generator: np.random.Generator
) -> list[Indices]:
    from flwr_datasets.partitioner import SizePartitioner

    sizes = _sizes(len(labels), partition, sites, generator)
    return _deal(labels, SizePartitioner(partition_sizes=sizes), sites)


def _sizes(
    count: int, partition: QuantityPartition, sites: int, generator: np.random.Generator
) -> list[int]:
    """Draw sizes of `count` items in all until each site has `min_records`."""
    for _ in range(MAX_ATTEMPTS):
        shares = generator.dirichlet(np.full(sites, partition.alpha))
        ends = np.round(np.cumsum(shares) * count).astype(int)
        ends[-1] = count
        sizes = np.diff(ends, prepend=0)
        if sizes.min() >= partition.min_records:
            return sizes.tolist()
    raise _no_division(partition, count, sites)


def _feature(
    scores: Floats, partition: FeaturePartition, sites: int, generator: np.random.Generator
) -> list[Indices]:
    from flwr_datasets.partitioner import ContinuousPartitioner

    partitioner = ContinuousPartitioner(
        num_partitions=sites,
        partition_by="score",
        strictness=partition.strictness,
        seed=int(generator.integers(2**31)),
    )
    return _deal(_standardized(scores, partition), partitioner, sites, column="score")


def _standardized(scores: Floats, partition: FeaturePartition) -> Floats:
    spread = scores.std()
    if not spread > 0:
        what = "mean pixel" if partition.feature is None else f"value of {partition.feature!r}"
        raise UserError(
            f"partition.kind is 'feature', but all {len(scores)} records have the same {what}: "
            "choose another partition.feature or partition"
        )
    # The partitioner takes small values for equal ones.
    return (scores - scores.mean()) / spread


def _no_division(
    partition: DirichletPartition | QuantityPartition, count: int, sites: int
) -> UserError:
    return UserError(
        f"partition.alpha is {partition.alpha:g} and partition.min_records is "
        f"{partition.min_records}: none of the divisions of {count} records over {sites} training "
        "sites gave each that many: raise alpha, lower min_records"
    )


def _deal(
    values: npt.NDArray, partitioner: "Partitioner", sites: int, *, column: str = "label"
) -> list[Indices]:
    """Return which of the values flwr-datasets' partitioner gives each site."""
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({column: values, "index": np.arange(len(values))})
    with warnings.catch_warnings():
        # Its retries and dropped classes come as warnings; what they mean is checked and reported
        # by our callers.
        warnings.simplefilter("ignore")
        partitions = [partitioner.load_partition(site) for site in range(sites)]
    return [np.array(items["index"][:], dtype=np.int64) for items in partitions]
