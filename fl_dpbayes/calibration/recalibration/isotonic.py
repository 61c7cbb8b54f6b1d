"""Isotonic recalibration: a rising map of one probability, fitted to each site's counts.

Of two classes it maps p_1. Of more it maps the largest probability, whose outcome is whether the
top label is right, and the others share what is left as before: one map per class would spread the
same records and a larger sensitivity over C tables. Knots lie at the means of bins' probabilities;
between them the map is linear, beyond them constant.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import CONFIDENCE, COUNT, OUTCOME, Floats
from fl_dpbayes.calibration.recalibration.median_map import median_deviation
from fl_dpbayes.calibration.release import BoundedSum, NoisedTable, record_counts, top_label_counts
from fl_dpbayes.config import ISOTONIC_BINS, RecalibrationMap

LARGEST_DEVIATION = 0.1  # of the privacy noise in a bin's share of outcomes
FEWEST_RECORDS = 2.0


def count(
    probabilities: Floats, labels: npt.NDArray[np.int64], max_records_per_unit: int = 1
) -> BoundedSum:
    """Count records in equal-width bins of the probability that the map is of.

    Sums are those of `release.record_counts`.

    Args:
        probabilities: Shape (N, C).
        labels: Shape (N,), 0 to C - 1.
        max_records_per_unit: A cap that the caller has enforced.

    Returns:
        Sums of 1, p and the outcome y, shape (ISOTONIC_BINS, 3).

    Raises:
        ValueError: If max_records_per_unit is below 1.
    """
    if probabilities.shape[1] > 2:
        return top_label_counts(
            probabilities=probabilities,
            labels=labels,
            bins=ISOTONIC_BINS,
            max_records_per_unit=max_records_per_unit,
        )
    return record_counts(
        confidence=probabilities[:, 1],
        outcome=labels == 1,
        bins=ISOTONIC_BINS,
        max_records_per_unit=max_records_per_unit,
    )


def fit(table: NoisedTable, sites: int = 1) -> RecalibrationMap | None:
    """Fit the rising map of least weighted squares to sums of `count` (pool adjacent violators).

        v = argmin_{v_1 <= ... <= v_J} sum_j n_j (y_j / n_j - v_j)^2

    over bins j that were joined until the noise in y_j / n_j has a standard deviation of at most
    LARGEST_DEVIATION; then clipped to [1/(N+2), 1 - 1/(N+2)], as N records cannot tell a share
    nearer to 0 or 1 from certainty. It reads released numbers only, so it costs no privacy. Bins
    that were joined share a knot.

    Args:
        table: One site's noised sums.
        sites: K, of which the median map is to be used; its noise is that much smaller, its records
            K times as many.

    Returns:
        The map, or None where fewer than two bins stand clear of the noise.
    """
    # With what it imports it takes half a second.
    from sklearn.isotonic import isotonic_regression

    groups = _clear_groups(table, LARGEST_DEVIATION / median_deviation(sites))
    if len(groups) < 2:
        return None
    sums = np.stack([table.sums[low:high].sum(axis=0) for low, high in groups])
    edges = np.array(groups) / ISOTONIC_BINS
    counts = sums[:, COUNT]
    positions = np.clip(sums[:, CONFIDENCE] / counts, edges[:, 0], edges[:, 1])
    floor = 1 / (sites * counts.sum() + 2)
    values = isotonic_regression(
        sums[:, OUTCOME] / counts, sample_weight=counts, y_min=floor, y_max=1 - floor
    )
    sizes = [high - low for low, high in groups]
    return _map(np.repeat(positions, sizes), np.repeat(values, sizes))


def identity() -> RecalibrationMap:
    """Return the isotonic map that changes nothing."""
    knots = np.linspace(0.0, 1.0, ISOTONIC_BINS)
    return _map(knots, knots)


def apply(probabilities: Floats, parameters: Floats) -> Floats:
    """Map p_1 of two classes, or the largest probability of more; the others keep their ratios.

    Args:
        probabilities: Shape (N, C), rows that sum to 1.
        parameters: Places of the knots, then their values, shape (2 ISOTONIC_BINS,).

    Returns:
        Shape (N, C), rows that sum to 1.
    """
    places = parameters[:ISOTONIC_BINS]
    values = parameters[ISOTONIC_BINS:]
    classes = probabilities.shape[1]
    if classes == 2:
        mapped = _interpolate(probabilities[:, 1], places, values)
        return np.column_stack([1 - mapped, mapped])
    rows = np.arange(len(probabilities))
    top = probabilities.argmax(axis=1)
    mapped = _interpolate(probabilities[rows, top], places, values)
    without_top = probabilities.copy()
    without_top[rows, top] = 0.0
    totals = without_top.sum(axis=1, keepdims=True)
    equal_shares = np.full_like(without_top, 1 / (classes - 1))
    equal_shares[rows, top] = 0.0
    shares = np.divide(without_top, totals, out=equal_shares, where=totals > 0)
    shares *= (1 - mapped)[:, None]
    shares[rows, top] = mapped
    return shares


def describe(parameters: Sequence[float]) -> str:
    """Say what the map does, and how many of its knots have places of their own."""
    distinct = len(set(parameters[:ISOTONIC_BINS]))
    return f"an isotonic map on {ISOTONIC_BINS} merged bins ({distinct} distinct)"


def _interpolate(probability: Floats, places: Floats, values: Floats) -> Floats:
    """Map one probability of each record, (N,)."""
    distinct, first = np.unique(places, return_index=True)
    # Between knots nearly at one place the slope overflows; an error would tell that a record lies
    # there.
    return np.clip(np.interp(probability, distinct, values[first]), 0.0, 1.0)


def _clear_groups(table: NoisedTable, largest_deviation: float) -> list[tuple[int, int]]:
    """Join neighbouring bins [low, high) until each count is clear of its noise.

    Empty where even that of all is not.
    """

    def clear(low: int, high: int) -> bool:
        records = table.sums[low:high, COUNT].sum()
        least = table.noise_std * np.sqrt(high - low) / largest_deviation
        return bool(records >= max(FEWEST_RECORDS, least))

    groups: list[tuple[int, int]] = []
    low = 0
    for high in range(1, ISOTONIC_BINS + 1):
        if clear(low, high):
            groups.append((low, high))
            low = high
    if low < ISOTONIC_BINS and groups:
        groups[-1] = (groups[-1][0], ISOTONIC_BINS)
        # Joining adds noise, and a noisy count may be negative, so what was clear may not stay so.
        while groups and not clear(*groups[-1]):
            joined = groups.pop()
            if groups:
                groups[-1] = (groups[-1][0], joined[1])
    return groups


def _map(positions: Floats, values: Floats) -> RecalibrationMap:
    # Rounding must not let a knot fall or leave [0, 1].
    knots = [np.clip(np.maximum.accumulate(part), 0.0, 1.0) for part in (positions, values)]
    parameters = np.concatenate(knots)
    return RecalibrationMap(method="isotonic", parameters=tuple(map(float, parameters)))
