"""Every process that computes has MKL's conditional reproducibility, before torch's first product."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_dpbayes.models.conditional_reproducibility import reproducible_branch
from fl_dpbayes.reproducible_products import VARIABLE

pytestmark = pytest.mark.skipif(reproducible_branch() == "none", reason="this torch has no MKL")
PRODUCT = "import torch; torch.randn(64, 13) @ torch.randn(13, 2); "
ASK = (
    "from fl_dpbayes.models.conditional_reproducibility import reproducible_branch; "
    "print(reproducible_branch())"
)


def printed(code: str, **variables: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name != VARIABLE
    } | variables
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def branch_after(code: str, **variables: str) -> str:
    return printed(code + ASK, **variables)


@pytest.mark.parametrize(
    "imported",
    [
        "import fl_dpbayes",
        "import torch, fl_dpbayes",
        "from fl_dpbayes import cli",
        "from clients import app, answer",
        "from server import app",
        "from fl_dpbayes.study import cell",
        "from fl_dpbayes.hospital import node",
        "from fl_dpbayes.audit import audit",
        "from benchmarks import clip",
    ],
)
def test_each_entry_sets_it_before_the_first_product(imported: str) -> None:
    assert branch_after(f"{imported}; {PRODUCT}") == "AUTO"


@pytest.mark.parametrize(("chosen", "in_force"), [("COMPATIBLE", "COMPATIBLE"), ("", "AUTO")])
def test_a_value_that_somebody_chose_is_kept(chosen: str, in_force: str) -> None:
    assert branch_after(f"import fl_dpbayes; {PRODUCT}", **{VARIABLE: chosen}) == in_force


def test_after_a_product_it_is_too_late_and_mkl_says_so() -> None:
    assert branch_after(f"{PRODUCT} import fl_dpbayes; {PRODUCT}") == "off"


@pytest.mark.slow
def test_the_workers_of_a_cluster_that_others_started_set_it_themselves() -> None:
    started = (
        "import os, ray\n"
        "from fl_dpbayes.models.conditional_reproducibility import reproducible_branch\n"
        f"del os.environ['{VARIABLE}']\n"
        "ray.init(num_cpus=1, object_store_memory=2**27, include_dashboard=False, "
        "log_to_driver=False)\n"
        "print(ray.get(ray.remote(reproducible_branch).remote()))"
    )
    assert printed(started) == "AUTO"


@pytest.mark.slow
def test_every_process_of_a_flower_run_says_that_it_has_it(tmp_path: Path) -> None:
    short = "training={rounds=1, steps_per_round=2, burn_in=0, thinning=1}"
    asked = ["fl-dpbayes", "simulate", "digits", "--set", short, "--out", str(tmp_path / "run")]
    printed(f"import sys; from fl_dpbayes import cli; sys.argv = {asked}; cli.main()")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert {row["computation"] for row in summary["passes"]} == {"gradients", "predictions"}
    assert {row["reproducible"] for row in summary["passes"]} == {"AUTO"}
