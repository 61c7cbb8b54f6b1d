"""The file of a ledger: local, private, recognised, and its failures named."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from fl_dpbayes.privacy.ledger import file as ledger_file
from fl_dpbayes.privacy.ledger.file import (
    LedgerError,
    network_file_system,
    open_ledger_file,
    transaction,
)
from tests.asking import refused

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/site/local\\040disk ext4 rw 0 0
me@host: /mnt/far fuse.sshfs rw 0 0
tmpfs /mnt/far/near tmpfs rw 0 0
"""


def test_network_file_systems_are_found_and_refused(tmp_path, monkeypatch):
    for path, kind in {
        "/var/l.sqlite": None,
        "/home/site/l.sqlite": "nfs4",
        "/homeless/l.sqlite": None,
        "/home/site/local disk/l.sqlite": None,
        "/mnt/far/l.sqlite": "fuse.sshfs",
        "/mnt/far/near/l.sqlite": None,
    }.items():
        assert network_file_system(Path(path), MOUNTS) == kind
    monkeypatch.setattr(ledger_file, "network_file_system", lambda path, mounts: "nfs4")
    refused(
        r"network file system \(nfs4\).*ledger.path",
        open_ledger_file,
        tmp_path / "l.sqlite",
        "full",
        create=True,
    )
    assert not (tmp_path / "l.sqlite").exists()


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 0)])
def test_file_is_private_and_durable(tmp_path, durability, synchronous):
    path = tmp_path / "l.sqlite"
    connection = open_ledger_file(path, durability, create=True)
    said = [
        connection.execute(f"PRAGMA {what}").fetchone()[0]
        for what in ("journal_mode", "synchronous")
    ]
    assert said == ["wal", synchronous]
    assert [stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()] == [0o600] * 3
    connection.close()
    path.chmod(0o644)
    open_ledger_file(path, durability, create=True).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_missing_or_empty_file_is_not_made_a_ledger_for_a_reader(tmp_path):
    path = tmp_path / "l.sqlite"
    for state in ("does not exist", "is empty"):
        with pytest.raises(
            LedgerError, match=rf"{state}: no request makes one.*site ledger create"
        ):
            open_ledger_file(path, "full", create=False)
        assert [file.stat().st_size for file in tmp_path.iterdir()] == (
            [0] if path.exists() else []
        )
        path.touch()


def test_name_with_characters_of_an_address_is_a_name(tmp_path):
    path = tmp_path / "north #1?mode=ro&50%.sqlite"
    open_ledger_file(path, "full", create=True).close()
    open_ledger_file(path, "full", create=False).close()
    assert os.listdir(tmp_path) == [path.name]


def test_transaction_leaves_nothing_behind_when_it_fails(tmp_path):
    connection = open_ledger_file(tmp_path / "l.sqlite", "normal", create=True)
    with suppress(KeyboardInterrupt), transaction(connection):
        connection.execute("INSERT INTO reply VALUES (1, x'00')")
        raise KeyboardInterrupt
    assert connection.execute("SELECT count(*) FROM reply").fetchone()[0] == 0
    connection.close()


def test_connections_that_meet_a_new_ledger_at_once_all_open_it(tmp_path: Path) -> None:
    # Without trying again some were refused as locked.
    together = threading.Barrier(6)

    def open_one(path: Path) -> None:
        together.wait()
        open_ledger_file(path, "normal", create=True).close()

    with ThreadPoolExecutor(6) as pool:
        for number in range(30):
            assert list(pool.map(open_one, [tmp_path / f"{number}.sqlite"] * 6)) == [None] * 6
