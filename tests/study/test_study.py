"""`fl-dpbayes study` whole, on Ray: killed workers, a killed driver, what is resumed, what fails."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest

from fl_dpbayes.engine.flower_processes import descendants
from fl_dpbayes.files.folder_lock import folder_lock
from fl_dpbayes.study import ray_pool
from tests.engine.test_engines import alive, wait_for

STUDY = """
scenario = "digits"
training = {{ rounds = 2, steps_per_round = 5, burn_in = 5, thinning = 5 }}
sites = {{ north = {{ role = "train" }}, south = {{ role = "train" }}, away = {{ role = "held_out", records = 200 }} }}
[study]
compare = ["predictor"]
[axes]
{}
"""
WAIT_SECONDS = 180.0


def study_file(folder: Path, axes: str) -> str:
    path = folder / "mine.toml"
    path.write_text(STUDY.format(axes))
    return str(path)


@pytest.mark.slow
def test_a_failed_cell_does_not_stop_the_rest_and_is_run_again(
    tmp_path: Path, command, here: list[str]
) -> None:
    out = tmp_path / "out"
    # That so many records are not there shows only when they are dealt.
    path = study_file(tmp_path, "sites.away.records = [5000, 150]\nseed = [1]")
    status, printed, _ = command("study", path, "--out", out)
    assert status == 1
    assert (
        "sites.away.records 5000, seed 1: failed: sites.away.records is 5000, but 1797" in printed
    )
    assert f"fl-dpbayes study --resume {out}" in printed
    table = pd.read_csv(out / "results.csv")
    assert set(table["sites.away.records"]) == {150}
    assert {"pooled:held_out", "away", "north", "south"} <= set(table["site"])
    assert json.loads((out / "study.json").read_text())["cells"] == {
        "all": 2,
        "finished": 1,
        "failed": 1,
    }
    (error,) = (out / "cells").glob("*.error.txt")
    assert "Traceback" in error.read_text()
    here.clear()
    assert (command("study", "--resume", out)[0], here) == (1, ["sites.away.records 5000, seed 1"])


def test_wrong_folders_are_refused(tmp_path: Path, refusal, here: list[str]) -> None:
    path, out = study_file(tmp_path, "seed = [1]"), tmp_path / "out"
    out.mkdir()
    (out / "note").write_text("mine")
    assert "is not empty" in refusal("study", path, "--out", out)
    assert "holds no study" in refusal("study", "--resume", out)
    (out / "study.toml").write_text(Path(path).read_text())
    assert "other settings" in refusal(
        "study", study_file(tmp_path, "seed = [1, 2]"), "--resume", out
    )
    assert "you gave --set seed=3: give" in refusal("study", "--resume", out, "--set", "seed=3")
    assert "give a STUDY" in refusal("study")
    with folder_lock(out):
        assert "another process works on" in refusal("study", "--resume", out)
    assert here == []


def test_missing_records_and_a_wrong_address_are_told_before_any_cell_runs(
    tmp_path: Path, monkeypatch, refusal
) -> None:
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    file, out = study_file(tmp_path, "seed = [1, 2]"), tmp_path / "out"
    said = refusal("study", file, "--set", "data.source=mnist", "--out", out)
    assert "no data folder is known: give --data-dir DIR or set FL_DPBAYES_DATA" in said
    assert list((out / "cells").iterdir()) == []
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    said = refusal("study", file, "--out", tmp_path / "other", "--ray-address", "127.0.0.1:1")
    assert os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "1"
    assert "Ray cannot be reached or started at '127.0.0.1:1'" in said


def test_an_interrupted_study_says_how_to_go_on(tmp_path, monkeypatch, command) -> None:
    monkeypatch.setattr("fl_dpbayes.study.ray_pool.run_on_ray", Mock(side_effect=KeyboardInterrupt))
    out = tmp_path / "out"
    status, _, error = command("study", study_file(tmp_path, "seed = [1]"), "--out", out)
    assert status == 130
    assert (
        error.strip()
        == f"stopped: 0 of 1 cells are in {out}; to go on:  fl-dpbayes study --resume {out}"
    )


def test_ray_is_started_again_where_it_starts_slowly() -> None:
    slow = Exception("The current node timed out during startup.")
    ray = Mock(init=Mock(side_effect=[slow, slow, None]))
    ray_pool._start_here(ray, workers=1, folder="")
    assert (ray.init.call_count, ray.shutdown.call_count) == (3, 2)
    ray.init.side_effect = slow
    with pytest.raises(RuntimeError, match="timed out"):
        ray_pool._start_here(ray, workers=1, folder="")


@pytest.mark.parametrize("slow", ["The current node timed out during startup.", ""])
def test_ray_that_never_starts_is_told_in_one_line(
    tmp_path: Path, monkeypatch, refusal, slow: str
) -> None:
    monkeypatch.setattr("ray.init", Mock(side_effect=Exception(slow)))
    said = refusal("study", study_file(tmp_path, "seed = [1]"), "--out", tmp_path / "out")
    assert f"Ray cannot be reached or started on this machine ({slow or 'RuntimeError'})" in said


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def workers_of(driver: int) -> list[int]:
    """Return the Ray workers of a driver that run a cell."""
    names = {process: read(f"/proc/{process}/cmdline") for process in descendants(driver)}
    return [process for process, name in names.items() if name.startswith("ray::run_cell")]


def read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def listening(driver: int) -> set[str]:
    """Return the addresses, as the kernel writes them, at which a driver and the processes below it listen."""
    sockets = set()
    for process in (driver, *descendants(driver)):
        for file in Path(f"/proc/{process}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(file))
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in read(f"/proc/net/{name}").splitlines()[1:]
    ]
    return {
        line[1].partition(":")[0]
        for line in lines
        if line[3] == "0A" and f"socket:[{line[9]}]" in sockets
    }


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_driver_cost_only_their_cells_and_nobody_else_reaches_ray(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"

    def begin(*arguments: object) -> subprocess.Popen:
        command = [
            sys.executable,
            "-c",
            "from fl_dpbayes.cli import main; main()",
            "study",
            *map(str, arguments),
        ]
        # Ray's processes give a dead driver a minute to come back, and end then.
        environment = {**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen([*command, "--workers", "1"], text=True, env=environment, **streams)

    def finished() -> dict[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in (out / "cells").glob("*.json")}

    first = begin(study_file(tmp_path, "seed = [1, 2, 3]"), "--out", out)
    wait_for(lambda: workers_of(first.pid))
    # Ray runs the code of whoever reaches one of its ports.
    wait_for(lambda: listening(first.pid))
    assert listening(first.pid) <= LOOPBACK
    os.kill(workers_of(first.pid)[0], signal.SIGKILL)
    wait_for(finished)
    below = descendants(first.pid)
    first.kill()
    first.communicate()
    (error,) = (out / "cells").glob("*.error.txt")
    assert "its process ended" in error.read_text()
    kept = finished()
    assert 1 <= len(kept) <= 2

    second = begin("--resume", out)
    printed = second.communicate(timeout=WAIT_SECONDS)[0]
    assert second.returncode == 0, printed
    assert f"{len(kept)} of 3 cells are already there" in printed
    assert {name: finished()[name] for name in kept} == kept
    assert len(finished()) == 3
    assert not error.exists()
    assert not (out / "work").exists()
    assert len(pd.read_parquet(out / "results.parquet")["cell"].unique()) == 3
    # Ray's processes of the killed driver end of themselves.
    wait_for(lambda: not alive({*below}))
    assert not alive({*below})
