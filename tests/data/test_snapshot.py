"""A snapshot gives the records that the source gave, and nothing once the source or the site file is another."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.config.approved_code import approve_bundle
from fl_dpbayes.config.site_file import SiteFile, read_own_site_file, read_site_file
from fl_dpbayes.data.records import Records, load_unscaled
from fl_dpbayes.data.site import Site, load_site, prepared, site_of
from fl_dpbayes.data.site_ledger import data_version
from fl_dpbayes.data.snapshot import (
    DataChangedError,
    DataUncheckedError,
    source_files,
    write_snapshot,
)
from fl_dpbayes.hospital.bundle import read_bundle
from fl_dpbayes.hospital.node import own_bundle
from tests.asking import ROWS, record_of, refusal_of, rows_of

PLACE = "ledger/north.records.npz"


@pytest.fixture
def site(table_site):
    """A hospital's node whose records were checked."""
    made = table_site()
    made.write(ROWS, snapshot=PLACE)
    checked(made.path)
    return made


def read_records(site_file: SiteFile) -> Records:
    return prepared(site_file, load_unscaled(site_file.source, site_file.selection.part))


def checked(path: Path) -> Site:
    """Write the snapshot of a site; return the site as its source gives it."""
    site_file = read_site_file(path)
    records = read_records(site_file)
    write_snapshot(site_file, records, source_files(site_file))
    return site_of(site_file, records)


def test_runs_load_what_the_source_gave_and_do_not_read_it_again(site, monkeypatch) -> None:
    direct = checked(site.path)
    assert (site.folder / PLACE).stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr("fl_dpbayes.data.site.load_unscaled", None)
    loaded = load_site(read_site_file(site.path))
    assert data_version(loaded, b"key") == data_version(direct, b"key")
    assert (loaded.units, loaded.unit, loaded.task) == (direct.units, direct.unit, direct.task)
    for one, other in ((loaded.train, direct.train), (loaded.test, direct.test)):
        np.testing.assert_array_equal(one.unit_names, other.unit_names)
    assert record_of(site.train())["status"] == "OK"


def rewritten(site, change: Callable[[bytes], bytes]) -> None:
    path = site.folder / "patients.csv"
    path.write_bytes(change(path.read_bytes()))


CHANGES = {
    "value of the same length": lambda site: rewritten(
        site, lambda text: text.replace(b",1\n", b",0\n", 1)
    ),
    "row more": lambda site: rewritten(site, lambda text: text + b"p999,0.0,0.0,1\n"),
    "later time": lambda site: os.utime(site.folder / "patients.csv", ns=(1, 1)),
    "no file": lambda site: (site.folder / "patients.csv").unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_source_is_refused_with_its_code_until_it_is_checked_again(
    site, change: str
) -> None:
    CHANGES[change](site)
    assert refusal_of(site.train()) == ("DATA_CHANGED", "")
    assert rows_of(site.ledger()) == []
    with pytest.raises(DataChangedError, match=r"site check|put it back"):
        load_site(read_site_file(site.path))
    if change != "no file":
        checked(site.path)
        assert record_of(site.train())["status"] == "OK"


def test_site_that_was_not_checked_as_its_file_is_now_is_refused(site) -> None:
    site.write(ROWS, snapshot=PLACE, selection={"part": "train", "natural_site": "here"})
    assert refusal_of(site.train()) == ("DATA_UNCHECKED", "")
    # A site that is connected reads nothing but checked records, whether its file names a snapshot
    # or not.
    site.write(ROWS, connection={"superlink": "localhost:1"})
    approve_bundle(read_own_site_file(site.path), site.path, read_bundle(own_bundle()).sha256)
    assert refusal_of(site.train()) == ("DATA_CHANGED", "")
    (site.folder / PLACE).unlink()
    assert refusal_of(site.train()) == ("DATA_UNCHECKED", "")
    site.write(ROWS)
    assert record_of(site.train())["status"] == "OK"


def test_damaged_snapshot_is_never_used(site) -> None:
    path, site_file = site.folder / PLACE, read_site_file(site.path)
    whole, first = path.read_bytes(), load_site(site_file)
    generator = np.random.default_rng(0)
    for place in [*generator.integers(0, len(whole), 60), -1]:
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged if place >= 0 else whole[: len(whole) // 2])
        try:
            loaded = load_site(site_file)
        except DataUncheckedError:
            continue
        # Not every byte of an archive says something.
        assert data_version(loaded, b"key") == data_version(first, b"key")


def test_source_that_changes_while_it_is_read_makes_no_snapshot(site) -> None:
    site_file = read_site_file(site.path)
    before, records = source_files(site_file), read_records(site_file)
    rewritten(site, lambda text: text + b"p999,0.0,0.0,1\n")
    with pytest.raises(DataChangedError, match="while they were read"):
        write_snapshot(site_file, records, before)
