"""`simulate --resume`: after kills at any instant a run ends as the unbroken one.

And what a user meets who errs.
"""

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from fl_dpbayes.data.simulation import BASELINES
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.files.run_store import RunStore
from tests.resumed import assert_same_run

KILLS = 7
# Commands are forked from one interpreter that has imported everything, so that kills fall into
# work, not into imports.
DRIVER = """
import json, os, random, signal, sys, time
from pathlib import Path

import clients.app, fl_dpbayes.engine.resume, fl_dpbayes.config.scenario, server.app, server.federation
from fl_dpbayes import cli

folder, kills, rng = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
# Drawing takes most of so small a run, and nothing is to be resumed in it.
server.federation.write_report = lambda *_: None
fl_dpbayes.engine.simulate.show_run = lambda *_: None
fl_dpbayes.engine.resume.show_run = lambda *_: None
SETTINGS = [
    "training={rounds=16, steps_per_round=30, burn_in=120, thinning=40, chains=2}", "aggregation.rule=mixture",
    "simulation.insecure_seed=5", "evaluation.release=noised", "evaluation.noise_multiplier=4.0",
    "recalibration={epsilon=2.0, rounds=2, steps=20, fraction=0.2}",
]

def begin(arguments):
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        sys.argv = ["fl-dpbayes", "simulate", "--engine", "inline", *arguments]
        try:
            cli.main()
        except SystemExit as end:
            os._exit(end.code)
    return child

def new(name):
    return ["digits", "--out", str(folder / name), *(x for s in SETTINGS for x in ("--set", s))]

started = time.monotonic()
assert os.waitpid(begin(new("unbroken")), 0)[1] == 0
unbroken_seconds = time.monotonic() - started
report = {"runs": [], "kills": 0, "rounds": []}
while report["kills"] < kills:
    name = f"run-{len(report['runs'])}"
    while True:
        made = (folder / name / "scenario.toml").is_file()
        child = begin(["--resume", str(folder / name)] if made else new(name))
        if report["kills"] == kills:
            assert os.waitpid(child, 0)[1] == 0
            break
        events = folder / name / "events.jsonl"
        if report["kills"] == 0:
            # One kill falls into training however slow the machine is.
            while not (events.is_file() and '"event": "site"' in events.read_text()):
                time.sleep(0.005)
        else:
            time.sleep(rng.uniform(0, unbroken_seconds / 2))
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            break
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        report["rounds"].append(events.read_text().splitlines()[-1] if events.is_file() else "")
        report["kills"] += 1
        if not made and not (folder / name / "scenario.toml").is_file() and (folder / name).exists():
            name += "-again"
    report["runs"].append(name)
print(json.dumps(report))
"""


@pytest.mark.slow
def test_kills_at_any_instant_change_neither_the_result_nor_what_it_cost(tmp_path: Path) -> None:
    driver = [sys.executable, "-c", DRIVER, str(tmp_path), str(KILLS), "7"]
    finished = subprocess.run(driver, capture_output=True, text=True, timeout=900, check=False)
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert report["kills"] >= KILLS
    for name in report["runs"]:
        assert_same_run(tmp_path / name, tmp_path / "unbroken")
    assert any('"event": "train"' in last or '"event": "site"' in last for last in report["rounds"])


SMALL = [
    "--engine",
    "inline",
    "--set",
    "training={rounds=1, steps_per_round=2, burn_in=0, thinning=1}",
    "--set",
    "simulation.insecure_seed=5",
]

OWN = [
    "--set",
    "model={kind='module', factory='tests.server.test_own_code:flat', "
    "settings={inputs=64, classes=10}}",
]


def has_baselines(folder: Path) -> bool:
    with RunStore.open(folder) as store:
        return store.latest(BASELINES) is not None


def test_what_cannot_be_resumed_is_said(tmp_path: Path, refusal) -> None:
    resume = ["simulate", "--resume", tmp_path]
    assert "give a SCENARIO" in refusal("simulate")
    assert "holds no run" in refusal(*resume)
    for given in (["--set", "seed=2"], ["--seed", "2"], ["--out", "x"]):
        said = f"you gave {' '.join(given)}: give  fl-dpbayes simulate --resume {tmp_path}  alone"
        assert said in refusal(*resume, *given)
    (tmp_path / "sites").mkdir()
    assert "has no scenario.toml: put it back" in refusal(*resume)


@pytest.mark.slow
def test_finished_run_is_shown_and_stopped_one_names_its_command(
    tmp_path: Path, monkeypatch, command, refusal
) -> None:
    monkeypatch.setattr("server.federation.write_report", lambda folder: None)
    folder = tmp_path / "a run"
    with monkeypatch.context() as patch:
        patch.setattr("fl_dpbayes.engine.progress.follow", Mock(side_effect=KeyboardInterrupt))
        status, _, error = command("simulate", "digits", *SMALL, *OWN, "--out", folder)
    assert (status, "Traceback" in error) == (130, False)
    assert "stopped: 0 of 1 round are complete and kept" in error
    assert f"fl-dpbayes simulate --resume '{folder}' --engine inline" in error
    assert "another scenario" in refusal("simulate", "mnist", "--resume", folder)
    resume = ["simulate", "--resume", folder]
    with folder_lock(folder):
        assert "another process works on" in refusal(*resume)
    status, output, error = command(*resume, "--engine", "inline")
    assert (status, "resuming after round" in output) == (0, True), error
    before = (folder / "events.jsonl").read_bytes()
    monkeypatch.setattr(
        "fl_dpbayes.posterior.store.model_shapes",
        lambda *_: pytest.fail("code that it names was run"),
    )
    status, output, _ = command(*resume)
    assert (status, "is finished: nothing is left to do" in output) == (0, True)
    assert "Privacy spent" in output
    assert (folder / "events.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("last", ["prepare", "baselines"])
def test_run_that_was_killed_before_its_baselines_has_them_when_it_is_resumed(
    tmp_path: Path, monkeypatch, command, last: str
) -> None:
    monkeypatch.setattr(
        "server.federation.write_report", lambda folder: (folder / "report.html").touch()
    )
    folder, place = tmp_path / "run", "fl_dpbayes.engine.simulate."

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    given = ["simulate", "stroke-uk", *SMALL, "--out", str(folder)]
    with monkeypatch.context() as patch:
        patch.setattr(place + ("write_baselines" if last == "prepare" else "run_prepared"), kill)
        with pytest.raises(Killed):
            command(*given)
    assert (folder / "scenario.toml").is_file()
    assert has_baselines(folder) == (last != "prepare")
    status, output, error = command("simulate", "--resume", folder, "--engine", "inline")
    assert status == 0, error
    summary = json.loads((folder / "summary.json").read_text())
    assert {row["predictor"] for row in summary["baselines"]["rows"]} >= {"majority", "central"}
    assert "lacks" not in output
    (folder / "rounds.csv").unlink()
    assert "the run lacks rounds.csv" in command("simulate", "--resume", folder)[1]
