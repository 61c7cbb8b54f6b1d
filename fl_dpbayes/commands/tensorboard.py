"""A run's events for TensorBoard: what its folder holds already, as scalars by round.

Nothing else is read.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_dpbayes.engine.progress import EVENTS_FILE, POLL_SECONDS, EventReader
from fl_dpbayes.engine.simulate import new_folder
from fl_dpbayes.errors import UserError
from fl_dpbayes.report import ROUND_COLUMNS, ROUNDS_FILE, read_csv

CALIBRATION_FILE = "calibration.csv"
CALIBRATION_SCALARS = ("accuracy", "nll", "brier", "ece", "rms_debiased")


def write_tensorboard(run_dir: Path, log_dir: Path, *, follow: bool = False) -> Path:
    """Write a run's progress as TensorBoard scalars.

    These are epsilon by site and round, each round's counts, and the calibration table.

    Args:
        run_dir: The run directory; the run may still be going on.
        log_dir: Where TensorBoard looks; the run gets a folder in it.
        follow: Whether to go on until the run has ended.

    Returns:
        The folder, `log_dir` with the run's name.

    Raises:
        UserError: If the package tensorboard or the run's events are missing, or the folder holds
            something.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "TensorBoard is not installed: pip install 'fl-dpbayes[tensorboard]'"
        ) from None
    if not (run_dir / EVENTS_FILE).is_file():
        raise UserError(
            f"{run_dir} holds no {EVENTS_FILE}: give the folder that a run says it is writing"
        )
    folder = new_folder(log_dir / run_dir.resolve().name, "", inside="")
    reader = EventReader(run_dir / EVENTS_FILE)
    rounds = 0
    with SummaryWriter(str(folder)) as writer:
        while True:
            events = reader.new_events()
            _write_epsilons(writer, events)
            new_rows = read_csv(run_dir / ROUNDS_FILE)[rounds:]
            _write_rounds(writer, new_rows)
            rounds += len(new_rows)
            # Only the newest event counts, as a run that failed may have been resumed.
            if not follow or (events and events[-1]["event"] in ("finished", "failed")):
                break
            time.sleep(POLL_SECONDS)
        _write_calibration(writer, read_csv(run_dir / CALIBRATION_FILE), rounds)
    return folder


def _write_epsilons(writer: Any, events: Sequence[dict[str, Any]]) -> None:
    for event in events:
        if event["event"] == "site" and event.get("epsilon") is not None:
            writer.add_scalar(
                f"epsilon/{event['site']}", event["epsilon"], event["round"], event["time"]
            )


def _write_rounds(writer: Any, rows: Sequence[dict[str, str]]) -> None:
    for row in rows:
        for column in ROUND_COLUMNS[1:]:
            writer.add_scalar(f"round/{column}", float(row[column]), int(row["round"]))


def _write_calibration(writer: Any, rows: Sequence[dict[str, str]], rounds: int) -> None:
    for row in rows:
        # TensorBoard takes no colon in a name.
        place = row["site"].replace(":", " of ")
        for name in CALIBRATION_SCALARS:
            if row.get(name):
                tag = f"calibration {row['predictor']}/{name} {place}"
                writer.add_scalar(tag, float(row[name]), rounds)
