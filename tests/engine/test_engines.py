"""Both engines run the same apps, whatever dies.

The bundle that Flower ships, and what it says to too few nodes.
"""

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fl_dpbayes.cli import INTERRUPTED
from fl_dpbayes.config.scenario import Resources
from fl_dpbayes.engine import flower_engine
from fl_dpbayes.engine.flower_engine import HOME_FILE
from fl_dpbayes.engine.flower_processes import descendants, kill, processes_of
from fl_dpbayes.models.conditional_reproducibility import reproducible_branch
from server.grid import check_workers_folder, is_simulated
from tests.asking import refused
from tests.resumed import assert_same_run, spent

SEEDED = [
    "--set",
    "training={rounds=6, steps_per_round=20, burn_in=20, thinning=10}",
    "--set",
    "simulation.insecure_seed=5",
    # Each process of Ray imports everything first.
    "--set",
    f"resources.cpus_per_site={min(2, len(os.sched_getaffinity(0)))}",
]
LONGER = ["--set", "training={rounds=9, steps_per_round=60, burn_in=60, thinning=60}"]


def simulate(*arguments: object) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from fl_dpbayes.cli import main; main()",
        "simulate",
        *map(str, arguments),
    ]


def alive(processes: set[int]) -> list[str]:
    """The commands of those that run.

    A killed one stays listed until its parent, perhaps init, reads its status.
    """
    running = [Path(f"/proc/{number}") for number in processes if Path(f"/proc/{number}").exists()]
    ended = [
        each
        for each in running
        if each.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    ]
    return [each.joinpath("cmdline").read_text() for each in running if each not in ended]


def wait_for(found: Callable[[], object], seconds: float = 200) -> object:
    deadline = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def events_of(folder: Path) -> str:
    return (folder / "events.jsonl").read_text() if (folder / "events.jsonl").is_file() else ""


def usable_sites(folder: Path) -> list[int]:
    lines = (
        (folder / "rounds.csv").read_text().splitlines()
        if (folder / "rounds.csv").is_file()
        else []
    )
    return [int(row["sites_ok"]) for row in csv.DictReader(lines)]


@pytest.mark.slow
def test_flower_run_whose_command_is_killed_is_resumed_and_equals_an_unbroken_inline_one(
    tmp_path: Path, command
) -> None:
    inline, flower, log = tmp_path / "inline", tmp_path / "flower", tmp_path / "log"
    assert command("simulate", "digits", *SEEDED, "--engine", "inline", "--out", inline)[0] == 0
    with log.open("wb") as file:
        begun = simulate("digits", *SEEDED, "--out", flower)
        killed = subprocess.Popen(begun, stdout=file, stderr=file, start_new_session=True)
        wait_for(lambda: '"event": "site"' in events_of(flower))
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert (flower / HOME_FILE).is_file(), log.read_text()
    # Flower's processes are in sessions of their own and would finish so short a run by themselves.
    left = processes_of(Path((flower / HOME_FILE).read_text()))
    for number in left:
        os.kill(number, signal.SIGSTOP)
    done = subprocess.run(
        simulate("--resume", flower), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming after round" in done.stdout
    assert not (flower / HOME_FILE).exists()
    assert left
    assert not alive(left)
    assert_same_run(flower, inline)
    one, other = (json.loads((folder / "summary.json").read_text()) for folder in (inline, flower))
    for key in ("privacy", "calibration", "reliability", "sites", "bytes"):
        assert one[key] == other[key], key
    assert {row["computation"] for row in other["passes"]} == {"gradients", "predictions"}
    # Every process of Flower has it, where this torch has MKL.
    in_force = "none" if reproducible_branch() == "none" else "AUTO"
    assert {row["reproducible"] for row in other["passes"]} == {in_force}
    assert not [path for path in flower.iterdir() if path.suffix == ".db"]


@pytest.mark.slow
def test_run_goes_on_when_the_process_of_one_site_is_killed_and_leaves_none_behind_when_it_ends(
    tmp_path: Path,
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            simulate("digits", *LONGER, "--out", folder), stdout=file, stderr=file
        )

    def worker() -> int | None:
        named = {number: "".join(alive({number})) for number in descendants(process.pid)}
        return next(
            (number for number, name in named.items() if "ray::ClientAppActor" in name), None
        )

    wait_for(lambda: process.poll() is not None or '"event": "train"' in events_of(folder))
    os.kill(wait_for(worker, seconds=10), signal.SIGKILL)
    # The others go on, and the site is there again in a later round.
    wait_for(lambda: process.poll() is not None or usable_sites(folder)[-1:] == [4])
    family = set(descendants(process.pid))
    process.terminate()
    assert process.wait(timeout=60) == INTERRUPTED
    assert "Traceback" not in log.read_text()
    wait_for(lambda: not alive(family), seconds=3)
    assert not alive(family)
    assert min(usable_sites(folder)) >= 3, "only the message that the dead process held may be lost"
    subprocess.run(
        simulate("--resume", folder, "--engine", "inline"),
        check=True,
        capture_output=True,
        timeout=300,
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert [row["site"] for row in summary["privacy"] if "FAILED" in row["status"]], summary[
        "warnings"
    ]
    assert usable_sites(folder)[-1] == 4
    assert {row["site"] for row in summary["calibration"]} >= {
        site["name"] for site in summary["sites"]
    }
    budget = max(row["budget"] for row in summary["privacy"])
    assert all(train[1] <= budget for train, *_ in spent(folder).values())


ROOT = Path(__file__).parent.parent.parent
FLWR = str(Path(sys.executable).parent / "flwr")


@pytest.fixture
def environment(tmp_path: Path):
    home = tmp_path / "flower-home"
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        own = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(probe.getsockname()[1])}
    yield flower_engine._environment(home, Resources()) | own
    kill(processes_of(home))


def flwr_run(project: Path, environment: dict[str, str], folder: Path, *options: str) -> str:
    """What `flwr run` of a project says when it is typed in a folder."""
    command = [FLWR, "run", str(project), "--stream", *options]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    return done.stdout + done.stderr


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
def test_bundle_holds_the_code_and_the_scenarios_and_nothing_else(
    project: Path, environment
) -> None:
    (project / "runs").mkdir()
    (project / "runs" / "secret.json").write_text("{}")
    (project / "site.toml").write_text("")
    build = [FLWR, "build", "--app", str(project)]
    subprocess.run(build, cwd=project, env=environment, check=True, capture_output=True)
    (bundle,) = project.glob("*.fab")
    names = set(zipfile.ZipFile(bundle).namelist())
    kinds = [(folder, "*.py") for folder in ("fl_dpbayes", "clients", "server")]
    kinds += [("scenarios", "*.toml"), ("fl_dpbayes/data/sources", "stroke.json")]
    shipped = {
        path.relative_to(project).as_posix()
        for name, kind in kinds
        for path in (project / name).rglob(kind)
    }
    assert names - {"pyproject.toml", "LICENSE", ".info/CONTENT"} == shipped
    assert "fl_dpbayes/data/site.py" in names


@pytest.mark.parametrize(
    ("grid", "beside", "named"),
    [
        ("simulated", ("clients",), True),
        # Workers that stand in a checkout find it first.
        ("simulated", ("clients", "fl_dpbayes"), False),
        ("simulated", (), False),
        ("deployed", ("clients",), False),
    ],
)
def test_own_clients_where_a_simulation_stands_are_named(
    tmp_path: Path, monkeypatch, grid: str, beside: tuple[str, ...], named: bool
) -> None:
    for name in beside:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    # Flower's class of a simulation's grid, which is not imported, is known by its name.
    made = type({"simulated": "InMemoryGrid", "deployed": "HttpGrid"}[grid], (), {})()
    if named:
        refused(f"{tmp_path}/clients/__init__.py is in the way", check_workers_folder, made)
    else:
        check_workers_folder(made)


def test_flower_calls_the_grid_of_a_simulation_by_that_name() -> None:
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid

    assert is_simulated(InMemoryGrid.__new__(InMemoryGrid))


@pytest.mark.slow
def test_flwr_run_of_the_bundle_runs_the_quickstart_on_nodes_enough(
    project, environment, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    said = flwr_run(
        project, environment, tmp_path, "--run-config", f"output-dir={json.dumps(str(few))}"
    )
    assert 'flwr run . --federation-config "num-supernodes=16"' in said
    assert json.loads((few / "events.jsonl").read_text().splitlines()[-1])["event"] == "failed"
    out, text = (
        tmp_path / "out",
        (ROOT / "scenarios" / "quickstart.toml").read_text(encoding="utf-8"),
    )
    shorter = text.replace("rounds = 55", "rounds = 2").replace("burn_in = 5", "burn_in = 1")
    (tmp_path / "shorter.toml").write_text(shorter, encoding="utf-8")
    config = (
        f"output-dir={json.dumps(str(out))} scenario={json.dumps(str(tmp_path / 'shorter.toml'))}"
    )
    federation = "num-supernodes=16 client-resources-num-cpus=1"
    flwr_run(
        project, environment, tmp_path, "--run-config", config, "--federation-config", federation
    )
    summary = json.loads((out / "summary.json").read_text())
    assert {site["name"] for site in summary["sites"]} > {"uk-134", "uk-11", "new-zealand-121"}
    assert {row["status"] for row in summary["privacy"]} == {"OK"}
    assert (out / "report.html").is_file()
