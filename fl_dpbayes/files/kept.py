"""A cache of what was read of files, valid in this process while the files stay as they were.

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
# A file system's clock may stand still for so long: two changes within it show the same time.
SETTLED_NS = 2 * 10**9


def _memory_share() -> int:
    """Return a quarter of the machine's memory over one process a processor, 1 GiB at most."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(2**30, memory // (4 * (os.cpu_count() or 1)))


MOST_BYTES = _memory_share()

State = tuple[int, ...]
# Texts where there are many: to make an object for each takes longer than to look at the file.
AnyPath = str | Path

_LOCK = threading.Lock()
# A process that is forked while another thread holds it would wait for ever.
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)


def files_below(places: Iterable[Path]) -> set[Path]:
    """Return files and folders with all that is below them.

    What is behind links counts too, as what reads them follows links.
    """
    paths = set()
    for place in places:
        paths.add(place)
        for folder, folder_names, file_names in os.walk(place, followlinks=True):
            paths.update(Path(folder, name) for name in (*folder_names, *file_names))
    return paths


@dataclass
class _Entry:
    """A value with what it was made of, by which a later look tells whether it still holds.

    `digests` are those of files whose times were fresh when they were read.
    """

    value: Any
    bytes: int
    states: dict[AnyPath, State]
    digests: dict[AnyPath, str]
    source: Callable[[], object]

    def holds(self, states: dict[AnyPath, State], source: object) -> bool:
        """Say whether files and object are those that the value was made of."""
        if self.source() is not source or self.states != states:
            return False
        if any(_digest(path) != digest for path, digest in self.digests.items()):
            return False
        # Once a file's times are old, they alone tell.
        self.digests = {
            path: digest for path, digest in self.digests.items() if _is_fresh(states[path])
        }
        return True


class Kept:
    """Values by key, each with the files that it was read from.

    A file counts as unchanged if place on the disk, size, times of content and of status are (no
    program can set the last of these back). Where they were fresh when it was read, its SHA-256 is
    compared as well. A write through a memory map that was open before changes no time and is not
    seen.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Make an empty cache whose values take at most `most_bytes` together."""
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries = OrderedDict[Hashable, _Entry]()

    def get(
        self,
        key: Hashable,
        load: Callable[[], T],
        size: Callable[[T], int],
        files: Iterable[AnyPath] = (),
        of: object = None,
    ) -> T:
        """Return the value of a key, loaded now unless it was before and no file has changed since.

        Args:
            key: Under which the value is found again.
            load: Makes the value.
            size: Tells how many bytes a value takes.
            files: All that `load` reads; a folder stands for the names in it.
            of: An object that the value was made of; another one counts as a change.

        Returns:
            What `load` returned.
        """
        states = {path: _state(path) for path in files}
        entry = self._valid_entry(key, states, of)
        if entry is not None:
            cached: T = entry.value
            return cached
        # State and digest are taken before loading: what changes meanwhile has another state at
        # the next look.
        digests = {path: _digest(path) for path, state in states.items() if _is_fresh(state)}
        value = load()
        entry = _Entry(
            value=value,
            bytes=size(value),
            states=states,
            digests=digests,
            source=_no_source if of is None else weakref.ref(of),
        )
        self._store(key, entry)
        return value

    def put(self, key: Hashable, value: object, size: int, files: Iterable[AnyPath]) -> None:
        """Store a value with files that hold it now, because this process has just written them.

        Args:
            key: Under which `look` finds it.
            value: To be stored.
            size: Bytes that it takes.
            files: Which hold it.
        """
        states = {path: _state(path) for path in files}
        entry = _Entry(value=value, bytes=size, states=states, digests={}, source=_no_source)
        self._store(key, entry)

    def look(self, key: Hashable, files: Iterable[AnyPath]) -> Any:
        """Return what was put; None if there is nothing or a file has changed since."""
        entry = self._valid_entry(key, {path: _state(path) for path in files}, None)
        return None if entry is None else entry.value

    def clear(self) -> None:
        """Forget everything."""
        with _LOCK:
            self._entries.clear()
            self._bytes = 0

    def _valid_entry(
        self, key: Hashable, states: dict[AnyPath, State], source: object
    ) -> _Entry | None:
        with _LOCK:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
        if entry is None or not entry.holds(states, source):
            return None
        return entry

    def _store(self, key: Hashable, entry: _Entry) -> None:
        with _LOCK:
            replaced = self._entries.pop(key, None)
            if replaced is not None:
                self._bytes -= replaced.bytes
            if entry.bytes > self._most_bytes:
                return
            self._entries[key] = entry
            self._bytes += entry.bytes
            while self._bytes > self._most_bytes:
                _, least_recent = self._entries.popitem(last=False)
                self._bytes -= least_recent.bytes


KEPT = Kept()


def _no_source() -> None:
    return None


def _state(path: AnyPath) -> State:
    try:
        status = os.stat(path)
    except OSError:
        # Whoever reads it says what is wrong.
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_fresh(state: State) -> bool:
    """Say whether a file's times of content or status are so new that they cannot tell alone."""
    return bool(state) and max(state[3:]) > time.time_ns() - SETTLED_NS


def _digest(path: AnyPath) -> str:
    try:
        if os.path.isdir(path):
            return hashlib.sha256("\0".join(sorted(os.listdir(path))).encode()).hexdigest()
        return file_sha256(Path(path))
    except OSError:
        return ""
