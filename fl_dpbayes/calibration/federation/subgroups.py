"""What sites have of their test records, whole and by subgroup.

Checked sums, per site and pooled per role.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import REPORT_BINS, coarsen
from fl_dpbayes.calibration.check import SUM_TOLERANCE
from fl_dpbayes.calibration.federation.counts import Statistics
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, merge_noised
from fl_dpbayes.calibration.statistics import (
    CalibrationStatistics,
    SparseStatistics,
    from_arrays,
    merge,
    sparse,
    to_arrays,
)
from fl_dpbayes.config import Role
from fl_dpbayes.protocol import Group, SiteCard, subgroup_prefix, without_prefix


class Place(NamedTuple):
    """What one site, or the pool of a role, has of one predictor.

    Attributes:
        site: Name of the site, or `pooled:<role>`.
        role: Of the site.
        predictor: What was measured.
        stored: The sums; a site's exact ones without their zeros.
        group: The subgroup of its test records that is meant; None for all of them.
    """

    site: str
    role: Role
    predictor: str
    stored: Statistics | SparseStatistics
    group: Group | None = None

    @property
    def statistics(self) -> Statistics:
        """The sums, of thousands of sites not to be held together."""
        if isinstance(self.stored, SparseStatistics):
            return self.stored.dense()
        return self.stored

    @property
    def exact(self) -> CalibrationStatistics | None:
        """The sums, if they are exact."""
        statistics = self.statistics
        return statistics if isinstance(statistics, CalibrationStatistics) else None


def read_subgroups(
    card: SiteCard,
    groups: Sequence[Group],
    arrays: Mapping[str, npt.NDArray],
    whole: Mapping[str, CalibrationStatistics],
) -> list[Place]:
    """Read the statistics of a reply's subgroups, one for each subgroup and predictor.

    Args:
        card: Of the site.
        groups: The subgroups, in the order of the arrays' prefixes.
        arrays: Of the reply, their shapes checked.
        whole: Predictor -> statistics of all the site's test records.

    Returns:
        The places, subgroup by subgroup.

    Raises:
        ValueError: If sums contradict each other, or those of an attribute's subgroups add up to
            more than of all.
    """
    places = []
    sums: dict[tuple[str, str], list[CalibrationStatistics]] = {}
    for number, group in enumerate(groups):
        attribute, _ = group
        for predictor, statistics in whole.items():
            prefix = f"{subgroup_prefix(number)}/{predictor}"
            part = from_arrays(without_prefix(prefix, arrays), statistics.classes)
            sums.setdefault((attribute, predictor), []).append(part)
            places.append(
                Place(
                    site=card.name,
                    role=card.role,
                    predictor=predictor,
                    stored=sparse(part),
                    group=group,
                )
            )
    for (attribute, predictor), parts in sums.items():
        added = to_arrays(reduce(merge, parts))
        for name, limit in to_arrays(whole[predictor]).items():
            if (added[name] > limit + SUM_TOLERANCE * (1 + np.abs(limit))).any():
                raise ValueError(
                    f"the subgroups of {attribute!r} add up to more than all test records "
                    f"({predictor}, {name})"
                )
    return places


def subgroup_sets(parts: Sequence[Place], roles: Sequence[Role]) -> Iterator[Place]:
    """Give the subgroups of each role, pooled over the sites that have them, then each site's.

    Args:
        parts: Subgroups of sites.
        roles: Whose subgroups are pooled, in this order.

    Yields:
        The pooled places, then the parts.
    """
    for role in roles:
        of_role = [part for part in parts if part.role == role]
        for group, predictor in dict.fromkeys((part.group, part.predictor) for part in of_role):
            members = [
                part for part in of_role if part.group == group and part.predictor == predictor
            ]
            yield pooled(members)
    yield from parts


def pooled(members: Iterable[Place]) -> Place:
    """Add up what the sites of one role, at least one, have of one predictor and group."""
    first, *later = members
    sums = reduce(_merge, (place.statistics for place in later), first.statistics)
    return first._replace(site=f"pooled:{first.role}", stored=sums)


def coarse(statistics: Statistics) -> NoisedTable:
    """Reduce exact sums to what a noised table holds, so that two kinds of sites can be pooled."""
    if isinstance(statistics, NoisedTable):
        return statistics
    sums = coarsen(statistics.top_label, REPORT_BINS)[:, :SENT_COLUMNS]
    return NoisedTable(sums, noise_std=0.0)


def _merge(first: Statistics, second: Statistics) -> Statistics:
    if isinstance(first, CalibrationStatistics) and isinstance(second, CalibrationStatistics):
        return merge(first, second)
    return merge_noised(coarse(first), coarse(second))
