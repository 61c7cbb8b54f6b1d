"""Every process that computes has MKL's conditional reproducibility, before torch's first product."""

import os
import subprocess
import sys

import pytest

from fl_dpbayes.models.conditional_reproducibility import reproducible_branch
from fl_dpbayes.reproducible_products import VARIABLE
from tests.forked import run_forked

pytestmark = pytest.mark.skipif(reproducible_branch() == "none", reason="this torch has no MKL")
PRODUCT = "import torch; torch.randn(64, 13) @ torch.randn(13, 2); "
ASK = (
    "from fl_dpbayes.models.conditional_reproducibility import reproducible_branch; "
    "print(reproducible_branch())"
)


SET = f"import os; os.environ['{VARIABLE}'] = "
# Code -> what is in force after it.
CASES = {
    **{
        f"{imported}; {PRODUCT}": "AUTO"
        for imported in (
            "import fl_dpbayes",
            "from fl_dpbayes import cli",
            "from clients import app, answer",
            "from server import app",
            "from fl_dpbayes.study import cell",
            "from fl_dpbayes.hospital import node",
            "from fl_dpbayes.audit import audit",
            "from benchmarks import clip",
            f"{SET}''; import fl_dpbayes",
        )
    },
    # A value that somebody chose is kept.
    f"{SET}'COMPATIBLE'; import fl_dpbayes; {PRODUCT}": "COMPATIBLE",
    # It is too late, and MKL says so.
    f"{PRODUCT}import fl_dpbayes; {PRODUCT}": "off",
}
# MKL has multiplied nothing before a child does.
OTHERS = "import flwr.app, opacus, pandas, scipy.stats, sklearn.metrics, torch"


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def printed(code: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.slow
def test_it_is_set_before_the_first_product() -> None:
    assert printed(f"import fl_dpbayes; {PRODUCT}{ASK}") == "AUTO"


@pytest.mark.slow
def test_each_entry_sets_it_unless_somebody_chose_or_it_is_too_late() -> None:
    ended = run_forked(OTHERS, {code: code + ASK for code in CASES}, environment())
    assert {code: each.output.strip() for code, each in ended.items()} == CASES


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
