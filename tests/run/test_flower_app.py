"""The project as a Flower app: what travels in its bundle, and what `flwr run .` says to too few nodes."""

import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fl_dpbayes.run.flower_processes import end_processes_of

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
    end_processes_of(home)


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
