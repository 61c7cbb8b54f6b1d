"""Which process holds a reservation, whether it still runs, and who may go on with what a dead one left open.

Work that did not complete is charged again when it is repeated, but for that.
docs/proofs/takeover.md says why.
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


def this_process() -> str:
    """Name this process so that no other, before or after a restart of the machine, has the same name.

    It is "boot id:process id namespace:process id:start time", or "" where /proc does not tell.
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
    """Say what became of the process that `this_process` named so, there.

    It is `dead` only if it is known to be gone: its namespace is ours, and no process of its id, or
    a later one, runs there. `machine restarted` if the boot id is not ours (some containers have a
    boot id of their own, and then the process may still run). `unknown` if it is of another
    namespace, or /proc does not tell.
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


def is_worked_on(reservation: Reservation) -> bool:
    """Say whether a reservation is open and the process that holds it is known to be at work on it."""
    if reservation.state != "reserved" or reservation.interrupted:
        return False
    return process_status(reservation.process) == "running"


def may_take_over(reservation: Reservation) -> bool:
    """Say whether a reservation is open, its holder is known to be dead, and no reply of it can have been sent."""
    if reservation.state != "reserved" or reservation.takeovers >= MOST_TAKEOVERS:
        return False
    status = process_status(reservation.process)
    return status == "dead" or (status == "machine restarted" and reservation.durability == "full")


def _state_and_start_time(process_id: int) -> tuple[str, str]:
    # The command name may hold blanks and brackets; what follows its last bracket does not.
    fields = (_PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], fields[19]
