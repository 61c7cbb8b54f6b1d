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


def test_every_section_has_one_short_example() -> None:
    assert len(EXAMPLES) == len(SECTIONS)
    for title, patch in EXAMPLES.items():
        added = [
            line
            for line in patch.splitlines()
            if line.startswith("+") and not line.startswith("+++")
        ]
        assert 0 < len(added) < 40, title


@pytest.mark.slow
@pytest.mark.parametrize("title", EXAMPLES)
def test_example_works_as_it_stands(tmp_path: Path, title: str) -> None:
    for folder in ("fl_dpbayes", "clients", "server", "scenarios", "tests"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    subprocess.run(
        ["git", "apply", "-"], cwd=tmp_path, input=EXAMPLES[title], text=True, check=True
    )
    (new_test,) = re.findall(r"^\+\+\+ b/(tests/\S+)", EXAMPLES[title], re.MULTILINE)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", new_test]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
