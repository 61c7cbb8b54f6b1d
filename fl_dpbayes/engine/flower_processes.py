"""The processes that Flower and Ray leave behind: found by their ancestors or their environment, and ended."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

END_SECONDS = 10.0


def end(process: subprocess.Popen, home: Path) -> None:
    """End a SuperLink with all that it started."""
    # Ray renames some of its processes, which overwrites the start of their environment, so the
    # tree is read as well.
    tree = descendants(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    kill(
        {number for number, started in tree.items() if _parent_and_start(number)[1] == started}
        | processes_of(home)
    )
    process.wait()


def descendants(ancestor: int) -> dict[int, int]:
    """Return the processes below `ancestor` with their start times, which tell a reused number apart."""
    known = {
        int(entry.name): _parent_and_start(int(entry.name))
        for entry in Path("/proc").glob("[0-9]*")
    }
    found, generation = dict[int, int](), {ancestor}
    while generation:
        generation = {
            number
            for number, (parent, _) in known.items()
            if parent in generation and number not in found
        }
        found |= {number: known[number][1] for number in generation}
    return found


def _parent_and_start(process: int) -> tuple[int, int]:
    try:
        # The command name may hold blanks and brackets; what follows its last bracket does not.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1, -1
    return int(fields[1]), int(fields[19])


def processes_of(home: Path) -> set[int]:
    """Return the processes that were started with this FLWR_HOME.

    Flower and Ray put their programs into sessions of their own and let some outlive their parents;
    all of them inherit the variable.
    """
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={home}\0".encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def kill(processes: set[int]) -> None:
    """Kill processes, where they still are."""
    for number in processes:
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)
