"""`fl-dpbayes study` whole, on Ray: killed workers, a killed driver, what is resumed, what fails."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from fl_dpbayes.run.flower_processes import descendants
from fl_dpbayes.run.folder_lock import folder_lock
from fl_dpbayes.run.study import study as engine

STUDY = """
seed = 1
data = {{ source = "digits" }}
partition = {{ kind = "dirichlet", alpha = 1.0, min_records = 100 }}
model = {{ kind = "logistic" }}
training = {{ rounds = 2, steps_per_round = {steps}, burn_in = 5, thinning = 5 }}
aggregation = {{ rule = "fald" }}
[study]
question = "Does averaging help?"
compare = ["predictor"]
[axes]
{axes}
[sites]
north = {{ role = "train" }}
south = {{ role = "train" }}
away = {{ role = "held_out", records = 200 }}
[sampler]
kind = "dp-sgld"
step_size = {{ kind = "constant", initial = 2.0 }}
prior = {{ kind = "gaussian", scale = 1.0 }}
[privacy]
epsilon = 4.0
delta = 1e-4
coupling = "floor"
temperature = 1.0
clip_norm = 3.0
sampling_rate = 0.5
"""
WAIT_SECONDS = 180.0


def study_file(folder: Path, axes: str, steps: int = 5) -> str:
    path = folder / "mine.toml"
    path.write_text(STUDY.format(axes=axes, steps=steps))
    return str(path)


@pytest.mark.slow
def test_a_failed_cell_does_not_stop_the_rest_and_is_run_again(tmp_path: Path, command, here: list[str]) -> None:
    out = tmp_path / "out"
    # That so many records are not there shows only when they are dealt.
    path = study_file(tmp_path, "sites.away.records = [5000, 150]\nseed = [1]")
    status, printed, _ = command("study", path, "--out", out)
    assert status == 1
    assert "failed: sites.away.records 5000, seed 1: sites.away.records is 5000, but 1797" in printed
    assert f"fl-dpbayes study --resume {out}" in printed
    table = pd.read_csv(out / "results.csv")
    assert set(table["sites.away.records"]) == {150}
    assert {"pooled:held_out", "away", "north", "south"} <= set(table["site"])
    record = json.loads((out / "study.json").read_text())
    assert record["cells"] == {"all": 2, "finished": 1, "failed": 1}
    (error,) = (out / "cells").glob("*.error.txt")
    assert "Traceback" in error.read_text()
    here.clear()
    assert command("study", "--resume", out)[0] == 1
    assert here == ["sites.away.records 5000, seed 1"]


def test_wrong_folders_are_refused(tmp_path: Path, refusal, here: list[str]) -> None:
    path, out = study_file(tmp_path, "seed = [1]"), tmp_path / "out"
    out.mkdir()
    (out / "note").write_text("mine")
    assert "is not empty" in refusal("study", path, "--out", out)
    assert "holds no study" in refusal("study", "--resume", out)
    (out / "study.toml").write_text(Path(path).read_text())
    assert "other settings" in refusal("study", study_file(tmp_path, "seed = [1, 2]"), "--resume", out)
    assert "leave out --set seed=3" in refusal("study", "--resume", out, "--set", "seed=3")
    assert "give a STUDY" in refusal("study")
    with folder_lock(out):
        assert "another process works on" in refusal("study", "--resume", out)
    assert here == []


def test_missing_records_and_a_wrong_address_are_one_line_before_any_cell_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal
) -> None:
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    file, out = study_file(tmp_path, "seed = [1, 2]"), tmp_path / "out"
    said = refusal("study", file, "--set", "data.source=mnist", "--out", out)
    assert "no data folder is known: give --data-dir DIR or set FL_DPBAYES_DATA" in said
    assert list((out / "cells").iterdir()) == []
    said = refusal("study", file, "--out", tmp_path / "other", "--ray-address", "127.0.0.1:1")
    assert "Ray cannot be reached or started at '127.0.0.1:1'" in said


def test_an_interrupt_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "run_on_ray", interrupted)
    out = tmp_path / "out"
    status, _, error = command("study", study_file(tmp_path, "seed = [1]"), "--out", out)
    assert status == 1
    assert error.strip() == f"stopped: 0 of 1 cells are in {out}; to go on:  fl-dpbayes study --resume {out}"


def workers_of(driver: int) -> list[int]:
    """Return the Ray workers of a driver that run a cell."""
    found = []
    for process in descendants(driver):
        try:
            name = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::run_cell"):
            found.append(process)
    return found


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.1)


@pytest.mark.slow
def test_killed_workers_and_a_killed_driver_cost_only_their_cells(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", "from fl_dpbayes.cli import main; main()", "study"]
    path = study_file(tmp_path, "partition.alpha = [9.0, 0.5]\nseed = [1, 2]", steps=60)

    def begin(*arguments: object) -> subprocess.Popen:
        return subprocess.Popen(
            [*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finished() -> dict[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in (out / "cells").glob("*.json")}

    first = begin(path, "--out", out, "--workers", "1")
    wait_for(lambda: workers_of(first.pid))
    os.kill(workers_of(first.pid)[0], signal.SIGKILL)
    printed = first.communicate(timeout=WAIT_SECONDS)[0]
    assert first.returncode == 1, printed
    assert "its process ended" in printed
    assert "1 cell of 4 failed" in printed
    before = finished()
    assert len(before) == 3
    before.pop(sorted(before)[0])
    for name in set(finished()) - set(before):
        (out / "cells" / name).unlink()

    second = begin("--resume", out, "--workers", "1")
    wait_for(lambda: len(finished()) == 3)
    below = descendants(second.pid)
    second.kill()
    second.communicate()
    after = finished()
    assert {name: after[name] for name in before} == before

    third = begin("--resume", out, "--workers", "1")
    printed = third.communicate(timeout=WAIT_SECONDS)[0]
    assert third.returncode == 0, printed
    assert "3 of 4 cells are already there" in printed
    assert {name: finished()[name] for name in after} == after
    assert len(finished()) == 4
    assert not list((out / "cells").glob("*.error.txt"))
    assert not (out / "work").exists()
    assert len(pd.read_parquet(out / "results.parquet")["cell"].unique()) == 4
    # Ray's processes of the killed driver end of themselves.
    wait_for(lambda: not any(alive(process, started) for process, started in below.items()))


def alive(process: int, started: int) -> bool:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[19]) == started and fields[0] != "Z"


def test_a_study_whose_file_was_changed_is_not_gone_on_with(tmp_path: Path, command, refusal, here: list[str]) -> None:
    out = tmp_path / "out"
    assert command("study", study_file(tmp_path, "seed = [1]"), "--out", out)[0] == 0
    path = out / "study.toml"
    text = path.read_text()
    path.write_text(text.replace("seed = [", "seed = [2, "))
    assert path.read_text() != text
    assert f"{path} has" in refusal("study", "--resume", out)
    path.write_text(text)
    (out / "journal.jsonl").unlink()
    assert "journal.jsonl is missing or damaged, or an older version" in refusal("study", "--resume", out)
    assert here == ["seed 1"]


# Prints the ports that answer at another address of this machine than 127.0.0.1: those that are open to everybody.
PROGRAM = """
import contextlib, pathlib, socket, sys
import ray
from fl_dpbayes.run.study.cell import CellJob
from fl_dpbayes.run.study.grid import study_cells
from fl_dpbayes.run.study.ray_pool import run_on_ray
from fl_dpbayes.config.study_file import load_study

def answers(address, port):
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0

# A folder that is a file: the cell fails at once.
job = CellJob(study_cells(load_study("noniid"))[0], pathlib.Path(sys.argv[1]), None, False)
with contextlib.closing(run_on_ray([job], 1, None)) as outcomes:
    assert next(outcomes).error
    node = ray.nodes()[0]
    gcs_port = int(ray.get_runtime_context().gcs_address.rsplit(":", 1)[1])
    ports = [gcs_port, node["NodeManagerPort"], node["ObjectManagerPort"]]
    assert all(answers("127.0.0.1", port) for port in ports), ports
    print("open:", [port for port in ports if answers("127.0.0.2", port)])
"""


@pytest.mark.slow
def test_ray_listens_on_the_loopback_address_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(blocked)], capture_output=True, text=True, timeout=300, check=False
    )
    assert "open: []" in done.stdout, done.stdout + done.stderr[-2000:]
