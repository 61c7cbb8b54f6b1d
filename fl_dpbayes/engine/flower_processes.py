"""Finds processes that Flower and Ray leave behind, by ancestor or environment, and ends them."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

END_SECONDS = 10.0
# Fields of /proc/<number>/stat after the command's name.
PARENT_FIELD = 1
START_FIELD = 19


class ProcessStatus(NamedTuple):
    """The parent and start time of a process; both -1 where it has ended."""

    parent: int
    start: int


def end(process: subprocess.Popen, home: Path) -> None:
    """End a SuperLink with all that it started.

    Args:
        process: The SuperLink.
        home: Its folder, which its processes know as FLWR_HOME.
    """
    # Ray renames some of its processes, which overwrites the start of their environment, so the
    # tree is read as well.
    tree = descendants(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    alive = {number for number, start in tree.items() if _status(number).start == start}
    kill(alive | processes_of(home))
    process.wait()


def descendants(ancestor: int) -> dict[int, int]:
    """Find the processes below another one.

    Args:
        ancestor: Its number.

    Returns:
        Number -> start time, which tells a reused number apart.
    """
    numbers = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    processes = {number: _status(number) for number in numbers}
    below: dict[int, int] = {}
    generation = {ancestor}
    while generation:
        generation = {
            number
            for number, status in processes.items()
            if status.parent in generation and number not in below
        }
        below |= {number: processes[number].start for number in generation}
    return below


def processes_of(home: Path) -> set[int]:
    """Find the processes that were started with this FLWR_HOME.

    Flower and Ray put their programs into sessions of their own and let some outlive their parents;
    all of them inherit the variable.
    """
    variable = f"FLWR_HOME={home}\0".encode()
    processes = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable in (entry / "environ").read_bytes():
                processes.add(int(entry.name))
    return processes


def kill(processes: set[int]) -> None:
    """Kill processes, where they still are."""
    for number in processes:
        with suppress(OSError):
            os.kill(number, signal.SIGKILL)


def _status(process: int) -> ProcessStatus:
    try:
        # The command name may hold blanks and brackets; what follows its last bracket does not.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ProcessStatus(parent=-1, start=-1)
    return ProcessStatus(parent=int(fields[PARENT_FIELD]), start=int(fields[START_FIELD]))
