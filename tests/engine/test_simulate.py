"""What a run shows and logs while and after it runs, how it is waited for, and on which devices it may start."""

import io
import json
import logging
import re
import threading
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.engine import flower_command
from fl_dpbayes.engine.flower_command import FlowerCommand
from fl_dpbayes.engine.inline_engine import logs_in
from fl_dpbayes.engine.progress import Display, EventReader, spent_text
from fl_dpbayes.engine.simulate import show_run, simulate
from fl_dpbayes.errors import UserError
from fl_dpbayes.report.run_files import write_summary
from tests.report.test_verdicts import row as verdict_row

SUMMARY = {
    "scenario": "one",
    "seed": 0,
    "versions": {},
    "adjacency": "add_or_remove_one",
    "sites": [],
    "privacy": [],
    "calibration": [{"site": "north", "role": "train", "predictor": "posterior", "n": 10}],
    "bytes": {},
    "seconds": {},
    "configurations_tried": 1,
    "warnings": ["first", "second"],
}


def test_tables_and_warnings_are_shown(tmp_path):
    write_summary(SUMMARY, tmp_path)
    console = Console(file=io.StringIO(), width=200)
    show_run(tmp_path, console)
    text = "\n".join(line.strip() for line in console.file.getvalue().splitlines())
    assert "\n\nwarning: first\nwarning: second\n" in text
    assert "\n\nCalibration\n" in text


def test_a_simulation_with_levels_ends_by_the_update_of_the_held_out_hospital_farthest_off(
    tmp_path: Path,
) -> None:
    names = ("a", "b", "far-1", "d")
    rows = [
        verdict_row("a", "train", "recalibrate first", risk=0.9),
        verdict_row("b", "held_out", "fits here", risk=0.25),
        verdict_row("far-1", "held_out", "recalibrate first", risk=0.5),
        verdict_row("d", "shifted", "recalibrate first", risk=0.9),
    ]
    level = {"of": "sd", "value": 0.4, "interval": [0.1, 0.9]}
    write_summary({**SUMMARY, "calibration": rows, "hospitals": [level]}, tmp_path)

    def last_lines() -> list[str]:
        console = Console(file=io.StringIO(), width=80)
        show_run(tmp_path, console)
        return console.file.getvalue().splitlines()[-2:]

    # A coordinator of real hospitals has no site file.
    assert "update" not in last_lines()[0]
    (tmp_path / "sites").mkdir()
    for number, name in enumerate(names):
        (tmp_path / "sites" / f"{number}-{name}.toml").touch()
    site_file = tmp_path / "sites" / "2-far-1.toml"
    assert last_lines() == [
        f"  fl-dpbayes update {tmp_path} {site_file} --epsilon 1",
        f"report: {tmp_path / 'report.html'}",
    ]


EVENTS = [
    {"event": "roster", "sites": [["north", "train"], ["island", "held_out"]], "left_out": []},
    {"event": "train", "round": 1, "rounds": 2, "sites": ["north"]},
    {
        "event": "site",
        "round": 1,
        "site": "north",
        "status": "OK",
        "detail": "",
        "epsilon": 0.5,
        "budget": 2.0,
    },
    {"event": "evaluate", "round": 2, "rounds": 2, "sites": ["north", "island"]},
    {"event": "evaluated", "site": "island", "problem": ""},
    {"event": "roster", "sites": [["north", "train"], ["island", "held_out"]], "left_out": []},
    {
        "event": "site",
        "round": 2,
        "site": "north",
        "status": "REFUSED",
        "detail": "X",
        "epsilon": None,
        "budget": None,
    },
    {"event": "evaluated", "site": "north", "problem": "NOT_SENT"},
    {"event": "finished"},
]


def displayed(events: list[dict], rounds: int, *, terminal: bool, width: int = 80) -> list[str]:
    """What a display prints, and on a terminal shows after each event."""
    console = Console(force_terminal=terminal, color_system=None, file=io.StringIO(), width=width)
    display = Display(console, rounds)
    for event in events:
        display.show(event)
        if terminal:
            console.print(display.render())
    return console.file.getvalue().splitlines()


def test_a_terminal_shows_one_bar_and_a_row_only_for_a_site_with_a_problem() -> None:
    lines = displayed(EVENTS, 2, terminal=True)
    assert max(map(len, lines)) <= 80
    assert sum("round 1/2" in line and "0.500 of 2" in line for line in lines) == 1
    assert "writing the report" in lines[-3]
    first_problem = next(number for number, line in enumerate(lines) if "REFUSED" in line)
    # One line for each event before it, and then a header and a row.
    assert not any("north" in line for line in lines[: first_problem - 1])
    assert re.search(r"north +train +REFUSED X +0.500 of 2", lines[first_problem])
    # The policy of a hospital that its test results stay there is no fault, and hides none.
    assert re.search(r"north +train +REFUSED X; tests: NOT_SENT +0.500 of 2", lines[-1])


def test_many_sites_with_a_problem_are_counted() -> None:
    events = [reply(f"h{number}", "FAILED", "no reply in time") for number in range(30)]
    assert "30 sites have a problem: h0, h1" in displayed(events, 2, terminal=True, width=200)[-1]


def reply(site: str, status: str, detail: str = "", number: int = 1) -> dict:
    known = (
        {"epsilon": 0.01 * number, "budget": 2.0}
        if status == "OK"
        else dict.fromkeys(("epsilon", "budget"))
    )
    said = {"site": site, "round": number, "status": status, "detail": detail}
    return {"event": "site", **said, **known}


def test_a_log_gets_ten_lines_a_run_and_one_for_each_problem_of_a_site() -> None:
    sites = [f"h{number}" for number in range(20)]
    roster = {"event": "roster", "sites": [[site, "train"] for site in sites]}
    events = [{**roster, "left_out": ["a node did not join: its card is not valid"]}]
    for number in range(1, 59):
        events.append({"event": "train", "round": number, "rounds": 58, "sites": sites})
        events += [reply(site, "OK", number=number) for site in sites[1:]]
        events.append(reply(sites[0], "REFUSED", "BUDGET_EXHAUSTED", number))
    events.append({"event": "evaluate", "round": 58, "rounds": 58, "sites": sites})
    events += [{"event": "evaluated", "site": site, "problem": ""} for site in sites]
    lines = displayed(events, 58, terminal=False)
    assert lines[:3] == [
        "left out: a node did not join: its card is not valid",
        "round 1/58: h0: REFUSED BUDGET_EXHAUSTED",
        "round 6/58, epsilon 0.060 of 2",
    ]
    assert lines[-1] == "round 58/58, epsilon 0.580 of 2"
    assert len(lines) == 12


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [
        (0.0, "0"),
        (0.00041201, "0.000413"),
        (0.001, "0.001"),
        (0.0999, "0.100"),
        (0.5, "0.500"),
        (1.2301, "1.24"),
        (4.0, "4.00"),
    ],
)
def test_small_epsilon_is_shown_with_digits_and_none_is_rounded_down(epsilon, text) -> None:
    assert spent_text(epsilon) == text


def test_root_handler_that_appears_during_a_run_sees_nothing_of_flowers_log(tmp_path: Path) -> None:
    terminal, logger = logging.StreamHandler(io.StringIO()), logging.getLogger("flwr")
    before = logger.propagate
    with logs_in(tmp_path / "flower.log"):
        logging.getLogger().addHandler(terminal)
        logger.warning("[ROUND 2/3]")
    logging.getLogger().removeHandler(terminal)
    assert (terminal.stream.getvalue(), logger.propagate) == ("", before)
    assert "[ROUND 2/3]" in (tmp_path / "flower.log").read_text()


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
    asked, answer = [], {"runs": [{"status": "finished:completed"}]}
    monkeypatch.setattr(FlowerCommand, "ask", lambda self, what, *_: asked.append(what) or answer)
    return asked


def wait(events: Path, stop: Stop) -> dict:
    return FlowerCommand(Path(), {}, "own")._final_status("1", EventReader(events), stop)


@pytest.mark.parametrize("last", ["finished", "failed"])
def test_flower_is_asked_once_the_run_is_over(
    tmp_path: Path, questions, last: str, monkeypatch
) -> None:
    events = tmp_path / "events.jsonl"

    def look(number: int) -> None:
        assert questions == []
        with events.open("a") as file:
            file.write(json.dumps({"event": last if number == 20 else "train"}) + "\n")

    stop = Stop(look)
    # As long as the run says something, however long it takes.
    monkeypatch.setattr(flower_command.time, "monotonic", lambda: 4 * stop.looks)
    assert wait(events, stop)["status"] == "finished:completed"
    assert (stop.looks, questions) == (20, ["ls"])


def test_run_that_dies_is_noticed_and_a_stopped_one_asks_nothing(
    tmp_path: Path, questions, monkeypatch
) -> None:
    stop = Stop()
    monkeypatch.setattr(flower_command.time, "monotonic", lambda: 4 * stop.looks)
    wait(tmp_path / "events.jsonl", stop)
    assert (stop.looks, questions) == (4, ["ls"])
    stop.set()
    with pytest.raises(UserError, match="stopped"):
        wait(tmp_path / "events.jsonl", stop)
    assert questions == ["ls"]


def test_absent_device_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch) -> None:
    for devices, device, expected in (
        (0, "cuda", "no CUDA device is here"),
        (2, "cuda:2", "here are 0 to 1"),
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda devices=devices: devices)
        scenario = load_scenario("digits", [f"resources.device={device}"])
        with pytest.raises(UserError, match=expected):
            simulate(scenario, "inline", tmp_path / "run", None, Console())
        assert not (tmp_path / "run").exists()
