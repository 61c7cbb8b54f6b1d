"""Which process holds a reservation, and whether it still runs."""

import os
import re
from pathlib import Path
from typing import Literal

ProcessStatus = Literal["running", "dead", "machine restarted", "unknown"]
_PROC = Path("/proc")
# At most seven digits: the kernel gives no higher process id. Id 0 would ask for this process's whole group.
_NAME = re.compile(r"(?P<boot>[^:]+):(?P<namespace>[0-9]+):(?P<process_id>[1-9][0-9]{0,6}):(?P<start_time>[0-9]+)")


def this_process() -> str:
    """Name this process so that no other, before or after a restart of the machine, has the same name.

    Returns:
        "boot id:process id namespace:process id:start time", or "" where /proc does not tell.
    """
    process_id = os.getpid()
    try:
        # A /proc that was mounted for another namespace tells of other processes under our numbers.
        if os.readlink(_PROC / "self") != str(process_id):
            return ""
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
        _, start_time = _state_and_start_time(process_id)
    except OSError:
        return ""
    return f"{boot}:{namespace}:{process_id}:{start_time}"


def process_status(name: str) -> ProcessStatus:
    """Say what became of the process of that name.

    Args:
        name: from `this_process`, there.

    Returns:
        `dead` only if it is known to be gone: its namespace is ours, and no process of its id, or a later one, runs
        there. `machine restarted` if the boot id is not ours (some containers have a boot id of their own, and then
        the process may still run). `unknown` if it is of another namespace, or /proc does not tell.
    """
    there, here = _NAME.fullmatch(name), _NAME.fullmatch(this_process())
    if there is None or here is None:
        return "unknown"
    if there["boot"] != here["boot"]:
        return "machine restarted"
    if there["namespace"] != here["namespace"]:
        return "unknown"
    process_id = int(there["process_id"])
    try:
        # A /proc mounted with hidepid does not show what runs; signal 0 tells, and does nothing.
        os.kill(process_id, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        pass
    try:
        state, start_time = _state_and_start_time(process_id)
    except OSError:
        return "unknown"
    return "running" if start_time == there["start_time"] and state not in "ZX" else "dead"


def _state_and_start_time(process_id: int) -> tuple[str, str]:
    # The command name may hold blanks and brackets; what follows its last bracket does not.
    fields = (_PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]
