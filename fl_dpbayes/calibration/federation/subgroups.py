"""What sites have of their test records, whole and by subgroup: checked sums, per site and pooled per role."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.bins import REPORT_BINS, coarsen
from fl_dpbayes.calibration.check import SUM_TOLERANCE
from fl_dpbayes.calibration.federation.counts import Statistics
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, merge_noised
from fl_dpbayes.calibration.statistics import CalibrationStatistics as Exact
from fl_dpbayes.calibration.statistics import (
    SparseStatistics,
    from_arrays,
    merge,
    sparse,
    to_arrays,
)
from fl_dpbayes.config import Role
from fl_dpbayes.protocol import Group, SiteCard, subgroup_prefix, without_prefix


class Place(NamedTuple):
    """What one site, or the pool of a role (`pooled:<role>`), has of one predictor: a site's exact sums sparse.

    `group`: the subgroup of its test records that is meant; None for all of them.
    """

    site: str
    role: Role
    predictor: str
    kept: Statistics | SparseStatistics
    group: Group | None = None

    @property
    def statistics(self) -> Statistics:
        """The sums, of thousands of sites not to be held together."""
        return self.kept.dense() if isinstance(self.kept, SparseStatistics) else self.kept

    @property
    def exact(self) -> Exact | None:
        """The sums, if they are exact."""
        return found if isinstance(found := self.statistics, Exact) else None


def read_subgroups(
    card: SiteCard,
    groups: Sequence[Group],
    arrays: Mapping[str, npt.NDArray],
    whole: Mapping[str, Exact],
) -> list[Place]:
    """Read the statistics of a reply's subgroups, one for each subgroup and predictor.

    `arrays`: of the reply, their shapes checked. `whole`: predictor -> statistics of all the site's
    test records. Raises ValueError if sums contradict each other, or those of an attribute's
    subgroups add up to more than of all.
    """
    parts = [
        (
            group,
            name,
            from_arrays(
                without_prefix(f"{subgroup_prefix(number)}/{name}", arrays), of_all.classes
            ),
        )
        for number, group in enumerate(groups)
        for name, of_all in whole.items()
    ]
    for attribute in dict.fromkeys(attribute for attribute, _ in groups):
        for predictor, statistics in whole.items():
            members = (
                sums for group, name, sums in parts if (group[0], name) == (attribute, predictor)
            )
            together = to_arrays(reduce(merge, members))
            for name, limit in to_arrays(statistics).items():
                if (together[name] > limit + SUM_TOLERANCE * (1 + np.abs(limit))).any():
                    said = (
                        f"the subgroups of {attribute!r} add up to more than all test records "
                        f"({predictor}, {name})"
                    )
                    raise ValueError(said)
    return [
        Place(card.name, card.role, predictor, sparse(sums), group)
        for group, predictor, sums in parts
    ]


def subgroup_sets(parts: Sequence[Place], roles: Sequence[Role]) -> Iterator[Place]:
    """Go through the subgroups of each role, pooled over the sites that have them, then through each site's."""
    for role in roles:
        of_role = [part for part in parts if part.role == role]
        for group, predictor in dict.fromkeys((part.group, part.predictor) for part in of_role):
            yield pooled(p for p in of_role if (p.group, p.predictor) == (group, predictor))
    yield from parts


def pooled(members: Iterable[Place]) -> Place:
    """Add up what the sites of one role, at least one, have of one predictor and group."""
    first, *others = members
    sums = reduce(_merge, (place.statistics for place in others), first.statistics)
    return first._replace(site=f"pooled:{first.role}", kept=sums)


def coarse(statistics: Statistics) -> NoisedTable:
    """Reduce exact sums to what a noised table holds, with noise 0, so that the two kinds of sites can be pooled."""
    if isinstance(statistics, NoisedTable):
        return statistics
    return NoisedTable(coarsen(statistics.top_label, REPORT_BINS)[:, :SENT_COLUMNS], 0.0)


def _merge(first: Statistics, second: Statistics) -> Statistics:
    if isinstance(first, Exact) and isinstance(second, Exact):
        return merge(first, second)
    return merge_noised(coarse(first), coarse(second))
