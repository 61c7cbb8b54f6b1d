import json
import sys
from pathlib import Path

import pytest

from fl_dpbayes.report.run_files import CALIBRATION_COLUMNS, ROUND_COLUMNS, write_csv
from fl_dpbayes.run import tensorboard


def running(folder: Path) -> Path:
    """A run of two rounds, of which the first is over."""
    folder.mkdir()
    ended(folder, 1)
    write_csv(folder / "rounds.csv", [{**dict.fromkeys(ROUND_COLUMNS, 8), "round": 1}], ROUND_COLUMNS)
    return folder


def ended(folder: Path, number: int) -> None:
    event = {"event": "site", "time": 1e9 + number, "round": number, "site": "north", "epsilon": 0.5 * number}
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n" + json.dumps({**event, "site": "not-private", "epsilon": None}) + "\n")


def test_a_run_is_followed_to_its_end_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = running(tmp_path / "run")

    def rest(_: float) -> None:
        ended(run, 2)
        row = {"site": "pooled:held_out", "predictor": "last", "ece": 0.125}
        write_csv(run / "calibration.csv", [row], CALIBRATION_COLUMNS)
        with (run / "events.jsonl").open("a") as file:
            file.write('{"event": "finished"}\n')

    monkeypatch.setattr(tensorboard.time, "sleep", rest)
    assert command("tensorboard", run, tmp_path / "logs", "--follow")[0] == 0
    read = EventAccumulator(str(tmp_path / "logs" / "run")).Reload()
    assert [(one.step, one.value) for one in read.Scalars("epsilon/north")] == [(1, 0.5), (2, 1.0)]
    assert read.Scalars("round/sites_ok")[0].value == 8
    assert read.Scalars("calibration last/ece pooled of held_out")[0].value == 0.125
    assert not any("not-private" in tag for tag in read.Tags()["scalars"])
    status, _, error = command("tensorboard", run, tmp_path / "logs")
    assert (status, "is not empty" in error) == (2, True)


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal) -> None:
    assert "holds no events.jsonl" in refusal("tensorboard", tmp_path, tmp_path / "logs")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "fl-dpbayes[tensorboard]" in refusal("tensorboard", running(tmp_path / "run"), tmp_path / "logs")
