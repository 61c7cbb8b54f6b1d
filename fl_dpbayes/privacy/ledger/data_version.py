"""What a ledger keeps of a cohort's records: enough to tell versions apart and to find the same units elsewhere."""

from collections.abc import Iterable
from dataclasses import dataclass

SKETCH_SIZE = 256
# Patients may return in a later cohort; records that are mostly those of another cohort are that cohort.
MOST_SHARED = 0.1


@dataclass(frozen=True)
class DataVersion:
    """One version of a cohort's records, under the ledger's secret key.

    Attributes:
        fingerprint: hash of all records.
        units: sketch of the units, from `unit_sketch`.
    """

    fingerprint: str
    units: tuple[str, ...]


def unit_sketch(hashes: Iterable[str]) -> tuple[str, ...]:
    """Keep the smallest of a set's hashes: a uniform sample of it that every set with these members draws alike.

    Args:
        hashes: keyed hashes of equal length, one or more for each unit.

    Returns:
        The `SKETCH_SIZE` smallest different ones, in order.

    Source:
        Broder 1997, On the resemblance and containment of documents.
    """
    return tuple(sorted(set(hashes))[:SKETCH_SIZE])


def shared_fraction(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    """Estimate which part of the smaller of two sets lies in the other.

        |A_t and B_t| / min(|A_t|, |B_t|),   A_t = the hashes of A up to t, which both sketches know completely

    Args:
        one: sketch of a set.
        other: sketch of another, under the same key.

    Returns:
        In [0, 1]; 0 if a sketch is empty. Its standard error is at most 1 / (2 sqrt(min(|A_t|, |B_t|))).
    """
    if not one or not other:
        return 0.0
    complete = [sketch[-1] for sketch in (one, other) if len(sketch) == SKETCH_SIZE]
    last = min(complete, default=max(one[-1], other[-1]))
    first, second = ({found for found in sketch if found <= last} for sketch in (one, other))
    return len(first & second) / max(min(len(first), len(second)), 1)
