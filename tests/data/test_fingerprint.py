import dataclasses

import numpy as np
import pytest

from fl_dpbayes.config.task import Task
from fl_dpbayes.data.site import Site, SiteSplit
from fl_dpbayes.data.site_ledger import data_version
from fl_dpbayes.privacy.ledger.cohort_creation import shared_fraction, unit_sketch

KEY = b"k" * 32


@pytest.fixture
def site() -> Site:
    part = SiteSplit(np.ones((3, 2), np.float32), np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    return Site("a", "train", Task(input_shape=(2,), classes=2), "patient", 2, part, part, "", part, 2)


@pytest.mark.parametrize("name", ["features", "labels", "unit_index"])
@pytest.mark.parametrize("part", ["train", "test", "recalibration"])
def test_any_changed_value_changes_it(site: Site, part: str, name: str) -> None:
    changed = getattr(getattr(site, part), name).copy()
    changed.flat[-1] += 1
    other = dataclasses.replace(site, **{part: dataclasses.replace(getattr(site, part), **{name: changed})})
    assert data_version(other, KEY).fingerprint != data_version(site, KEY).fingerprint


def test_equal_records_give_it_again_and_another_key_another(site: Site) -> None:
    assert data_version(site, KEY).fingerprint == data_version(dataclasses.replace(site), KEY).fingerprint
    # A head that leaves the site may not be a test of who is in its records.
    assert data_version(site, b"l" * 32).fingerprint != data_version(site, KEY).fingerprint


def test_part_that_is_missing_counts(site: Site) -> None:
    assert data_version(dataclasses.replace(site, train=None), KEY).fingerprint != data_version(site, KEY).fingerprint


def _site(names: list[str], unit: str, features: np.ndarray) -> Site:
    count = len(names)
    part = SiteSplit(
        features, (features[:, 0] > 0).astype(np.int64), np.arange(count), count, unit_names=np.array(names)
    )
    return Site("a", "train", Task(input_shape=(2,), classes=2), unit, count, part, part, "")


def test_patients_are_found_again_by_name_and_nameless_records_by_content() -> None:
    names, rng = [f"p{number}" for number in range(1000)], np.random.default_rng(0)
    one, other = (rng.normal(size=(1000, 2)).astype(np.float32) for _ in range(2))
    key = KEY
    by_name = [data_version(_site(names[start:], "patient", values[start:]), key).units
               for start, values in ((0, one), (300, other))]  # fmt: skip
    assert shared_fraction(*by_name) == 1.0
    by_content = [data_version(_site(names[::step], "record", one[::step]), key).units for step in (1, -1)]
    assert by_content[0] == by_content[1]
    assert shared_fraction(by_content[0], data_version(_site(names, "record", other), key).units) == 0.0


def test_shared_part_of_the_smaller_set_is_estimated() -> None:
    rng = np.random.default_rng(1)
    hashes = [f"{value:032x}" for value in rng.integers(0, 2**63, 40_000)]
    for shared in (0.0, 0.05, 0.5, 1.0):
        small, large = hashes[:4000], hashes[int(4000 * (1 - shared)) : 40_000]
        estimate = shared_fraction(unit_sketch(small), unit_sketch(large))
        # About 256 of the larger set's and 28 of the smaller one's hashes are compared.
        assert abs(estimate - shared) <= 4 * np.sqrt(max(shared * (1 - shared), 0.0) / 20)
    assert shared_fraction((), unit_sketch(hashes)) == 0.0
