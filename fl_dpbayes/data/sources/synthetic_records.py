"""What the synthetic sources share: sites, streams of draws, labels of known probability."""

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.config import OfficialPart, SyntheticSites
from fl_dpbayes.data.records import Records

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
# One stream for each part's patients; that of number 0 is the hospitals'.
PART_STREAMS: dict[OfficialPart, int] = {"train": 1, "test": 2}


def site_effects(source: SyntheticSites, count: int) -> Floats:
    """Draw how each site differs from the average one.

        N(0, heterogeneity^2), (sites, count)

    A site's row does not depend on how many sites follow it.

    Args:
        source: Seed, number of sites and heterogeneity.
        count: The number of properties in which sites differ.
    """
    generator = np.random.default_rng([source.seed, 0])
    return source.heterogeneity * generator.standard_normal((source.sites, count))


def sites_of_part(
    source: SyntheticSites, part: OfficialPart
) -> tuple[Integers, np.random.Generator]:
    """Say which site has which records of a part.

    A site's records are one block; blocks are equal up to one record.

    Args:
        source: Seed, number of sites and of records.
        part: `train` or `test`.

    Returns:
        The site of each record, (N,) in 0 .. sites - 1, and the part's own stream of draws.
    """
    count = source.records if part == "train" else source.test_records
    sites = np.arange(count, dtype=np.int64) * source.sites // count
    return sites, np.random.default_rng([source.seed, PART_STREAMS[part]])


def draw_labels(log_odds: Floats, generator: np.random.Generator) -> Integers:
    """Draw labels y ~ Bernoulli(sigmoid(log odds)), (N,)."""
    return (generator.random(len(log_odds)) < expit(log_odds)).astype(np.int64)


def synthetic_records(
    source: SyntheticSites,
    features: npt.NDArray,
    labels: Integers,
    log_odds: Floats,
    sites: Integers,
) -> Records:
    """Put records together with their truth; each is its own privacy unit.

    Args:
        source: Says what they are records of.
        features: (N, *input_shape).
        labels: (N,), as `draw_labels` drew them.
        log_odds: (N,), of label 1, by which they were drawn.
        sites: (N,), numbers from 0; their names begin with `site-1`.
    """
    return Records(
        features=features,
        labels=labels,
        units=np.arange(len(labels)),
        natural_site=np.char.add("site-", (sites + 1).astype(str)),
        task=source.task,
        unit="record",
        truth=np.stack([expit(-log_odds), expit(log_odds)], axis=1),
    )
