"""Which process holds a reservation, and who may go on with what a dead one left open.

Work that did not complete is charged again when it is repeated, unless it is taken over.
docs/proofs/takeover.md says why that is sound.
"""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Literal

from fl_dpbayes.privacy.ledger.state import Reservation

MOST_TAKEOVERS = 3
ProcessStatus = Literal["running", "dead", "machine restarted", "unknown"]
_PROC = Path("/proc")
# At most seven digits: the kernel gives no higher process id. Id 0 would ask for this process's
# whole group.
_NAME = re.compile(
    r"(?P<boot>[^:]+):(?P<namespace>[0-9]+):(?P<process_id>[1-9][0-9]{0,6}):(?P<start_time>[0-9]+)"
)
# Zombies and processes that are being removed work on nothing.
_ENDED_STATES = "ZX"


def this_process() -> str:
    """Name this process.

    No other process, before or after a restart of the machine, has the same name.

    Returns:
        "boot id:process id namespace:process id:start time", or "" where /proc does not tell.
    """
    return _name_of(os.getpid(), _PROC)


@lru_cache(maxsize=1)
def _name_of(process_id: int, proc: Path) -> str:
    try:
        # A /proc that was mounted for another namespace tells of other processes under our numbers.
        if os.readlink(proc / "self") != str(process_id):
            return ""
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (proc / "self/ns/pid").stat().st_ino
        _, start_time = _state_and_start_time(process_id)
    except OSError:
        return ""
    return f"{boot}:{namespace}:{process_id}:{start_time}"


def process_status(name: str) -> ProcessStatus:
    """Say what became of a process.

    Args:
        name: As `this_process` gave it in that process.

    Returns:
        `dead` only if it is known to be gone: its namespace is ours, and no process of its id, or
        a later one, runs there. `machine restarted` if the boot id is not ours (some containers
        have a boot id of their own, and then the process may still run). `unknown` if it is of
        another namespace, or /proc does not tell.
    """
    process = _NAME.fullmatch(name)
    ours = _NAME.fullmatch(this_process())
    if process is None or ours is None:
        return "unknown"
    if process["boot"] != ours["boot"]:
        return "machine restarted"
    if process["namespace"] != ours["namespace"]:
        return "unknown"
    process_id = int(process["process_id"])
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
    if start_time != process["start_time"] or state in _ENDED_STATES:
        return "dead"
    return "running"


def is_worked_on(reservation: Reservation) -> bool:
    """Say whether a reservation is open and its process is known to be at work on it."""
    if reservation.state != "reserved" or reservation.interrupted:
        return False
    return process_status(reservation.process) == "running"


def may_take_over(reservation: Reservation) -> bool:
    """Say whether a reservation is open, its holder known to be dead, and surely no reply sent."""
    if reservation.state != "reserved" or reservation.takeovers >= MOST_TAKEOVERS:
        return False
    status = process_status(reservation.process)
    return status == "dead" or (status == "machine restarted" and reservation.durability == "full")


def _state_and_start_time(process_id: int) -> tuple[str, str]:
    # The command name may hold blanks and brackets; what follows its last bracket does not.
    fields = (_PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]
