"""What README and docs show exists, runs and is up to date."""

import importlib.util
import re
from pathlib import Path

import pytest
import typer

from fl_dpbayes import cli

ROOT = Path(__file__).parent.parent
PAGES = {
    path: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
}
WRITTEN = {path: text for path, text in PAGES.items() if "results" not in path.parts}
README = PAGES[ROOT / "README.md"]


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_links_lead_somewhere_and_files_and_tests_that_pages_name_exist(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", WRITTEN[path]):
        if not link.startswith("http"):
            place, _, anchor = link.partition("#")
            target = (path.parent / place).resolve() if place else path
            assert target.exists(), link
            assert not anchor or anchor in anchors(PAGES[target]), link
    for name in re.findall(r"`((?:tests|fl_dpbayes|clients|server|docs|scenarios)/[\w/.-]+\.\w+)`", WRITTEN[path]):
        assert (ROOT / name).is_file(), name


def test_pages_use_the_words_of_the_field() -> None:
    for path, text in WRITTEN.items():
        assert not re.findall(r"\b(?:house|rooms?|strangers?)\b", text), path.name


def test_readme_is_read_in_one_look() -> None:
    assert len(README.splitlines()) <= 150


def test_every_page_can_be_reached() -> None:
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path, text in WRITTEN.items()
        for link in re.findall(r"\]\(([^)\s]+)\)", text)
    }
    for path in WRITTEN:
        assert path == ROOT / "README.md" or path in linked or path.parent in linked, path.name


def test_scenario_reference_is_up_to_date() -> None:
    place = ROOT / "docs" / "scenario_reference.py"
    specification = importlib.util.spec_from_file_location("scenario_reference", place)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert PAGES[ROOT / "docs" / "scenario.md"] == module.reference(), "run python docs/scenario_reference.py"


@pytest.mark.slow
def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    examples = [code for text in WRITTEN.values() for code in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)]
    for example in examples:
        exec(compile(example, "example", "exec"), {})
    printed = capsys.readouterr().out
    assert "samples at temperature" in printed
    assert "1.828" in printed
    section = PAGES[ROOT / "docs" / "run-directory.md"]
    for entry in (tmp_path / "runs" / "example").iterdir():
        assert f"`{entry.name}{'/' if entry.is_dir() else ''}`" in section or entry.suffix == ".log", entry.name


def test_commands_that_pages_list_are_all_there_are() -> None:
    group = typer.main.get_command(cli.app)
    assert isinstance(group, typer.core.TyperGroup)
    for text in (README, PAGES[ROOT / "docs" / "commands.md"]):
        rows = re.findall(r"^\| (`fl-dpbayes [^|]+)\|", text, flags=re.MULTILINE)
        listed = {name for row in rows for name in re.findall(r"`(?:fl-dpbayes )?([a-z]+)[^`]*`", row)}
        listed -= {"verify", "export", "repair"}
        assert listed <= set(group.commands)
    assert listed == set(group.commands), "docs/commands.md lists every command"
