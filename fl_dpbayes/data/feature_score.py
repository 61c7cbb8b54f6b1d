"""One number per record by which sites can differ in their features, and how much they do."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.data.records import Records

BINS = 10

Floats = npt.NDArray[np.float64]


def feature_scores(records: Records, feature: str | None) -> Floats:
    """Return the mean pixel of each image, or one column of a table.

    Args:
        records: (N, *input_shape), scaled or not.
        feature: the column's name; None for images.

    Returns:
        (N,), in the units of `records.features`.

    Raises:
        UserError: if images are given a column, or a table is given none or one that it has not.
    """
    if len(records.task.input_shape) == 3:
        if feature is not None:
            raise UserError(
                f"partition.feature is {feature!r}, but the records are images, which are sorted by their mean pixel: "
                "remove the key"
            )
        return records.features.mean(axis=(1, 2, 3), dtype=np.float64)
    if feature not in records.feature_names:
        given = "missing" if feature is None else repr(feature)
        allowed = ", ".join(records.feature_names) or "none, as the source does not name them: choose another partition"
        raise UserError(f"partition.feature is {given}: name the feature that sites differ in: {allowed}")
    return records.features[:, records.feature_names.index(feature)].astype(np.float64)


def feature_total_variation(scores: Floats, parts: list[npt.NDArray[np.int64]]) -> float:
    """Measure how far the sites' distributions of a score are from the pooled one.

        (1/K) sum_k (1/2) sum_b |p_k(b) - p(b)|

    Bins b hold a tenth of the pool each; a score of at most ten values has a bin for each value.

    Args:
        scores: (N,), finite.
        parts: K arrays of indices into `scores`, none empty; the pool is their union.

    Returns:
        The mean total variation distance, 0 (alike) to 1.
    """
    pool = scores[np.concatenate(parts)]
    edges = np.unique(pool)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(pool, np.arange(1, BINS) / BINS))
    counts = np.stack([np.bincount(np.searchsorted(edges, scores[part]), minlength=len(edges) + 1) for part in parts])
    pooled = counts.sum(axis=0) / counts.sum()
    return float(0.5 * np.abs(counts / counts.sum(axis=1, keepdims=True) - pooled).sum(axis=1).mean())
