"""Both engines run the same apps, whatever dies; the bundle that Flower ships, and what it says to too few nodes."""

import contextlib
import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.site_ledger import ledger_place
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.privacy.ledger.ledger import Ledger
from fl_dpbayes.run.flower_processes import kill, processes_of

SEEDED = [
    "--set", "training={rounds=2, steps_per_round=5, burn_in=5, thinning=5}",
    "--set", "simulation.insecure_seed=11",
]  # fmt: skip


def command(folder: Path, engine: str, *options: str) -> list[str]:
    return [
        sys.executable, "-c", "from fl_dpbayes.cli import main; main()",
        "simulate", "quickstart", "--engine", engine, "--out", str(folder), *options,
    ]  # fmt: skip


def children_of_group(leader: int, name: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if name in (entry / "cmdline").read_bytes().decode() and _descends(int(entry.name), leader):
                found.append(int(entry.name))
    return found


def _descends(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
    return False


def _is_alive(process: int) -> bool:
    # A killed process stays listed until its parent reads its status, which init may never do in a container.
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
def test_equal_seeds_give_equal_results_on_both_engines(tmp_path: Path) -> None:
    for engine in ("inline", "flower"):
        subprocess.run(command(tmp_path / engine, engine, *SEEDED), check=True, capture_output=True, timeout=300)
    inline, flower = (load_posterior(tmp_path / engine / "posterior.safetensors") for engine in ("inline", "flower"))
    assert inline.metadata == flower.metadata
    np.testing.assert_array_equal(inline.samples.weights, flower.samples.weights)
    for name, array in inline.samples.arrays.items():
        np.testing.assert_array_equal(array, flower.samples.arrays[name])
    summaries = [json.loads((tmp_path / engine / "summary.json").read_text()) for engine in ("inline", "flower")]
    for key in ("privacy", "calibration", "reliability", "sites", "bytes"):
        assert summaries[0][key] == summaries[1][key], key
    assert not [path for path in (tmp_path / "flower").iterdir() if path.suffix == ".db"]


@pytest.mark.slow
def test_run_goes_on_when_the_process_of_one_site_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ["--set", "training={rounds=6, steps_per_round=60, burn_in=60, thinning=60}"]
    process = subprocess.Popen(command(folder, "flower", *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    killed: list[int] = []

    def kill_one() -> None:
        events = folder / "events.jsonl"
        while process.poll() is None and not killed:
            if events.is_file() and '"event": "train", "time"' in events.read_text():
                workers = children_of_group(process.pid, "ray::ClientAppActor")
                if workers:
                    os.kill(workers[0], signal.SIGKILL)
                    killed.append(workers[0])
            time.sleep(0.02)

    watcher = threading.Thread(target=kill_one)
    watcher.start()
    output = process.communicate(timeout=400)[0].decode()
    watcher.join()
    assert killed
    assert process.returncode == 0, output
    summary = json.loads((folder / "summary.json").read_text())
    assert [row["site"] for row in summary["privacy"] if row["status"].startswith("FAILED")], summary["warnings"]
    with (folder / "rounds.csv").open(newline="") as file:
        usable = [int(row["sites_ok"]) for row in csv.DictReader(file)]
    assert min(usable) >= 3, "only the message that the dead process held may be lost"
    assert usable[-1] == 4
    assert {row["site"] for row in summary["calibration"]} >= {site["name"] for site in summary["sites"]}
    for path in sorted((folder / "sites").glob("*.toml")):
        site_file = read_site_file(path)
        if site_file.role == "train":
            with Ledger.open_existing(ledger_place(site_file.ledger), site_file.ledger.cohort) as ledger:
                assert ledger.verify() == []
                assert ledger.spent("train").epsilon <= site_file.ledger.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_no_process_behind(tmp_path: Path, sign: signal.Signals) -> None:
    process = subprocess.Popen(
        command(tmp_path / "run", "flower"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # What a shell runs in the background ignores interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    events = tmp_path / "run" / "events.jsonl"
    deadline = time.monotonic() + 200
    while not events.is_file() and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = children_of_group(process.pid, "")
    process.send_signal(sign)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"Traceback" not in error
    time.sleep(3)
    left = [number for number in workers if number != process.pid and _is_alive(number)]
    assert not left, [Path(f"/proc/{number}/{name}").read_bytes() for number in left for name in ("cmdline", "environ")]


ROOT = Path(__file__).parent.parent.parent
FLWR = str(Path(sys.executable).parent / "flwr")


@pytest.fixture
def environment(tmp_path: Path):
    home = tmp_path / "flower-home"
    home.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    kill(processes_of(home))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copy what git would hold: `flwr run` may edit the project file that it reads."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in ("fl_dpbayes", "clients", "server", "scenarios", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", ".gitignore", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.mark.slow
def test_bundle_holds_the_code_and_the_scenarios_and_nothing_else(project: Path, environment) -> None:
    (project / "runs").mkdir()
    (project / "runs" / "secret.json").write_text("{}")
    (project / "site.toml").write_text("")
    subprocess.run(
        [FLWR, "build", "--app", str(project)], cwd=project, env=environment, check=True, capture_output=True
    )
    (bundle,) = project.glob("*.fab")
    names = set(zipfile.ZipFile(bundle).namelist())
    code = {
        path.relative_to(project).as_posix()
        for folder in ("fl_dpbayes", "clients", "server")
        for path in (project / folder).rglob("*.py")
    }
    scenarios = {path.relative_to(project).as_posix() for path in (project / "scenarios").rglob("*.toml")}
    assert names - {"pyproject.toml", "LICENSE", ".info/CONTENT"} == code | scenarios
    assert "fl_dpbayes/data/site.py" in names
    assert not [name for name in names if name.startswith(("tests/", "runs/")) or name == "site.toml"]


@pytest.mark.slow
def test_flwr_run_with_too_few_nodes_prints_the_right_line(project: Path, environment, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [FLWR, "run", str(project), "--stream", "--run-config", f"output-dir={json.dumps(str(out))}"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert 'flwr run . --federation-config "num-supernodes=7"' in done.stdout + done.stderr
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "failed"
