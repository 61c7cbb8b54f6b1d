"""What a type checker and an editor see of the face: every keyword, with its type."""

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg

from fl_dpbayes.api.strategies import FedAvgKeys

# What others wrote takes long to read and says nothing of our keywords. A torch module and a Flower
# decorator are Any then.
SETTINGS = """
[mypy]
strict = True
disallow_subclassing_any = False
disallow_untyped_decorators = False
ignore_missing_imports = True
incremental = False
[mypy-torch.*,pandas.*,matplotlib.*,sklearn.*,scipy.*,flwr.*,flwr_datasets.*,datasets.*]
follow_imports = skip
[mypy-opacus.*,safetensors.*,ray.*,rich.*,cryptography.*,PIL.*,jinja2.*,IPython.*,arviz.*]
follow_imports = skip
"""
BEGINNING = """
from torch import nn

import fl_dpbayes as fl

net = nn.Linear(2, 2)
data = ([[0.1, 0.2]] * 30, [0, 1] * 15)
sites = fl.sites_from_datasets({"north": data, "south": data})
privacy = fl.Privacy(epsilon=4, delta=1e-3)
"""
RIGHT = """
fl.simulate(sites, {"seed": 1}, privacy=privacy, rounds=4, rule=fl.FALD(robust="median"))
fl.simulate("quickstart", model=net, sampler=fl.DPSGLD(step_size={"kind": "constant", "initial": 1}))
fl.simulate(sites, model=fl.MLP(hidden=[32, 16]), privacy=fl.NoPrivacy(sampling_rate=0.2))
fl.Privacy(epsilon=4, delta=1e-3, clipping={"kind": "per-layer"})
fl.private_chain(net, data, privacy, rounds=1, thinning=2, units=[1, 2])
fl.PrivateChain(net, data, privacy, sampler=fl.DPSGHMC(friction=0.3), position={}).advance().last
fl.Distillation(rule="distillation", public={"kind": "synthetic"}).iterations + 1
fl.strategies.FALD(fraction_train=0.5, burn_in=3)
[row.ece for row in fl.load_run("runs/mine").calibration if row.site == "north" and row.n]
fl.ChainRelease.load("chain.safetensors", net).samples[0]["weight"]


def run_with(budget: fl.Privacy | fl.NoPrivacy, sampler: fl.DPSGLD, model: fl.MLP) -> fl.Run:
    return fl.simulate(sites, privacy=budget, sampler=sampler, model=model, rule=fl.FALD())


run_with(privacy, fl.DPSGLD(step_size=0.3), fl.MLP())
"""
WRONG = {
    "fl.simulate(sites, privcy=privacy)": '"privcy" for "simulate"; did you mean "privacy"?',
    "fl.simulate(sites, privacy=4.0)": 'incompatible type "float"; expected "PrivacyPlan',
    "fl.Privacy(target_epsilon=4, delta=1e-3)": 'keyword argument "target_epsilon"',
    "fl.private_chain(net, data, privacy, round=3)": 'did you mean "rounds"?',
    "fl.private_chain(net, data, privacy, rounds='3')": 'type "str"; expected "int"',
    "fl.PrivateChain(net, data, privacy, batch_size=3)": 'keyword argument "batch_size"',
    "fl.DPSGLD(stepsize=0.3)": 'did you mean "step_size"?',
    "fl.MLP(hidden=32)": 'type "int"; expected "Sequence[int]',
    "fl.strategies.FALD(fraction_trian=0.5)": 'did you mean "fraction_train"?',
    "fl.load_run('runs/mine').calibration[0].ecee": 'has no attribute "ecee"',
}


@pytest.mark.slow
def test_strict_mypy_sees_ten_wrong_lines_and_lets_right_ones_and_the_examples_pass(
    tmp_path: Path,
) -> None:
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    docs = Path(__file__).parents[2] / "docs"
    shutil.copytree(docs / "flower", tmp_path, dirs_exist_ok=True)
    page = (docs / "python.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "page.py").write_text("\n".join(examples))
    (tmp_path / "right.py").write_text(BEGINNING + RIGHT)
    (tmp_path / "wrong.py").write_text(BEGINNING + "\n".join(WRONG))
    files = ["right.py", "page.py", "wrong.py", "server.py", "task.py", "clients/app.py"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    first_line = BEGINNING.count("\n") + 1
    assert len(errors) == len(WRONG), checked.stdout + checked.stderr
    for number, (error, words) in enumerate(zip(errors, WRONG.values(), strict=True), first_line):
        assert error.startswith(f"wrong.py:{number}: error: ")
        assert words in error


def test_keywords_of_flowers_strategy_are_flowers() -> None:
    assert [*FedAvgKeys.__annotations__] == [*inspect.signature(FedAvg).parameters]
