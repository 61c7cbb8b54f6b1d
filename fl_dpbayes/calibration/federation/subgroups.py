"""What sites have of their test records, whole and by subgroup, and pooled per role."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from fl_dpbayes.calibration.check_predictions import SUM_TOLERANCE
from fl_dpbayes.calibration.federation.counts import Statistics
from fl_dpbayes.calibration.noised_counts import NoisedCounts, without_noise
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.calibration.sums import SparseSums, Sums, SumsForm, sparse
from fl_dpbayes.config import Role
from fl_dpbayes.protocol import Group, SiteCard, subgroup_prefix, without_prefix


@dataclass(frozen=True)
class Place:
    """What one site, or the pool of a role, has of one predictor.

    Attributes:
        site: A site's name, or `pooled:<role>`.
        role: What the site does in the run.
        predictor: Whose predictions were counted.
        stored: The sums; exact ones of a site are sparse.
        group: The subgroup of its test records that is meant; None for all of them.
    """

    site: str
    role: Role
    predictor: str
    stored: Statistics | SparseSums
    group: Group | None = None

    @property
    def statistics(self) -> Statistics:
        """The sums; those of thousands of sites are not to be held together."""
        if isinstance(self.stored, SparseSums):
            return self.stored.dense()
        return self.stored

    @property
    def exact(self) -> Sums | None:
        """The sums, if they are exact."""
        statistics = self.statistics
        return None if isinstance(statistics, NoisedCounts) else statistics

    @property
    def of_classes(self) -> CalibrationStatistics | None:
        """The sums, if they are exact and of class probabilities."""
        statistics = self.statistics
        return statistics if isinstance(statistics, CalibrationStatistics) else None


def read_subgroups(
    card: SiteCard,
    groups: Sequence[Group],
    arrays: Mapping[str, npt.NDArray],
    whole: Mapping[str, Sums],
    form: SumsForm,
) -> list[Place]:
    """Read the statistics of a reply's subgroups, one for each subgroup and predictor.

    Args:
        card: Who replies.
        groups: Attribute and value of each subgroup.
        arrays: Those of the reply, their shapes checked.
        whole: Predictor -> sums over all the site's test records.
        form: Of the sums.

    Raises:
        ValueError: If sums contradict each other, or those of an attribute's subgroups add up to
            more than of all.
    """
    by_attribute: dict[tuple[str, str], list[Sums]] = {}
    places = []
    for number, group in enumerate(groups):
        attribute, _ = group
        for predictor in whole:
            prefix = f"{subgroup_prefix(number)}/{predictor}"
            sums = form.read(without_prefix(prefix, arrays))
            by_attribute.setdefault((attribute, predictor), []).append(sums)
            places.append(Place(card.name, card.role, predictor, sparse(sums), group))
    for (attribute, predictor), members in by_attribute.items():
        _check_total(reduce(_plus, members), whole[predictor], attribute, predictor)
    return places


def _plus(first: Sums, second: Sums) -> Sums:
    return first.plus(second)


def _check_total(total: Sums, whole: Sums, attribute: str, predictor: str) -> None:
    """Raise a ValueError where an attribute's subgroups add up to more than all test records."""
    totals = total.arrays()
    for name, limit in whole.arrays().items():
        if (totals[name] > limit + SUM_TOLERANCE * (1 + np.abs(limit))).any():
            raise ValueError(
                f"the subgroups of {attribute!r} add up to more than all test records "
                f"({predictor}, {name})"
            )


def subgroup_sets(parts: Sequence[Place], roles: Sequence[Role]) -> Iterator[Place]:
    """Go through the subgroups of each role, pooled over the sites that have them, then sites'."""
    for role in roles:
        members: dict[tuple[Group | None, str], list[Place]] = {}
        for part in parts:
            if part.role == role:
                members.setdefault((part.group, part.predictor), []).append(part)
        yield from map(pooled, members.values())
    yield from parts


def pooled(members: Iterable[Place]) -> Place:
    """Add up what the sites of one role, at least one, have of one predictor and group."""
    first, *further = members
    sums = reduce(_merge, (place.statistics for place in further), first.statistics)
    return replace(first, site=f"pooled:{first.role}", stored=sums)


def _merge(first: Statistics, second: Statistics) -> Statistics:
    if not isinstance(first, NoisedCounts) and not isinstance(second, NoisedCounts):
        return first.plus(second)
    return _counts_of(first).plus(_counts_of(second))


def _counts_of(statistics: Statistics) -> NoisedCounts:
    if isinstance(statistics, NoisedCounts):
        return statistics
    # Only class probabilities have a noised table.
    assert isinstance(statistics, CalibrationStatistics)
    return without_noise(statistics)
