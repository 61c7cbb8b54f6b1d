"""The subgroups of a site's test records that an evaluation counts: those of enough units."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import MAX_GROUP_ATTRIBUTES, Policy
from fl_dpbayes.data import SiteSplit
from fl_dpbayes.protocol import Group, most_groups

OTHER_GROUP = "other"


def declared_groups(part: SiteSplit, policy: Policy) -> dict[str, npt.NDArray]:
    """Join values to OTHER_GROUP that the policy does not name, or that too few units have.

    Args:
        part: The site's test records.
        policy: What the site declares: its attributes, their values, and the least units of each.

    Returns:
        Attribute -> subgroup of each record, (N,) text, for the attributes that the policy names.
    """
    groups: dict[str, npt.NDArray] = {}
    for attribute, recorded in part.groups.items():
        if attribute not in policy.groups:
            continue
        declared = np.where(np.isin(recorded, policy.groups[attribute]), recorded, OTHER_GROUP)
        values = _with_small_groups_joined(declared, part.unit_index, policy.least_group_units)
        if np.any(values != OTHER_GROUP):
            groups[attribute] = values
    return groups


@dataclass(frozen=True)
class CountedGroups:
    """The subgroups that leave with noise.

    Attributes:
        members: Subgroup (attribute, value) -> which records belong to it, shape (N,).
        attributes: How many subgroups a record belongs to, one of each attribute.
        left_out: How many subgroups do not fit into a reply.
    """

    members: Mapping[Group, npt.NDArray[np.bool_]]
    attributes: int
    left_out: int


def counted_groups(part: SiteSplit, policy: Policy, group_bytes: int) -> CountedGroups:
    """Choose the subgroups that leave with noise: all that the policy names, and the others.

    Which these are follows from the policy and the table's columns alone: a subgroup that no record
    belongs to is counted too, and none is joined to another.

    Args:
        part: The site's test records.
        policy: What the site declares.
        group_bytes: The size of the tables of one subgroup, of all predictors.
    """
    most = most_groups(group_bytes)
    members: dict[Group, npt.NDArray[np.bool_]] = {}
    attributes = 0
    left_out = 0
    for attribute, recorded in part.groups.items():
        values = [value for value in policy.groups.get(attribute, ()) if value != OTHER_GROUP]
        if not values:
            continue
        if attributes == MAX_GROUP_ATTRIBUTES or len(members) + len(values) + 1 > most:
            left_out += len(values) + 1
            continue
        attributes += 1
        members |= {(attribute, value): recorded == value for value in values}
        members[attribute, OTHER_GROUP] = ~np.isin(recorded, values)
    return CountedGroups(members=members, attributes=attributes, left_out=left_out)


def _with_small_groups_joined(
    values: npt.NDArray, unit_index: npt.NDArray[np.int64], least_units: int
) -> npt.NDArray:
    """Join subgroups of too few units to OTHER_GROUP.

    If that has too few in turn, the smallest subgroup joins it: else what is left out would follow
    from the rest.
    """
    while True:
        units = {
            str(value): len(np.unique(unit_index[values == value])) for value in np.unique(values)
        }
        units_of_other = units.pop(OTHER_GROUP, None)
        joining = [value for value, count in units.items() if count < least_units]
        other_is_small = units_of_other is not None and units_of_other < least_units
        if not joining and other_is_small and units:
            joining = [min(units, key=lambda value: units[value])]
        if not joining:
            return values
        values = np.where(np.isin(values, joining), OTHER_GROUP, values)


def measured_groups(
    groups: Mapping[str, npt.NDArray], group_bytes: int
) -> tuple[tuple[Group, ...], int]:
    """Choose the subgroups that fit into a reply.

    Args:
        groups: Attribute -> subgroup of each record, (N,) text.
        group_bytes: The size of the tables of one subgroup, of all predictors.

    Returns:
        The chosen subgroups (attribute, value), and the number of those left out.
    """
    most = most_groups(group_bytes)
    chosen: list[Group] = []
    left_out = 0
    for attribute, values in groups.items():
        of_attribute = [(attribute, str(value)) for value in np.unique(values)]
        if len(chosen) + len(of_attribute) <= most:
            chosen += of_attribute
        else:
            left_out += len(of_attribute)
    return tuple(chosen), left_out
