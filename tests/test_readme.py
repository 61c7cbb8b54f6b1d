"""What the README shows runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
THREAT_MODEL = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_library_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "samples at temperature" in printed
    assert "\n1.828" in printed
    section = README.partition("## What is in a run directory")[2].partition("\n## ")[0]
    for entry in (tmp_path / "runs" / "example").iterdir():
        assert f"`{entry.name}{'/' if entry.is_dir() else ''}`" in section or entry.suffix == ".log", entry.name


def test_files_and_tests_that_it_names_exist() -> None:
    text = README + THREAT_MODEL
    named = set(re.findall(r"`((?:tests|fl_dpbayes|server|samplers)/[\w/]+\.py)`", text))
    named |= {f"tests/privacy/{name}" for name in re.findall(r"`(test_\w+\.py)`", text)}
    assert len(named) > 5
    for name in named:
        assert (ROOT / name).is_file() or (ROOT / "fl_dpbayes" / name).is_file(), name
    for image in re.findall(r"\]\((docs/[^)]+)\)", README):
        assert (ROOT / image).exists(), image


def test_commands_that_it_lists_exist() -> None:
    import typer

    from fl_dpbayes import cli

    group = typer.main.get_command(cli.app)
    listed = {
        name
        for row in re.findall(r"^\| `fl-dpbayes ([^`]+)`(.*?)\|", README, flags=re.MULTILINE)
        for name in [row[0].split()[0].rstrip(",")]
    }
    assert {"simulate", "report", "predict", "evaluate", "account", "audit", "site", "bench"} <= listed
    assert listed <= set(group.commands)
