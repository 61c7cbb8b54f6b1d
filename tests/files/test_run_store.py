"""A run's store: what was put comes back, what no entry ends goes, and nothing in it is trusted."""

import json
import os
import shutil
import sqlite3
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.errors import UserError
from fl_dpbayes.files.run_store import STORE_FILE, RunStore
from fl_dpbayes.files.sqlite_chain import connect
from tests.asking import refused
from tests.killed import killed_at_call, killed_at_size

VALUES = {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "b": np.full((3,), 0.5)}


def put_round(store: RunStore, number: int, sites: int = 2, size: int = 2) -> None:
    for site in range(sites):
        arrays = {"w": np.full((2, size), number, np.float32), "weights": np.ones(2)}
        store.add_samples(f"site-{site}", 0, number, arrays)
        store.replace_state(f"site-{site}", 0, number, {"w": np.full(size, number, np.float32)})


def stored(folder: Path) -> tuple[list[int], list[float], list[int]]:
    """Return the rounds of entries, the newest state's value, and the rounds of samples."""
    with RunStore.open(folder) as store:
        states = [float(arrays.read()["w"][0]) for arrays in store.states("site-0")]
        return store.values("round"), states, [arrays.round for arrays in store.samples("site-0")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run directory whose store has three rounds."""
    folder = tmp_path / "run"
    folder.mkdir()
    with RunStore.make(folder) as store:
        store.append(partition={"units": {"north": 3}})
        for number in (1, 2, 3):
            put_round(store, number)
            store.append(round=number)
    return folder


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    with RunStore.make(tmp_path) as store:
        store.append(name="a\nb\u2028é", number=1)
        store.append(number=2)
        flipped = {name: values[::-1] for name, values in VALUES.items()}
        empty = {"none": np.zeros((0, 4), np.float32), "scalar": np.array(3.0)}
        store.add_samples("north", 1, 7, flipped)
        store.replace_state("north", 0, 7, empty)
        store.append()
    with RunStore.open(tmp_path, to_read=True) as store:
        assert (store.latest("name"), store.values("number")) == ("a\nb\u2028é", [1, 2])
        assert (store.latest("other"), store.values("other")) == (None, [])
        (samples,) = store.samples("north")
        assert (samples.chain, samples.round) == (1, 7)
        for name, values in samples.read().items():
            np.testing.assert_array_equal(values, flipped[name])
            assert (values.dtype, values.flags.writeable) == (VALUES[name].dtype, True)
        assert list(samples.read(names=["w"])) == ["w"]
        read = store.state("north", 0).read()
        assert (read["none"].shape, float(read["scalar"])) == ((0, 4), 3.0)
        assert store.state("north", 1) is None
        refused("cannot be written", store.append)


def test_what_no_entry_ends_is_gone_when_the_file_is_opened_again(folder: Path) -> None:
    expected = ([1, 2, 3], [3.0], [1, 2, 3])
    assert stored(folder) == expected
    with RunStore.open(folder) as store:
        put_round(store, 4)
        assert float(store.state("site-0", 0).read()["w"][0]) == 4
    assert stored(folder) == expected


def test_a_store_is_begun_anew_until_its_run_has_begun(folder: Path, tmp_path: Path) -> None:
    with RunStore.make(tmp_path) as store:
        store.append(name="first")
        store.clear()
    with RunStore.open(tmp_path) as store:
        assert store.values("name") == ["first"]
        store.clear()
        store.append(name="second")
    with RunStore.open(tmp_path) as store:
        assert store.values("name") == ["second"]
    with RunStore.open(folder) as store:
        refused(f"{folder} holds a run that has begun: give another folder", store.clear)
    assert stored(folder)[0] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize(
    ("killed", "step"), [(killed_at_call, 5), (killed_at_size, 2048)], ids=["call", "byte"]
)
def test_a_kill_at_any_instant_leaves_whole_rounds(folder: Path, killed, step: int) -> None:
    ends = set()
    is_killed = True
    number = 0
    generator = np.random.default_rng(0)
    while is_killed:
        number += int(generator.integers(1, 2 * step))
        copy = Path(shutil.copytree(folder, folder.with_name("killed")))
        is_killed = killed(number, partial(work_on, copy))
        rounds = stored(copy)
        ends.add(rounds[0][-1])
        assert rounds in (
            ([1, 2, 3], [3.0], [1, 2, 3]),
            ([1, 2, 3, 4], [4.0], [1, 2, 3, 4]),
        )
        shutil.rmtree(copy)
    assert (ends, number > 20 * step) == ({3, 4}, True)


def work_on(folder: Path) -> None:
    with RunStore.open(folder) as store:
        put_round(store, 4, size=3000)
        store.append(round=4)


@pytest.mark.parametrize("copies_journal", [True, False])
def test_a_copy_of_a_store_in_the_midst_of_a_round(folder: Path, copies_journal: bool) -> None:
    copy = folder.with_name("copy")
    with RunStore.open(folder) as store:
        # More than SQLite keeps in memory: half of it is in the file.
        put_round(store, 4, sites=3, size=2**19)
        copy.mkdir()
        shutil.copy(folder / STORE_FILE, copy)
        if copies_journal:
            shutil.copy(folder / f"{STORE_FILE}-journal", copy)
    if copies_journal:
        assert stored(copy) == ([1, 2, 3], [3.0], [1, 2, 3])
    else:
        refused("is not as it was written", stored, copy)


def test_two_processes_are_kept_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_dpbayes.files.run_store._LOCK_SECONDS", 0.05)
    with RunStore.open(folder) as first, RunStore.open(folder) as second:
        put_round(first, 4)
        refused(f"another process works on {folder}: wait for it", put_round, second, 4)
        first.append(round=4)
        refused("another process works on", put_round, second, 4)
    assert stored(folder)[0] == [1, 2, 3, 4]


def test_a_full_disk_is_told_in_one_line_and_leaves_the_last_round(folder: Path) -> None:
    with RunStore.open(folder) as store:
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages + 3}")
        refused(
            rf"^{folder / STORE_FILE} cannot be written \(No space left on device\): free space on "
            "its disk$",
            put_round,
            store,
            number=4,
            size=4000,
        )
    assert stored(folder) == ([1, 2, 3], [3.0], [1, 2, 3])


@pytest.mark.slow
def test_every_flipped_bit_is_found_or_lies_where_nothing_is(folder: Path) -> None:
    path = folder / STORE_FILE
    good = path.read_bytes()
    told = []
    places = range(0, len(good), 23)
    for place in places:
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
        try:
            assert stored(folder) == ([1, 2, 3], [3.0], [1, 2, 3])
        except UserError as error:
            told.append(str(error))
    assert len(told) > len(places) / 5
    assert all(text.startswith(f"{path} is not as it was written (") for text in told)
    assert not any("\n" in text for text in told)
    for content in (good[:-1], good[: len(good) // 2], b"", b"\xff" * 4096):
        path.write_bytes(content)
        refused("is not as it was written", stored, folder)


EVERY = "UPDATE arrays SET "
HOSTILE: dict[str, str] = {
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON chain BEGIN DELETE FROM arrays; END",
    "a view": "CREATE VIEW v AS SELECT 1",
    "another table": "CREATE TABLE t (x)",
    "a lost index": "DROP INDEX arrays_by_owner",
    "another version": "PRAGMA user_version = 9",
    "another application": "PRAGMA application_id = 9",
    "a log": "PRAGMA journal_mode = WAL",
    "a lost entry": "DELETE FROM chain WHERE position = 2",
    "the last entry lost": "DELETE FROM chain WHERE position = 4",
    "an entry of bytes": "UPDATE chain SET content = zeroblob(9)",
    "samples lost": "DELETE FROM arrays WHERE kind = 'samples' AND round = 2",
    "a state lost": "DELETE FROM arrays WHERE kind = 'state' AND owner = 'site-1'",
    "a round of text": EVERY + "round = 'x'",
    "a text of bytes": EVERY + "owner = x'ff'",
    "a text that is none": EVERY + "owner = CAST(x'ff' AS TEXT)",
    "another kind": EVERY + "kind = 'x'",
    "other samples": EVERY + "body = zeroblob(length(body))",
    "a body of text": EVERY + "body = 'x'",
}


@pytest.mark.parametrize("statement", HOSTILE.values(), ids=list(HOSTILE))
def test_what_is_no_store_of_a_run_is_refused(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / STORE_FILE) as connection:
        connection.execute(statement)
    connection.close()
    for how in (RunStore.open, partial(RunStore.open, to_read=True)):
        refused(
            f"^{folder / STORE_FILE} is not as it was written .*in privacy.csv and .*$", how, folder
        )


# How SQLite ends a journal: with the name of a file, which it deletes after rolling back.
NAME_END = bytes.fromhex("d9d505f920a163d7")


def journal_naming(store: Path, named: Path) -> bytes:
    """Return a journal for the store that restores nothing, and names a file."""
    pages = store.stat().st_size // 4096
    header = NAME_END + struct.pack(">IIIII", 0, 1, pages, 512, 4096)
    name = bytes(named)
    end = struct.pack(">II", len(name), sum(name)) + NAME_END
    return header.ljust(512, b"\0") + struct.pack(">I", 2**30 // 4096 + 1) + name + end


def test_no_journal_of_a_stranger_deletes_a_file(folder: Path) -> None:
    named = folder.with_name("other")
    named.touch()
    store = folder / STORE_FILE
    store.with_name("run.sqlite-journal").write_bytes(journal_naming(store, named))
    refused(f"^{store} .*run.sqlite-journal beside it names a file", RunStore.open, folder)
    assert named.exists()


def test_a_journal_that_another_process_ends_meanwhile_is_no_error(folder: Path) -> None:
    # It was seen, and gone before it was opened.
    store = folder / STORE_FILE
    journal = store.with_name("run.sqlite-journal")
    stops = threading.Event()

    def begin_and_end() -> None:
        while not stops.is_set():
            journal.write_bytes(b"a transaction")
            journal.unlink()

    with ThreadPoolExecutor(1) as pool:
        other_process = pool.submit(begin_and_end)
        try:
            for _ in range(3000):
                connect(store, "ro", timeout=1.0).close()
        finally:
            stops.set()
        other_process.result()


@pytest.mark.parametrize("ending", ["journal", "wal", "shm"])
@pytest.mark.parametrize("to_read", [True, False])
def test_what_is_no_plain_file_beside_a_store_is_refused(
    folder: Path, ending: str, to_read: bool
) -> None:
    open_store = partial(RunStore.open, to_read=to_read)
    beside = folder / f"{STORE_FILE}-{ending}"
    # SQLite would write where the link leads.
    beside.symlink_to(folder.with_name("elsewhere"))
    refused(f"{beside.name} beside it is no plain file", open_store, folder)
    beside.unlink()
    # It would wait for ever for somebody who writes into a pipe.
    os.mkfifo(beside)
    refused(f"{beside.name} beside it is no plain file", open_store, folder)


def test_a_trigger_with_the_name_of_a_table_is_refused(folder: Path) -> None:
    trigger = "CREATE TRIGGER arrays AFTER INSERT ON chain BEGIN DELETE FROM arrays; END"
    connection = sqlite3.connect(folder / STORE_FILE, isolation_level=None)
    tables = connection.execute("SELECT * FROM sqlite_master ORDER BY name DESC").fetchall()
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("DELETE FROM sqlite_master")
    # The table is named last.
    for row in (tables[0], ("trigger", "arrays", "chain", 0, trigger), tables[2], tables[1]):
        connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", row)
    connection.close()
    refused("it is no store of this version", RunStore.open, folder)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chain SET content = CAST(x'ff1b5b324a07' AS TEXT)",
        "UPDATE arrays SET layout = CAST(x'ff1b5b324a07' AS TEXT), owner = CAST(x'ff1b' AS TEXT)",
        "INSERT INTO sqlite_master VALUES ('table', char(27) || '[2J', 'x', 99, 'CREATE TABLE x')",
    ],
)
def test_a_refusal_sends_no_sequence_of_a_stranger_to_a_terminal(
    folder: Path, statement: str
) -> None:
    connection = sqlite3.connect(folder / STORE_FILE, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(statement)
    connection.close()
    with pytest.raises(UserError, match="is not as it was written") as refusal:
        RunStore.open(folder)
    assert str(refusal.value).isprintable()


def test_names_of_tables_are_not_read_without_end(folder: Path) -> None:
    connection = sqlite3.connect(folder / STORE_FILE, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) "
        "INSERT INTO sqlite_master SELECT 'view', 'v' || i, 'v' || i, 0, "
        "'CREATE VIEW v' || i || ' AS SELECT 1' FROM n"
    )
    connection.close()
    refused(r"not as it was written \(interrupted\)", RunStore.open, folder)


def test_a_store_does_not_say_how_much_memory_its_reader_takes(folder: Path) -> None:
    with sqlite3.connect(folder / STORE_FILE) as connection:
        connection.execute("PRAGMA default_cache_size = 2000000")
    connection.close()
    with RunStore.open(folder, to_read=True) as store:
        (kibibytes,) = store._connection.execute("PRAGMA cache_size").fetchone()
    assert kibibytes == -2000


FORM = {"name": "w", "type": "float32", "shape": [2]}
LAYOUTS: dict[str, object] = {
    "no list": 3,
    "another type": [FORM | {"type": "O"}],
    "too large": [FORM | {"shape": [3]}],
    "beyond all bounds": [FORM | {"shape": [2**62, 2**62]}],
    "below zero": [FORM | {"shape": [-1, -2]}],
    "nothing times too much": [FORM, FORM | {"shape": [0, 2**62, 2**62]}],
    "many axes": [FORM | {"shape": [1] * 40 + [2]}],
    "more": [FORM | {"more": 1}],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
def test_a_layout_that_does_not_fit_is_refused_when_arrays_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: object
) -> None:
    # As a stranger would write it, with hashes that fit.
    text = json.dumps(layout)
    with monkeypatch.context() as patch, RunStore.make(tmp_path) as store:
        patch.setattr(
            "fl_dpbayes.files.run_store.json.dumps",
            lambda value, **keys: (
                text if isinstance(value, list) and keys else json_dumps(value, **keys)
            ),
        )
        store.replace_state("site", 0, 1, {"w": np.ones(2, np.float32)})
        store.append()
    with RunStore.open(tmp_path, to_read=True) as store:
        state = store.state("site", 0)
        refused("is not as it was written", state.read)


json_dumps = json.dumps


@pytest.mark.parametrize("value", [1e300, -3.5e38, np.inf, np.nan])
def test_a_value_beyond_float32_is_refused_when_it_is_read(tmp_path: Path, value: float) -> None:
    with RunStore.make(tmp_path) as store:
        store.replace_state("site", 0, 1, {"w": np.full(2, value)})
        refused("'w' has a value that is not finite, or beyond", store.state("site", 0).read)
