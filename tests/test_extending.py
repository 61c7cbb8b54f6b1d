"""Each example of docs/extending.md, applied to a copy of the tree, passes the test that comes with it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECTIONS = re.split(
    r"^## (?=An? )",
    (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)[1:]
EXAMPLES = {
    section.splitlines()[0]: patch
    for section in SECTIONS
    for patch in re.findall(r"```diff\n(.*?)```", section, re.S)
}


def copied_tree(folder: Path) -> Path:
    for name in ("fl_dpbayes", "clients", "server", "scenarios", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def apply_example(tree: Path, title: str) -> str:
    """Apply an example's patch, and return the file of its test."""
    subprocess.run(["git", "apply", "-"], cwd=tree, input=EXAMPLES[title], text=True, check=True)
    (new_test,) = re.findall(r"^\+\+\+ b/(tests/\S+)", EXAMPLES[title], re.MULTILINE)
    return new_test


# Others' libraries take seconds and are imported once.
FORKED = """
import json, os, sys
import flwr.app, opacus, pandas, pytest, scipy.stats, sklearn.metrics, torch
for tree, tests in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        os.chdir(tree)
        sys.path[0] = os.environ["PYTHONPATH"] = tree
        status = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *tests])
        sys.stdout.flush()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, tree
"""


@pytest.mark.slow
def test_examples_work_each_as_it_stands_and_all_together(tmp_path: Path) -> None:
    assert len(EXAMPLES) == len(SECTIONS)
    together = copied_tree(tmp_path / "all together")
    tests = {str(together): [apply_example(together, title) for title in EXAMPLES]}
    for title in EXAMPLES:
        tree = copied_tree(tmp_path / title)
        tests[str(tree)] = [apply_example(tree, title)]
    done = subprocess.run(
        [sys.executable, "-c", FORKED, json.dumps(tests)],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
