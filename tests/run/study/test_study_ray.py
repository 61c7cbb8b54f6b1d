"""Ray as a study starts it: who can reach it."""

import subprocess
import sys
from pathlib import Path

import pytest

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
