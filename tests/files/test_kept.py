"""What is kept of files in a process: loaded once, and anew whenever a file is not as it was."""

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fl_dpbayes.files import kept
from fl_dpbayes.files.kept import Kept, files_below


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "records"
    path.write_text("one")
    return path


def settle(path: Path, monkeypatch) -> None:
    """Let the clock be far beyond a file's times, so that they alone must tell."""
    monkeypatch.setattr(
        kept, "time", SimpleNamespace(time_ns=lambda: path.stat().st_ctime_ns + 10**12)
    )


def text(store: Kept, path: Path, **about) -> str:
    return store.get("key", path.read_text, len, [path], **about)


def same_times(path: Path, content: str) -> None:
    """Write as many bytes as were there, and put the time of the content back."""
    at = path.stat()
    path.write_text(content)
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))


def other_file(path: Path, content: str) -> None:
    at = path.stat()
    beside = path.with_name("beside")
    beside.write_text(content)
    os.utime(beside, ns=(at.st_atime_ns, at.st_mtime_ns))
    beside.replace(path)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_file_is_read_once_while_it_stays_as_it_was(file, monkeypatch, fresh):
    if not fresh:
        settle(file, monkeypatch)
    loads = []
    store = Kept()
    for _ in range(3):
        assert store.get("key", lambda: loads.append(1) or file.read_text(), len, [file]) == "one"
    assert len(loads) == 1


@pytest.mark.parametrize("change", [Path.write_text, same_times, other_file])
@pytest.mark.parametrize("fresh", [True, False])
def test_a_changed_file_is_read_anew_even_if_its_size_and_time_were_put_back(
    file, monkeypatch, fresh, change
):
    if not fresh:
        settle(file, monkeypatch)
    store = Kept()
    assert text(store, file) == "one"
    before = file.stat()
    change(file, "two")
    assert text(store, file) == "two"
    change(file, "three")
    assert text(store, file) == "three"
    assert change is Path.write_text or file.stat().st_mtime_ns == before.st_mtime_ns
    file.unlink()
    with pytest.raises(FileNotFoundError):
        text(store, file)


def test_where_the_times_stand_still_the_content_tells(file, monkeypatch):
    # A file system whose clock ticks seldom: two writes within a tick have one time.
    monkeypatch.setattr(kept, "_state", lambda path: (1, 1, 3, 5, 10**30))
    store = Kept()
    assert text(store, file) == "one"
    file.write_text("two")
    assert text(store, file) == "two"


def test_what_changes_while_it_is_read_is_not_kept(file):
    store = Kept()
    assert store.get("key", lambda: (file.write_text("later"), "one")[1], len, [file]) == "one"
    assert text(store, file) == "later"


def test_a_folder_is_the_names_in_it_and_another_object_is_a_change(tmp_path):
    store = Kept()
    one = Kept()
    other = Kept()
    assert store.get("names", lambda: sorted(os.listdir(tmp_path)), len, [tmp_path]) == []
    (tmp_path / "new").touch()
    assert store.get("names", lambda: sorted(os.listdir(tmp_path)), len, [tmp_path]) == ["new"]
    assert [
        store.get("key", lambda of=of: id(of), lambda _: 1, of=of) for of in (one, one, other)
    ] == [
        id(one),
        id(one),
        id(other),
    ]


def test_what_lies_behind_a_link_is_below_a_folder_too(tmp_path):
    (disk := tmp_path / "disk").mkdir()
    (disk / "scan.png").touch()
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "sick").symlink_to(disk)
    records = tmp_path / "records"
    assert files_below([records]) == {records, records / "sick", records / "sick" / "scan.png"}


def test_the_least_recently_used_goes_where_there_is_too_much():
    store = Kept(most_bytes=3)
    loads = list[str]()

    def get(key: str, size: int = 1) -> None:
        store.get(key, lambda: loads.append(key), lambda _: size)

    for key in ("a", "b", "c", "a", "d", "a", "b"):
        get(key)
    assert loads == ["a", "b", "c", "d", "b"]
    get("too large", 4)
    get("too large", 4)
    assert loads[5:] == ["too large"] * 2
    get("a")
    assert len(loads) == 7


@pytest.mark.filterwarnings("ignore:This process")
def test_a_process_that_is_forked_while_another_thread_looks_can_look_too():
    store = Kept()
    held = threading.Event()

    def hold() -> None:
        with kept._LOCK:
            held.set()
            time.sleep(0.2)

    (thread := threading.Thread(target=hold)).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        store.get("key", lambda: 1, lambda _: 1)
        os._exit(0)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
