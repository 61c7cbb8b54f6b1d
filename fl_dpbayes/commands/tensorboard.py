"""A run's events for TensorBoard: what its folder holds already, as scalars by round.

Nothing else is read.
"""

import time
from pathlib import Path

from fl_dpbayes.engine.progress import EVENTS_FILE, POLL_SECONDS, EventReader
from fl_dpbayes.engine.simulate import new_folder
from fl_dpbayes.errors import UserError
from fl_dpbayes.report import ROUND_COLUMNS, ROUNDS_FILE, read_csv

CALIBRATION_SCALARS = ("accuracy", "nll", "brier", "ece", "rms_debiased")


def write_tensorboard(run_dir: Path, log_dir: Path, *, follow: bool = False) -> Path:
    """Write epsilon by site and round, each round's counts and the calibration table as TensorBoard scalars.

    `follow`: goes on until the run has ended. Returns the folder, `log_dir` with the run's name.
    Raises UserError if the package tensorboard or the run's events are missing, or the folder holds
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
    reader, last = EventReader(run_dir / EVENTS_FILE), 0
    with SummaryWriter(str(folder)) as writer:
        while True:
            events = reader.new_events()
            for event in events:
                if event["event"] == "site" and event.get("epsilon") is not None:
                    writer.add_scalar(
                        f"epsilon/{event['site']}", event["epsilon"], event["round"], event["time"]
                    )
            for row in read_csv(run_dir / ROUNDS_FILE)[last:]:
                last += 1
                for column in ROUND_COLUMNS[1:]:
                    writer.add_scalar(f"round/{column}", float(row[column]), int(row["round"]))
            # A run that failed may have been resumed.
            if not follow or (events and events[-1]["event"] in ("finished", "failed")):
                break
            time.sleep(POLL_SECONDS)
        for row in read_csv(run_dir / "calibration.csv"):
            for name in filter(row.get, CALIBRATION_SCALARS):
                place = row["site"].replace(":", " of ")
                writer.add_scalar(
                    f"calibration {row['predictor']}/{name} {place}", float(row[name]), last
                )
    return folder
