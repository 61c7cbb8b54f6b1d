"""What happens in a run, as lines of JSON that a display can follow from another process."""

import json
import time
from pathlib import Path
from typing import Any

from fl_dpbayes.config.files.atomic_file import written

EVENTS_FILE = "events.jsonl"


class EventLog:
    """Appends one JSON object per event to `events.jsonl` in the run directory."""

    def __init__(self, run_folder: Path) -> None:
        self._path = run_folder / EVENTS_FILE

    def write(self, event: str, **details: Any) -> None:
        """Append an event with its time (seconds since the epoch).

        Raises:
            UserError: if it cannot be written.
        """
        line = json.dumps({"event": event, "time": time.time(), **details})
        with written(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
