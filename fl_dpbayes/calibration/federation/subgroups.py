"""Calibration of subgroups of the test records: what sites sent exactly, checked, per site and pooled per role."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.check import SUM_TOLERANCE
from fl_dpbayes.calibration.statistics import CalibrationStatistics, from_arrays, merge, to_arrays
from fl_dpbayes.config.names import Role
from fl_dpbayes.protocol.arrays import without_prefix
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.evaluate import Group, subgroup_prefix


@dataclass(frozen=True)
class SubgroupStatistics:
    """What one site sent about one predictor on one subgroup of its test records."""

    card: SiteCard
    predictor: str
    group: Group
    statistics: CalibrationStatistics


def read_subgroups(
    card: SiteCard,
    groups: Sequence[Group],
    arrays: Mapping[str, npt.NDArray],
    whole: Mapping[str, CalibrationStatistics],
) -> list[SubgroupStatistics]:
    """Read the statistics of a reply's subgroups, one for each subgroup and predictor.

    `arrays`: all arrays of the reply, their shapes checked. `whole`: predictor -> statistics of all test records of
    the site. Raises ValueError if sums contradict each other, or those of an attribute's subgroups, of which each
    record is in one at most, add up to more than those of all records.
    """
    parts = [
        SubgroupStatistics(
            card,
            predictor,
            group,
            from_arrays(without_prefix(f"{subgroup_prefix(number)}/{predictor}", dict(arrays)), statistics.classes),
        )
        for number, group in enumerate(groups)
        for predictor, statistics in whole.items()
    ]
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


def subgroup_sets(
    parts: Sequence[SubgroupStatistics], roles: Sequence[Role]
) -> Iterator[tuple[str, Role, str, Group, CalibrationStatistics]]:
    """Go through the subgroups of all sites of each role together, then through each site's.

    Yields place (`pooled:<role>` or a site), role, predictor, subgroup, statistics; a subgroup of a role is pooled
    over the sites that have it.
    """
    for role in roles:
        of_role = [part for part in parts if part.card.role == role]
        for group, predictor in dict.fromkeys((part.group, part.predictor) for part in of_role):
            members = [p.statistics for p in of_role if (p.group, p.predictor) == (group, predictor)]
            yield f"pooled:{role}", role, predictor, group, reduce(merge, members)
    for part in parts:
        yield part.card.name, part.card.role, part.predictor, part.group, part.statistics
