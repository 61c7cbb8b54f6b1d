"""How a run is waited for, and on which devices it may start."""

import json
import threading
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.run import flower_engine
from fl_dpbayes.run.progress import EventReader
from fl_dpbayes.run.simulate import simulate


class Stop(threading.Event):
    """Lets no time pass, and calls back at each look."""

    def __init__(self, look=lambda number: None) -> None:
        super().__init__()
        self.looks, self._look = 0, look

    def wait(self, timeout: float | None = None) -> bool:
        self.looks += 1
        self._look(self.looks)
        return self.is_set()


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def answer(home, environment, *arguments):
        asked.append(arguments[0])
        return {"runs": [{"status": "finished:completed"}]}

    monkeypatch.setattr(flower_engine, "_flwr", answer)
    return asked


def wait(events: Path, stop: Stop) -> dict:
    return flower_engine._final_status(Path(), {}, "1", EventReader(events), stop)


@pytest.mark.parametrize("last", ["finished", "failed"])
def test_flower_is_asked_once_the_run_says_that_it_is_over(tmp_path: Path, questions, last: str) -> None:
    events = tmp_path / "events.jsonl"

    def look(number: int) -> None:
        assert questions == []
        with events.open("a") as file:
            file.write(json.dumps({"event": last if number == 20 else "train"}) + "\n")

    assert wait(events, stop := Stop(look))["status"] == "finished:completed"
    assert (stop.looks, questions) == (20, ["ls"])


def test_run_that_dies_without_a_word_is_noticed(tmp_path: Path, questions, monkeypatch) -> None:
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(flower_engine.time, "monotonic", lambda: next(clock))
    wait(tmp_path / "events.jsonl", stop := Stop())
    assert stop.looks == 4
    assert questions == ["ls"]


def test_stopped_run_asks_nothing(tmp_path: Path, questions) -> None:
    stop = Stop()
    stop.set()
    with pytest.raises(UserError, match="stopped"):
        wait(tmp_path / "events.jsonl", stop)
    assert questions == []


@pytest.mark.parametrize("engine", ["inline", "flower"])
@pytest.mark.parametrize(
    ("devices", "device", "expected"), [(0, "cuda", "no CUDA device is here"), (2, "cuda:2", "here are 0 to 1")]
)
def test_absent_device_is_refused_before_anything_is_written(
    engine: str, devices: int, device: str, expected: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    scenario = load_scenario("quickstart", [f"resources.device={device}"])
    with pytest.raises(UserError, match=expected):
        simulate(scenario, engine, tmp_path / "run", None, Console())
    assert not (tmp_path / "run").exists()
