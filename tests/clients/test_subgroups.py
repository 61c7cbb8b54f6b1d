"""Which subgroups leave with noise: those of the policy, whatever the records are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.subgroups import counted_groups
from fl_dpbayes.config import Policy
from fl_dpbayes.data import SiteSplit

DECLARED = {"sex": ("female", "male"), "ward": ("a", "b")}
ALL = [
    ("sex", "female"),
    ("sex", "male"),
    ("sex", "other"),
    ("ward", "a"),
    ("ward", "b"),
    ("ward", "other"),
]


def split(sex: list[str], ward: list[str]) -> SiteSplit:
    count = len(sex)
    groups = {"sex": np.array(sex), "ward": np.array(ward), "secret": np.array(["x"] * count)}
    return SiteSplit(np.zeros((count, 1)), np.zeros(count), np.arange(count), count, groups=groups)


def policy(groups: dict[str, tuple[str, ...]]) -> Policy:
    return Policy(max_run_epsilon=1.0, groups=groups)


@given(
    records=st.lists(
        st.tuples(st.sampled_from(["female", "male", "unknown"]), st.sampled_from("abc")),
        min_size=1,
        max_size=30,
    )
)
def test_subgroups_follow_from_the_policy_and_a_record_is_in_one_of_each_attribute(
    records: list[tuple[str, str]],
) -> None:
    sex, ward = map(list, zip(*records, strict=True))
    groups = counted_groups(split(sex, ward), policy(DECLARED), group_bytes=100)
    assert list(groups.members) == ALL
    assert (groups.attributes, groups.left_out) == (2, 0)
    for attribute, values in (("sex", sex), ("ward", ward)):
        of_attribute = {
            value: members for (name, value), members in groups.members.items() if name == attribute
        }
        assert (np.sum(list(of_attribute.values()), axis=0) == 1).all()
        for value in DECLARED[attribute]:
            assert of_attribute[value].tolist() == [recorded == value for recorded in values]


@pytest.mark.parametrize("declared", [{}, {"age": ("old",)}, {"sex": ("other",)}])
def test_nothing_that_is_not_declared_leaves(declared: dict[str, tuple[str, ...]]) -> None:
    groups = counted_groups(split(["male"], ["a"]), policy(declared), group_bytes=100)
    assert (groups.members, groups.attributes, groups.left_out) == ({}, 0, 0)


def test_attributes_that_do_not_fit_into_a_reply_are_left_out_and_counted() -> None:
    groups = counted_groups(split(["male"], ["a"]), policy(DECLARED), group_bytes=10**12)
    assert (groups.members, groups.attributes, groups.left_out) == ({}, 0, 6)


def test_no_more_attributes_are_counted_than_a_server_takes_the_noise_of() -> None:
    names = [f"attribute {number}" for number in range(7)]
    groups = {name: np.array(["yes"]) for name in names}
    part = SiteSplit(np.zeros((1, 1)), np.zeros(1), np.arange(1), 1, groups=groups)
    counted = counted_groups(part, policy(dict.fromkeys(names, ("yes",))), group_bytes=100)
    assert (counted.attributes, len(counted.members), counted.left_out) == (5, 10, 4)
