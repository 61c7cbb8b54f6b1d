"""Whatever number of units a site declares, a delta that it admits is below 1/n for the real n of every part."""

import numpy as np
import pytest

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.site_file import Policy, SiteFile, Split
from fl_dpbayes.config.sources import Table
from fl_dpbayes.data.site import MAX_DECLARATION_ERROR, is_delta_allowed, load_site, most_units
from fl_dpbayes.privacy.splits import unit_scores

PARTS = ("train", "test", "recalibration")


def _site_file(folder, patients: int, units: int, test: float, recalibration: float, key: int) -> SiteFile:
    rows = "".join(f"p{number},{number % 5},{number % 2}\n" for number in range(patients))
    (folder / "t.csv").write_text(f"patient,x,sick\n{rows}")
    return SiteFile(
        name="north", role="train", units=units, policy=Policy(max_run_epsilon=1.0),
        source=Table(kind="table", path=folder / "t.csv", label="sick", classes=2, features=("x",),
                     unit_column="patient"),
        split=Split(test_fraction=test, recalibration_fraction=recalibration, key=f"{key:032x}"),
    )  # fmt: skip


@pytest.mark.parametrize(("test", "recalibration"), [(0.2, 0.1), (0.25, 0.0), (0.5, 0.3), (0.9, 0.0)])
@pytest.mark.parametrize("patients", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_delta_that_is_admitted_is_below_one_over_the_real_number(tmp_path, patients, test, recalibration) -> None:
    loaded = 0
    for key in range(4):
        expected = patients * (1 - test - recalibration)
        for units in range(max(1, round(0.7 * expected)), round(1.3 * expected), max(1, round(expected / 20))):
            site_file = _site_file(tmp_path, patients, units, test, recalibration, key)
            try:
                site = load_site(site_file)
            except UserError:
                continue
            loaded += 1
            for name in PARTS:
                part = getattr(site, name)
                if part is not None:
                    assert part.unit_count <= most_units(site_file, name) * (1 + 1e-9)
                    assert not is_delta_allowed(site_file, name, 1 / part.unit_count)
    assert loaded > 4


def test_site_that_declares_its_number_exactly_loads_whatever_its_key_limit(tmp_path) -> None:
    names = [f"p{number}" for number in range(40)]
    for key in range(3000):
        scores = unit_scores(names, key.to_bytes(16, "big"))
        train = int((scores >= 0.4).sum())
        split = Split(test_fraction=0.3, recalibration_fraction=0.1, key="0" * 32)
        site_file = SiteFile.model_construct(role="train", units=train, split=split)
        assert (scores < 0.3).sum() <= most_units(site_file, "test")
        assert ((scores >= 0.3) & (scores < 0.4)).sum() <= most_units(site_file, "recalibration")


def test_more_units_in_a_part_than_the_declared_number_admits_do_not_load(tmp_path, monkeypatch) -> None:
    # A key that puts nearly everybody into the test part was chosen, not drawn.
    site_file = _site_file(tmp_path, 400, 40, 0.2, 0.0, 1)
    monkeypatch.setattr("fl_dpbayes.data.site.in_test_part", lambda units, *_: np.arange(len(units)) >= 40)
    with pytest.raises(UserError, match=r"part for test holds 360 units.*at most 42.*correct units"):
        load_site(site_file)


def test_bound_is_the_largest_number_that_may_declare_so() -> None:
    site_file = SiteFile.model_construct(role="train", units=40, split=Split(key="0" * 32))
    assert most_units(site_file, "train") == pytest.approx(40 / (1 - MAX_DECLARATION_ERROR)) == 50
