"""What was read of files, kept in this process while they stay as they were.

The least recently used goes first.
"""

import hashlib
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fl_dpbayes.files.atomic_file import file_sha256

T = TypeVar("T")
# A file system's clock may stand still for so long: what changed twice within it shows no other
# time.
SETTLED_NS = 2 * 10**9
# A quarter of the machine's memory over all its processors' processes, and a gibibyte at most.
MOST_BYTES = min(
    2**30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (4 * (os.cpu_count() or 1))
)

State = tuple[int, ...]

_LOCK = threading.Lock()
# A process that is forked while another thread holds it would wait for ever.
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)


def files_below(places: Iterable[Path]) -> set[Path]:
    """Return files and folders with all that is below them, behind links too, as what reads them follows links."""
    walks = [walk for place in places for walk in os.walk(place, followlinks=True)]
    return {
        *places,
        *(Path(folder, name) for folder, *below in walks for names in below for name in names),
    }


@dataclass
class _Entry:
    value: Any
    bytes: int
    files: dict[Path, State]
    digests: dict[Path, str]
    of: Callable[[], object]

    def holds(self, files: dict[Path, State], of: object) -> bool:
        """Say whether files and object are those that the value was made of."""
        if self.of() is not of or self.files != files:
            return False
        if any(_digest(path) != digest for path, digest in self.digests.items()):
            return False
        # Once its times are old, they alone tell.
        self.digests = {
            path: digest for path, digest in self.digests.items() if _is_fresh(files[path])
        }
        return True


class Kept:
    """Values by key, each with the files that it was read from, at most `most_bytes` together.

    A file counts as unchanged if place on the disk, size, times of content and of status are (no
    program can set the last of these back). Where they were fresh when it was read, its SHA-256 is
    compared as well. A write through a memory map that was open before changes no time and is not
    seen.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._bytes, self._entries = most_bytes, 0, OrderedDict[Hashable, _Entry]()

    def get(
        self,
        key: Hashable,
        load: Callable[[], T],
        size: Callable[[T], int],
        files: Iterable[Path] = (),
        of: object = None,
    ) -> T:
        """Return what `load` returned for this key, unless a file has changed since.

        Else load it now.

        `size`: bytes that a value takes. `files`: all that `load` reads; a folder stands for the
        names in it. `of`: an object that the value was made of; another one counts as a change.
        """
        states = {path: _state(path) for path in files}
        if (entry := self._found(key, states, of)) is not None:
            found: T = entry.value
            return found
        digests = {path: _digest(path) for path, state in states.items() if _is_fresh(state)}
        value = load()
        # What changes meanwhile has another state at the next look.
        made_of = _nothing if of is None else weakref.ref(of)
        self._keep(key, _Entry(value, size(value), states, digests, made_of))
        return value

    def put(self, key: Hashable, value: object, size: int, files: Iterable[Path]) -> None:
        """Keep a value of so many bytes with files that hold it now, because this process has just written them."""
        self._keep(key, _Entry(value, size, {path: _state(path) for path in files}, {}, _nothing))

    def look(self, key: Hashable, files: Iterable[Path]) -> Any:
        """Return what was put, None if there is nothing or a file has changed since."""
        entry = self._found(key, {path: _state(path) for path in files}, None)
        return None if entry is None else entry.value

    def clear(self) -> None:
        """Forget everything."""
        with _LOCK:
            self._entries.clear()
            self._bytes = 0

    def _found(self, key: Hashable, states: dict[Path, State], of: object) -> _Entry | None:
        with _LOCK:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        return entry if entry is not None and entry.holds(states, of) else None

    def _keep(self, key: Hashable, entry: _Entry) -> None:
        with _LOCK:
            if (before := self._entries.pop(key, None)) is not None:
                self._bytes -= before.bytes
            if entry.bytes > self._most:
                return
            self._entries[key] = entry
            self._bytes += entry.bytes
            while self._bytes > self._most:
                self._bytes -= self._entries.popitem(last=False)[1].bytes


KEPT = Kept()


def _nothing() -> None:
    return None


def _state(path: Path) -> State:
    try:
        at = os.stat(path)
    except OSError:
        # Whoever reads it says what is wrong.
        return ()
    return at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns


def _is_fresh(state: State) -> bool:
    return bool(state) and max(state[3:]) > time.time_ns() - SETTLED_NS


def _digest(path: Path) -> str:
    try:
        if path.is_dir():
            return hashlib.sha256("\0".join(sorted(os.listdir(path))).encode()).hexdigest()
        return file_sha256(path)
    except OSError:
        return ""
