"""A disk that is full at any file of a run: one line, nothing lost, and the run can resume."""

import errno
import io
import re
from collections import Counter
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from fl_dpbayes.files import run_store
from tests.resumed import assert_same_run

pytestmark = pytest.mark.slow

SETTINGS = [
    "training={rounds=2, steps_per_round=2, burn_in=0, thinning=1}",
    "aggregation.rule=mixture",
    "simulation.insecure_seed=5",
    "evaluation.release=noised",
    "evaluation.noise_multiplier=4.0",
    "recalibration={epsilon=2.0, rounds=1, steps=2, fraction=0.2}",
    "sites.noisy-scanner=",
    "sites.rotated=",
    "sites.east=",
    "sites.west=",
]
# Ledgers and their second places, overwritten where they lie, have their own tests; a log ends
# where the disk is full.
NOT_TRIED = ("ledgers/", "witnesses/", "flower.log", "run.lock")
MOST_FAILURES, MOST_OF_A_KIND = 40, 3


class FullDisk:
    """Lets one write of a command fail: the first of a kind that has not failed before."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.failed, self._open = folder, list[str](), io.open
        self.arm()

    def arm(self) -> None:
        self._armed, self._seen = True, Counter[str]()

    def open(self, file, mode="r", *arguments, **settings):
        opened = self._open(file, mode, *arguments, **settings)
        if isinstance(file, str | Path) and set(mode) & set("wax+") and self._fails(Path(file)):
            opened.close()
            return full_file()
        return opened

    def _fails(self, path: Path) -> bool:
        if not self._armed or not path.is_relative_to(self.folder):
            return False
        name = (
            path.relative_to(self.folder)
            .as_posix()
            .replace("/.", "/")
            .removeprefix(".")
            .removesuffix(".partial")
        )
        kind = re.sub(r"(?<=/).*(?=\.)", "*", name)
        self._seen[kind] += 1
        return not name.startswith(NOT_TRIED) and self._is_new(f"{kind} 1")

    def _is_new(self, failure: str) -> bool:
        if failure in self.failed:
            return False
        self.failed.append(failure)
        self._armed = False
        return True

    def full_at(self, what: str, plain):
        """Return a change of a store that finds no room, at its first times in a command."""

        def change(connection, *arguments):
            self._seen[what] += 1
            number = self._seen[what]
            name = f"{run_store.STORE_FILE} {what} {number}"
            if self._armed and number <= MOST_OF_A_KIND and self._is_new(name):
                connection = getattr(connection, "_connection", connection)
                (pages,) = connection.execute("PRAGMA page_count").fetchone()
                connection.execute(f"PRAGMA max_page_count = {pages}")
                connection.execute("CREATE TABLE too_much AS SELECT zeroblob(1000000)")
            return plain(connection, *arguments)

        return change


def full_file() -> MagicMock:
    """Return a file on a full disk: what is written does not arrive."""
    file = MagicMock()
    file.__enter__.return_value = file
    for name in ("write", "writelines", "truncate"):
        getattr(file, name).side_effect = OSError(errno.ENOSPC, "No space left on device")
    return file


def test_every_write_may_fail_once(
    tmp_path: Path, command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_dpbayes.engine.progress.POLL_SECONDS", 0.01)
    monkeypatch.setattr("fl_dpbayes.calibration.intervals.REPLICATES", 50)
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    new = ["simulate", "digits", "--engine", "inline", *settings, "--out"]
    assert command(*new, tmp_path / "unbroken")[0] == 0
    folder = tmp_path / "run"
    disk = FullDisk(folder)
    monkeypatch.setattr("builtins.open", disk.open)
    monkeypatch.setattr("io.open", disk.open)
    store = run_store.RunStore
    monkeypatch.setattr(run_store, "append_row", disk.full_at("entry", run_store.append_row))
    monkeypatch.setattr(store, "_insert", disk.full_at("arrays", store._insert))
    status, _, said = command(*new, folder)
    while status and len(disk.failed) < MOST_FAILURES:
        # A full disk before the run begins is a mistake to mend (2), and one later ends it (1).
        assert (status in (1, 2), said.count("\n")) == (True, 1), (disk.failed, said)
        assert "cannot be written (No space left on device): free space on its disk" in said
        assert str(folder) in said
        disk.arm()
        resumable = (folder / "scenario.toml").is_file()
        again = (
            ["simulate", "--engine", "inline", "--resume", str(folder)]
            if resumable
            else [*new, f"{folder}-2"]
        )
        if not resumable:
            disk.folder = folder = Path(f"{folder}-2")
        status, _, said = command(*again)
    assert status == 0, said
    assert_same_run(folder, tmp_path / "unbroken")
    assert {kind.partition(" ")[0] for kind in disk.failed} == {
        "scenario.toml",
        "sites/*.npy",
        "sites/*.toml",
        "events.jsonl",
        "run.sqlite",
        "privacy.csv",
        "rounds.csv",
        "posterior.safetensors",
        "summary.json",
        "calibration.csv",
        "figures/*.svg",
        "report.html",
    }
