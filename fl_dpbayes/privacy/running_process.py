"""Which process holds a reservation, and whether it still runs."""

import os
from pathlib import Path

_PROC = Path("/proc")


def this_process() -> str:
    """Name this process so that no other, before or after a restart of the machine, has the same name.

    Returns:
        "boot id:process id:start time", or "" where /proc does not tell.
    """
    return _name(os.getpid())


def is_running(name: str) -> bool:
    """Say whether the process of that name runs on this machine; False where it cannot be known."""
    parts = name.split(":")
    return len(parts) == 3 and parts[1].isdigit() and _name(int(parts[1])) == name


def _name(process_id: int) -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        # The command name may hold blanks and brackets; what follows its last bracket does not.
        fields = (_PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    state, start_time = fields[0], fields[19]
    return "" if state in "ZX" else f"{boot}:{process_id}:{start_time}"
