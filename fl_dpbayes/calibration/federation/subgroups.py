"""Calibration of subgroups of the test records: what sites sent exactly, checked, per site and pooled per role."""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.check import SUM_TOLERANCE
from fl_dpbayes.calibration.statistics import (
    CalibrationStatistics,
    SparseStatistics,
    from_arrays,
    merge,
    sparse,
    to_arrays,
)
from fl_dpbayes.config.names import Role
from fl_dpbayes.protocol.arrays import without_prefix
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.evaluate import Group, subgroup_prefix


class Subgroup(NamedTuple):
    """What one site, or the pool of a role (`pooled:<role>`), has of one predictor on one subgroup of its records."""

    site: str
    role: Role
    predictor: str
    group: Group
    kept: SparseStatistics

    @property
    def statistics(self) -> CalibrationStatistics:
        """The sums, of thousands of sites not to be held together."""
        return self.kept.dense()


def read_subgroups(
    card: SiteCard, groups: Sequence[Group], arrays: Mapping[str, npt.NDArray],
    whole: Mapping[str, CalibrationStatistics],
) -> list[Subgroup]:  # fmt: skip
    """Read the statistics of a reply's subgroups, one for each subgroup and predictor.

    `arrays`: of the reply, their shapes checked. `whole`: predictor -> statistics of all the site's test records.
    Raises ValueError if sums contradict each other, or those of an attribute's subgroups add up to more than of all.
    """
    parts = []
    for number, group in enumerate(groups):
        for predictor, statistics in whole.items():
            sums = without_prefix(f"{subgroup_prefix(number)}/{predictor}", dict(arrays))
            checked = sparse(from_arrays(sums, statistics.classes))
            parts.append(Subgroup(card.name, card.role, predictor, group, checked))
    for attribute in dict.fromkeys(attribute for attribute, _ in groups):
        for predictor, statistics in whole.items():
            members = [p.statistics for p in parts if (p.group[0], p.predictor) == (attribute, predictor)]
            together, limits = to_arrays(reduce(merge, members)), to_arrays(statistics)
            for name, limit in limits.items():
                if (together[name] > limit + SUM_TOLERANCE * (1 + np.abs(limit))).any():
                    raise ValueError(
                        f"the subgroups of {attribute!r} add up to more than all test records ({predictor}, {name})"
                    )
    return parts


def subgroup_sets(parts: Sequence[Subgroup], roles: Sequence[Role]) -> Iterator[Subgroup]:
    """Go through the subgroups of each role, pooled over the sites that have them, then through each site's."""
    for role in roles:
        of_role = [part for part in parts if part.role == role]
        for group, predictor in dict.fromkeys((part.group, part.predictor) for part in of_role):
            members = (p.statistics for p in of_role if (p.group, p.predictor) == (group, predictor))
            yield Subgroup(f"pooled:{role}", role, predictor, group, sparse(reduce(merge, members)))
    yield from parts
