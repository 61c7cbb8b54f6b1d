import dataclasses

import numpy as np
import pytest

from fl_dpbayes.data.fingerprint import fingerprint
from fl_dpbayes.data.site import Part, Site
from fl_dpbayes.protocol.task import Task

KEY = "5e" * 16


@pytest.fixture
def site() -> Site:
    part = Part(np.ones((3, 2), np.float32), np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    return Site("a", "train", Task(input_shape=(2,), classes=2), "patient", 2, part, part, "", part, 2)


@pytest.mark.parametrize("name", ["features", "labels", "unit_index"])
@pytest.mark.parametrize("part", ["train", "test", "recalibration"])
def test_any_changed_value_changes_it(site: Site, part: str, name: str) -> None:
    changed = getattr(getattr(site, part), name).copy()
    changed.flat[-1] += 1
    other = dataclasses.replace(site, **{part: dataclasses.replace(getattr(site, part), **{name: changed})})
    assert fingerprint(other, KEY) != fingerprint(site, KEY)


def test_equal_records_give_it_again_and_another_key_another(site: Site) -> None:
    assert fingerprint(site, KEY) == fingerprint(dataclasses.replace(site), KEY)
    # A head that leaves the site may not be a test of who is in its records.
    assert fingerprint(site, "5f" * 16) != fingerprint(site, KEY)


def test_part_that_is_missing_counts(site: Site) -> None:
    assert fingerprint(dataclasses.replace(site, train=None), KEY) != fingerprint(site, KEY)
