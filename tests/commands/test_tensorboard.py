import json
import sys
from pathlib import Path

import pytest

from fl_dpbayes.commands import tensorboard
from fl_dpbayes.report.run_files import CALIBRATION_COLUMNS, ROUND_COLUMNS, write_csv


def add_events(folder: Path, number: int, *more: dict) -> None:
    site = {
        "event": "site",
        "time": 1e9 + number,
        "round": number,
        "site": "north",
        "epsilon": 0.5 * number,
    }
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(
            json.dumps(event) + "\n"
            for event in (site, {**site, "site": "open", "epsilon": None}, *more)
        )


def test_a_run_is_followed_to_its_end_and_read_back(
    tmp_path: Path, monkeypatch, command, refusal
) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def rest(_: float) -> None:
        add_events(tmp_path, 2, {"event": "finished"})
        row = {"site": "pooled:held_out", "predictor": "last", "ece": 0.125}
        write_csv(tmp_path / "calibration.csv", [row], CALIBRATION_COLUMNS)

    logs = tmp_path / "logs"
    assert "holds no events.jsonl" in refusal("tensorboard", tmp_path, logs)
    add_events(tmp_path, 1, {"event": "failed"}, {"event": "resumed"})
    write_csv(
        tmp_path / "rounds.csv", [{**dict.fromkeys(ROUND_COLUMNS, 8), "round": 1}], ROUND_COLUMNS
    )
    monkeypatch.setattr(tensorboard.time, "sleep", rest)
    assert command("tensorboard", tmp_path, logs, "--follow")[0] == 0
    read = EventAccumulator(str(logs / tmp_path.name)).Reload()
    assert [(one.step, one.value) for one in read.Scalars("epsilon/north")] == [(1, 0.5), (2, 1.0)]
    assert read.Scalars("round/sites_ok")[0].value == 8
    assert read.Scalars("calibration last/ece pooled of held_out")[0].value == 0.125
    assert not any("open" in tag for tag in read.Tags()["scalars"])
    assert "is not empty" in refusal("tensorboard", tmp_path, logs)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "fl-dpbayes[tensorboard]" in refusal("tensorboard", tmp_path, logs)
