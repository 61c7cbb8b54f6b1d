import os
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import pytest

from fl_dpbayes.config.data import Shift
from fl_dpbayes.config.data_folder import SHARED_RECORDS
from fl_dpbayes.config.site_file import (
    LedgerSettings,
    Selection,
    SiteFile,
    Split,
    read_site_file,
    write_site_file,
)
from fl_dpbayes.config.sources import BuiltIn, Table
from fl_dpbayes.config.task import Task
from fl_dpbayes.data.feature_cache import cached_features
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.site import (
    Site,
    SiteSplit,
    is_delta_allowed,
    load_site,
    most_units,
    prepared,
)
from fl_dpbayes.data.site_ledger import create_ledger, data_version, open_ledger
from fl_dpbayes.data.snapshot import source_files, write_snapshot
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.ledger.cohort_creation import shared_fraction, unit_sketch
from fl_dpbayes.privacy.ledger.file import ledger_key
from fl_dpbayes.privacy.splits import unit_scores
from tests.asking import refused

KEY = "00112233445566778899aabbccddeeff"


def digits_site(**changes) -> SiteFile:
    keys = {
        "name": "a",
        "role": "train",
        "source": BuiltIn(kind="digits"),
        "units": 1440,
        "split": Split(test_fraction=0.2, key=KEY),
        "policy": {"max_run_epsilon": 1.0},
    }
    return SiteFile(**(keys | changes))


def with_indices(tmp_path, indices, **changes) -> SiteFile:
    np.save(tmp_path / "i.npy", np.asarray(indices))
    return digits_site(selection=Selection(indices=tmp_path / "i.npy"), **changes)


def test_a_training_site_is_split_by_unit_and_by_its_key():
    site = load_site(digits_site())
    assert site.train.unit_count + site.test.unit_count == 1797
    assert abs(site.test.unit_count - 359.4) < 4 * np.sqrt(1797 * 0.16)
    dtypes = [getattr(site.train, name).dtype for name in ("features", "labels", "unit_index")]
    assert dtypes == [np.float32, np.int64, np.int64]
    assert np.array_equal(np.sort(site.train.unit_index), np.arange(site.train.unit_count))
    assert (site.units, site.unit, site.shift, site.role) == (1440, "record", "", "train")
    assert np.array_equal(site.train.features, load_site(digits_site()).train.features)
    other = load_site(digits_site(split=Split(test_fraction=0.2, key=KEY[::-1]))).train
    assert not np.array_equal(other.labels, site.train.labels)


def test_a_patient_is_never_in_both_parts_and_a_new_one_moves_no_other(tmp_path):
    rows = pandas.DataFrame(
        {"patient": np.repeat([f"p{i}" for i in range(200)], 3), "x": np.arange(600.0)}
    )
    rows["y"] = np.arange(600) % 2
    table = Table(
        path=tmp_path / "t.csv", label="y", classes=2, features=("x",), unit_column="patient"
    )

    def split(frame):
        frame.to_csv(tmp_path / "t.csv", index=False)
        return load_site(digits_site(source=table, units=160))

    site = split(rows)
    assert site.unit == "patient"
    assert site.train.unit_count + site.test.unit_count == 200
    assert (np.bincount(site.train.unit_index) == 3).all()
    # Records of a patient are consecutive and share an index.
    patients = (site.train.features[:, 0] // 3).astype(int)
    assert (
        len(set(zip(patients.tolist(), site.train.unit_index.tolist(), strict=True)))
        == site.train.unit_count
    )
    new = pandas.DataFrame({"patient": ["a new one"], "x": [1000.0], "y": [1]})
    grown = split(pandas.concat([new, rows]))
    assert set(site.train.features[:, 0]) == set(grown.train.features[:, 0]) - {1000.0}
    assert set(site.test.features[:, 0]) == set(grown.test.features[:, 0]) - {1000.0}


def test_an_unknown_natural_site_is_refused(data_folder):
    source = BuiltIn(kind="heart", folder=data_folder)
    unknown = digits_site(source=source, selection=Selection(natural_site="zurich"), units=46)
    refused("'zurich': choose one of cleveland, hungarian, switzerland, va", load_site, unknown)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 1797], r"holds 0 to 1797, allowed are 0 to 1796"),
        ([-1, 3], r"holds -1 to 3"),
        ([0.5, 1.5], "one row of whole numbers"),
        ([[1], [2]], "one row of whole numbers"),
        ([4, 4], "a record twice"),
        (np.array([], dtype=int), "the site has no records"),
        (np.array([{"a": "pickle"}], dtype=object), "is not a NumPy array file"),
    ],
)
def test_indices_are_checked_and_no_pickle_is_opened(tmp_path, indices, message):
    refused(message, load_site, with_indices(tmp_path, indices))
    refused(
        "does not exist", load_site, digits_site(selection=Selection(indices=tmp_path / "none.npy"))
    )


def test_a_declaration_need_not_be_exact_but_something_must_be_left_to_train_on():
    for declared in (1200, 1400, 1700):
        assert load_site(digits_site(units=declared)).units == declared
    for declared in (0, 1000, 2000):
        refused(
            f"declared as {declared}.*for example units = 1400",
            load_site,
            digits_site(units=declared),
        )
    refused(
        r"lower split\.test_fraction",
        load_site,
        digits_site(split=Split(test_fraction=1.0, key=KEY), units=0),
    )


def test_a_site_file_survives_writing_and_reading(tmp_path):
    paths = {
        "selection": Selection(indices="i.npy"),
        "cache_folder": Path("cache"),
        "trace_folder": Path("../traces"),
    }
    written = with_indices(tmp_path, range(40), units=32, shift=Shift(kind="gamma")).model_copy(
        update=paths
    )
    write_site_file(written, tmp_path / "sites" / "a.toml")
    read = read_site_file(tmp_path / "sites" / "a.toml")
    assert read.selection.indices == tmp_path / "sites" / "i.npy"
    assert read.trace_folder.resolve() == tmp_path / "traces"
    assert read.model_copy(update=paths) == written


def test_an_error_in_a_site_file_shows_the_value_but_never_the_secret_key(tmp_path):
    path = tmp_path / "a.toml"
    write_site_file(digits_site(), path)
    text = path.read_text()
    secret = re.search('key = "(.*)"', text)[1]
    for before, after, message in (
        (secret, f"{secret}X", r"split.key: string should"),
        ("units = ", "units = -", "-"),
    ):
        path.write_text(text.replace(before, after))
        with pytest.raises(UserError, match=message) as caught:
            read_site_file(path)
        assert secret not in str(caught.value)


def test_a_share_for_recalibration_is_a_third_part_and_its_size_follows_from_what_is_declared():
    plain = load_site(digits_site())
    assert (plain.recalibration, plain.recalibration_units) == (None, 0)
    site = load_site(
        digits_site(units=1260, split=Split(test_fraction=0.2, recalibration_fraction=0.1, key=KEY))
    )
    assert np.array_equal(site.test.features, plain.test.features)
    assert site.train.unit_count + site.recalibration.unit_count == plain.train.unit_count
    assert abs(site.recalibration.unit_count - 179.7) < 4 * np.sqrt(1797 * 0.09)
    assert site.recalibration_units == 180
    with pytest.raises(ValueError, match="exceed 1"):
        Split(test_fraction=0.5, recalibration_fraction=0.6, key=KEY)


# Whatever number of units a site declares, a delta that it admits is below 1/n for the real n of
# every part.

PARTS = ("train", "test", "recalibration")


def patients_file(
    folder, patients: int, units: int, test: float, recalibration: float, key: int
) -> SiteFile:
    rows = "".join(f"p{number},{number % 5},{number % 2}\n" for number in range(patients))
    (folder / "t.csv").write_text(f"patient,x,sick\n{rows}")
    table = Table(
        path=folder / "t.csv", label="sick", classes=2, features=("x",), unit_column="patient"
    )
    split = Split(test_fraction=test, recalibration_fraction=recalibration, key=f"{key:032x}")
    return digits_site(units=units, source=table, split=split)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "recalibration"), [(0.2, 0.1), (0.25, 0.0), (0.5, 0.3), (0.9, 0.0)]
)
@pytest.mark.parametrize("patients", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_delta_that_is_admitted_is_below_one_over_the_real_number(
    tmp_path, patients, test, recalibration
) -> None:
    loaded = 0
    for key in range(4):
        expected = patients * (1 - test - recalibration)
        for units in range(
            max(1, round(0.7 * expected)), round(1.3 * expected), max(1, round(expected / 20))
        ):
            site_file = patients_file(tmp_path, patients, units, test, recalibration, key)
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


def test_more_units_in_a_part_than_the_declared_number_admits_do_not_load(
    tmp_path, monkeypatch
) -> None:
    # A key that puts nearly everybody into the test part was chosen, not drawn.
    site_file = patients_file(tmp_path, 400, 40, 0.2, 0.0, 1)
    monkeypatch.setattr(
        "fl_dpbayes.data.site.parts_of_units",
        lambda units, *_: np.where(np.arange(len(units)) >= 40, "test", "train"),
    )
    assert most_units(site_file, "train") == pytest.approx(50)
    refused("part for test holds 360 units.*at most 42.*correct units", load_site, site_file)


# The fingerprint and the units of a version of the data.

SECRET = b"k" * 32


def fingerprint(site: Site, key: bytes = SECRET) -> str:
    return data_version(site, key).fingerprint


def test_fingerprint_follows_from_every_value_every_part_and_the_key() -> None:
    part = SiteSplit(np.ones((3, 2), np.float32), np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    site = Site(
        "a", "train", Task(input_shape=(2,), classes=2), "patient", 2, part, part, "", part, 2
    )
    # A head that leaves the site may not be a test of who is in its records.
    found = [
        fingerprint(site),
        fingerprint(site, b"l" * 32),
        fingerprint(replace(site, train=None)),
    ]
    for name, key in product(PARTS, ("features", "labels", "unit_index")):
        changed = getattr(part, key).copy()
        changed.flat[-1] += 1
        found.append(fingerprint(replace(site, **{name: replace(part, **{key: changed})})))
    assert len(set(found)) == 12
    assert found[0] == fingerprint(replace(site))


def _site(names: list[str], unit: str, features: np.ndarray) -> Site:
    count, labels = len(names), (features[:, 0] > 0).astype(np.int64)
    part = SiteSplit(features, labels, np.arange(count), count, unit_names=np.array(names))
    return Site("a", "train", Task(input_shape=(2,), classes=2), unit, count, part, part, "")


def test_patients_are_found_again_by_name_and_nameless_records_by_content() -> None:
    names, rng = [f"p{number}" for number in range(1000)], np.random.default_rng(0)
    one, other = (rng.normal(size=(1000, 2)).astype(np.float32) for _ in range(2))
    by_name = [
        data_version(_site(names[start:], "patient", values[start:]), SECRET).units
        for start, values in ((0, one), (300, other))
    ]
    assert shared_fraction(*by_name) == 1.0
    by_content = [
        data_version(_site(names[::step], "record", one[::step]), SECRET).units for step in (1, -1)
    ]
    assert by_content[0] == by_content[1]
    assert (
        shared_fraction(by_content[0], data_version(_site(names, "record", other), SECRET).units)
        == 0.0
    )


def test_shared_part_of_the_smaller_set_is_estimated() -> None:
    rng = np.random.default_rng(1)
    hashes = [f"{value:032x}" for value in rng.integers(0, 2**63, 40_000)]
    for shared in (0.0, 0.05, 0.5, 1.0):
        small, large = hashes[:4000], hashes[int(4000 * (1 - shared)) : 40_000]
        estimate = shared_fraction(unit_sketch(small), unit_sketch(large))
        # About 256 of the larger set's and 28 of the smaller one's hashes are compared.
        assert abs(estimate - shared) <= 4 * np.sqrt(max(shared * (1 - shared), 0.0) / 20)
    assert shared_fraction((), unit_sketch(hashes)) == 0.0


@pytest.mark.parametrize(("checked", "shared"), [(False, ""), (True, ""), (False, "1")])
def test_ledger_sees_a_changed_record_though_size_and_time_were_put_back(
    tmp_path, monkeypatch, checked, shared
):
    monkeypatch.setenv(SHARED_RECORDS, shared)
    table, place = tmp_path / "t.csv", tmp_path / "records.npz"
    rows = pandas.DataFrame({"x": np.arange(100) + 100, "y": np.arange(100) % 2})
    rows.to_csv(table, index=False)
    source = Table(path=table, label="y", classes=2, features=("x",))
    changes = {"cache_folder": tmp_path / "cache"} | ({"snapshot": place} if checked else {})
    ledger = LedgerSettings(
        path=tmp_path / "l", witness=tmp_path / "w" / "w", cohort="c", epsilon=1, delta=1e-3
    )
    site_file = digits_site(source=source, units=80, ledger=ledger, **changes)

    def versions() -> int:
        site = load_site(site_file)
        with open_ledger(site_file, site) as found:
            assert found.state().data_versions[-1] == data_version(
                site, ledger_key(found._connection)
            )
            return len(found.state().data_versions)

    def checked_again() -> None:
        if checked:
            records = prepared(site_file, load_unscaled(site_file.source, site_file.selection.part))
            write_snapshot(site_file, records, source_files(site_file))

    checked_again()
    create_ledger(site_file).close()
    assert [versions(), versions()] == [1, 1]
    assert load_site(site_file) is load_site(site_file)
    assert isinstance(load_site(site_file).train.features, np.memmap) == bool(shared)
    with pytest.raises(ValueError, match="read-only"):
        load_site(site_file).train.features[0] = 0
    at = table.stat()
    table.write_text(table.read_text().replace("150,0", "151,0"))
    os.utime(table, ns=(at.st_atime_ns, at.st_mtime_ns))
    checked_again()
    assert versions() == 2


@pytest.mark.parametrize("writable", [True, False])
def test_shared_records_are_the_sites_own_whatever_lies_in_its_cache(
    tmp_path, monkeypatch, writable
):
    own, folder = load_site(digits_site()), tmp_path / "cache"
    cached_features(
        folder, own.task, own.train.features, np.negative
    ) if writable else folder.touch()
    monkeypatch.setenv(SHARED_RECORDS, "1")
    assert np.array_equal(
        load_site(digits_site(cache_folder=folder)).train.features, own.train.features
    )
