"""Each example of docs/extending.md, applied to a copy of the tree, passes the test that comes with it."""

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


# An outcome is a loss, a prediction, sums and a metric.
MOST_LINES = {"An outcome": 100}


def test_every_section_has_one_short_example() -> None:
    assert len(EXAMPLES) == len(SECTIONS)
    for title, patch in EXAMPLES.items():
        added = [
            line
            for line in patch.splitlines()
            if line.startswith("+") and not line.startswith("+++")
        ]
        assert 0 < len(added) < MOST_LINES.get(title, 40), title


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


def check_tests(tree: Path, *tests: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=tree, env={"PYTHONPATH": str(tree)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("title", EXAMPLES)
def test_example_works_as_it_stands(tmp_path: Path, title: str) -> None:
    tree = copied_tree(tmp_path)
    check_tests(tree, apply_example(tree, title))


@pytest.mark.slow
def test_examples_work_all_together(tmp_path: Path) -> None:
    tree = copied_tree(tmp_path)
    check_tests(tree, *[apply_example(tree, title) for title in EXAMPLES])
