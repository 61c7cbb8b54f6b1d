"""A hospital's site needs no library of figures, data sets, images or clusters: what runs there without them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Runs in a process of its own, before anything of them is imported.
BLOCK = """
import sys
from importlib.abc import MetaPathFinder

BLOCKED = {"ray", "flwr_datasets", "datasets", "matplotlib", "torchvision"}

class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not installed at a hospital", name=name)

sys.meta_path.insert(0, Blocked())
"""
IMPORTS = """
import pkgutil
from importlib import import_module
import clients, fl_dpbayes.hospital
for package in (clients, fl_dpbayes.hospital):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        import_module(module.name)
for name in ("clients.app", "fl_dpbayes.cli", "fl_dpbayes.predict.paid_release", "fl_dpbayes.predict.update",
             "fl_dpbayes.coordinator.provision"):
    import_module(name)
assert not BLOCKED & {name.partition(".")[0] for name in sys.modules}
"""
ANSWERS = """
from pathlib import Path
from tests.asking import ROWS, evaluate, refusal_of
from tests.federations import TableSite
from fl_dpbayes.engine.inline_engine import task_identity
with task_identity():
    site = TableSite(Path(sys.argv[1]) / "site")
    site.write(ROWS)
    for ask in (lambda: site.answer("query"), site.train, lambda: evaluate(site)):
        assert refusal_of(ask()) is None
sys.argv = ["fl-dpbayes", "site", sys.argv[2], str(site.path)]
from fl_dpbayes.cli import main
main()
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK + code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_app_and_every_command_of_a_site_are_imported_without_them() -> None:
    done = run(IMPORTS)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["statement", "approve"])
def test_site_answers_and_says_what_left_without_them(tmp_path: Path, command: str) -> None:
    done = run(ANSWERS, tmp_path, command)
    assert done.returncode == 0, done.stderr
    assert {"statement": "train: 1 step", "approve": "bundle of the version"}[
        command
    ] in done.stdout


NEEDS_TORCHVISION = """
import numpy as np
from clients.messages import refusal_of
from fl_dpbayes.data.shifts.acquisition import shift_images
from fl_dpbayes.data.sources.images import load
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.backbone import backbone
for work in (
    lambda: load(None, "train"),
    lambda: backbone(None, None),
    lambda: shift_images(np.zeros((1, 1, 8, 8), np.float32), "contrast", 1, None),
):
    try:
        work()
    except UserError as error:
        print(str(error).replace("\\n", " "), refusal_of(error, {}).code.value)
"""


@pytest.mark.slow
def test_what_needs_torchvision_says_so_and_what_to_install() -> None:
    done = run(NEEDS_TORCHVISION)
    assert done.returncode == 0, done.stderr
    images, body, shifted = done.stdout.splitlines()
    for said in (images, body, shifted):
        assert "need torchvision" in said
        assert "hospital-images.txt" in said
        assert said.split()[-1] == "INSTALLATION_BROKEN"
