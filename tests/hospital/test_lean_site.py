"""A hospital's site needs no library of figures, data sets, images or clusters: what runs there without them."""

import pytest

from tests.forked import Ended, run_forked

# Runs before anything of them is imported.
BLOCK = """
import sys
from importlib.abc import MetaPathFinder

BLOCKED = {"ray", "flwr_datasets", "datasets", "matplotlib", "torchvision"}

class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not installed at a hospital", name=name)

sys.meta_path.insert(0, Blocked())
import flwr.clientapp, opacus, pandas, scipy.stats, sklearn.metrics, torch
"""
IMPORTS = """
import pkgutil, sys
from importlib import import_module
import clients, fl_dpbayes.hospital
for package in (clients, fl_dpbayes.hospital):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        import_module(module.name)
for name in ("clients.app", "fl_dpbayes.cli", "fl_dpbayes.predict.paid_release", "fl_dpbayes.predict.update",
             "fl_dpbayes.coordinator.provision"):
    import_module(name)
blocked = {"ray", "flwr_datasets", "datasets", "matplotlib", "torchvision"}
assert not blocked & {name.partition(".")[0] for name in sys.modules}
"""
ANSWERS = """
import sys
from pathlib import Path
from tests.asking import ROWS, evaluate, refusal_of
from tests.federations import TableSite
from fl_dpbayes.engine.inline_engine import task_identity
with task_identity():
    site = TableSite(Path({folder!r}))
    site.write(ROWS)
    for ask in (lambda: site.answer("query"), site.train, lambda: evaluate(site)):
        assert refusal_of(ask()) is None
sys.argv = ["fl-dpbayes", "site", {command!r}, str(site.path)]
from fl_dpbayes.cli import main
main()
"""
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
COMMANDS = ("statement", "approve")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How each of these ends in a process of its own."""
    codes = {"imports": IMPORTS, "needs torchvision": NEEDS_TORCHVISION}
    for command in COMMANDS:
        folder = str(tmp_path_factory.mktemp(command) / "site")
        codes[command] = ANSWERS.format(folder=folder, command=command)
    return run_forked(BLOCK, codes)


@pytest.mark.slow
def test_app_and_every_command_of_a_site_are_imported_without_them(ended) -> None:
    assert ended["imports"].status == 0, ended["imports"].errors


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_site_answers_and_says_what_left_without_them(ended, command: str) -> None:
    done = ended[command]
    assert done.status == 0, done.errors
    said = {"statement": "train: 1 step", "approve": "bundle of the version"}
    assert said[command] in done.output


@pytest.mark.slow
def test_what_needs_torchvision_says_so_and_what_to_install(ended) -> None:
    done = ended["needs torchvision"]
    assert done.status == 0, done.errors
    images, body, shifted = done.output.splitlines()
    for said in (images, body, shifted):
        assert "need torchvision" in said
        assert "hospital-images.txt" in said
        assert said.split()[-1] == "INSTALLATION_BROKEN"
