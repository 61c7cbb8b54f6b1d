"""What README and docs show exists, runs and is up to date."""

import csv
import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import fl_dpbayes
from fl_dpbayes import cli
from fl_dpbayes.config.scenario import load_scenario
from tests.undrawn import undrawn

ROOT = Path(__file__).parent.parent
PAGES = {
    path: path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
}
WRITTEN = {path: text for path, text in PAGES.items() if "results" not in path.parts}
README = PAGES[ROOT / "README.md"]


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    named = set(re.findall(r'<a id="([\w-]+)"></a>', text))
    return named | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_links_lead_somewhere_and_files_and_tests_that_pages_name_exist(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", WRITTEN[path]):
        if not link.startswith("http"):
            place, _, anchor = link.partition("#")
            target = (path.parent / place).resolve() if place else path
            assert target.exists(), link
            assert not anchor or anchor in anchors(PAGES[target]), link
    for name in re.findall(
        r"`((?:tests|fl_dpbayes|clients|server|docs|scenarios)/[\w/.-]+\.\w+)`", WRITTEN[path]
    ):
        assert (ROOT / name).is_file(), name


LONGEST_SENTENCE = 35


def sentences(page: str) -> list[str]:
    """Return a page's prose: no code, formulas, tables, headings or places of links."""
    page = re.sub(r"^( *)```.*?^\1```", "\n", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"^ *(?:\||#+ |<!--).*$", "\n", page, flags=re.MULTILINE)
    page = re.sub(r"(?<=\n\n) {4,}(?![-*] |\d+\. ).*?(?=\n\n|\Z)", "", page, flags=re.DOTALL)
    page = re.sub(r"!?\[((?:[^][]|\[[^]]*\])*)\]\([^)\s]*\)", r"\1", page)
    page = re.sub(r"`[^`]*`|\$[^$]*\$", "code", page)
    paragraphs = re.split(r"\n\s*\n|^ *>? *(?:[-*+]|\d+\.) ", page, flags=re.MULTILINE)
    return [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.!?])[)*\"\u201d]*\s+", " ".join(paragraph.split()))
    ]


def long_sentences(page: str) -> list[str]:
    return [
        sentence
        for sentence in sentences(page)
        if len(re.findall(r"\S*\w\S*", sentence)) > LONGEST_SENTENCE
    ]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_no_sentence_is_longer_than_a_reader_can_hold(path: Path) -> None:
    assert not long_sentences(WRITTEN[path])


def test_a_long_sentence_is_seen_in_text_and_lists_and_not_in_code_tables_or_links() -> None:
    words = " ".join(["word"] * LONGEST_SENTENCE)
    for page in (
        f"# Title\n\n| a | table |\n|---|---|\n\nShort. A {words}.",
        f"```\ncode\n```\n- one\n- A {words}.",
        f"> 1. A\n>    {words}.",
    ):
        assert len(long_sentences(page)) == 1, page
    for page in (
        f"{words}. {words}.",
        f"```\na {words}\n```",
        f"| a {words} |",
        f"Text:\n\n    a = {words}\n\nmore",
        f"- {words}\n- {words}",
        f"[{words}](a-page.md#and-a-place)",
    ):
        assert not long_sentences(page), page


def test_the_decision_page_quotes_what_was_measured() -> None:
    page = " ".join(PAGES[ROOT / "docs" / "decision.md"].split())
    with (ROOT / "docs" / "results" / "verdicts" / "verdicts.csv").open(encoding="utf-8") as file:
        rows = {(row["truth"], row["patients"]): row for row in csv.DictReader(file)}

    def share(truth: str, patients: str, word: str) -> str:
        return f"{100 * float(rows[truth, patients][word]):.0f} of 100"

    fits = [share("calibrated", patients, "fits here") for patients in ("200", "50")]
    assert f"({fits[0]} simulated hospitals; with 50 patients {fits[1]})" in page
    low, high = "odds 3 times too low", "odds 3 times too high"
    assert f"50 patients ({share(low, '50', 'recalibrate first')})" in page
    assert f"200 ({share(high, '200', 'recalibrate first')})" in page
    stroke = PAGES[ROOT / "docs" / "results" / "stroke" / "README.md"]
    for source, percents, said in (
        ("all, at home", "41 62 82 92", "50 patients closed .82"),
        ("one sum at epsilon 1", "10 29 68 84", ".68 with 50 patients and .10 with ten"),
    ):
        row = rf"hospitals, known: nothing \| {source} \| " + r"\D+\| ".join(percents.split())
        assert re.search(row.replace(r"\D+\|", r" \[[^|]*\|"), stroke), source
        assert said in page


@pytest.mark.parametrize(
    ("script", "page"),
    [
        ("tools.scenario_reference", "scenario"),
        ("tools.glossary", "glossary"),
        ("benchmarks.speed_page", "speed"),
    ],
)
def test_written_pages_are_up_to_date(script: str, page: str) -> None:
    module = importlib.import_module(script)
    assert PAGES[ROOT / "docs" / f"{page}.md"] == module.reference(), f"run python -m {script}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a DataLoader's data set is read once")
def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_dpbayes.report.figures.drawn_figure", undrawn)
    # The page on own data first: it makes the table that others read.
    for path in sorted(WRITTEN, key=lambda path: path.name != "own-data.md"):
        names: dict[str, object] = {}
        for example in re.findall(r"```python\n(.*?)```", WRITTEN[path], flags=re.DOTALL):
            exec(compile(example, path.name, "exec"), names)
    printed = capsys.readouterr().out
    assert "epistemic_uncertainty" in printed
    assert "1.828" in printed
    section = PAGES[ROOT / "docs" / "run-directory.md"]
    for entry in (tmp_path / "runs" / "example").iterdir():
        assert (
            f"`{entry.name}{'/' if entry.is_dir() else ''}`" in section or entry.suffix == ".log"
        ), entry.name


@pytest.mark.slow
def test_own_data_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_dpbayes.report.figures.drawn_figure", undrawn)
    page = PAGES[ROOT / "docs" / "own-data.md"]
    (make,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(make, "own-data", "exec"), {})
    (corrected,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    for shown in re.findall(r"^\$ fl-dpbayes (.*\n.*)", page, flags=re.MULTILINE):
        line, _, answer = shown.partition("\n")
        engine = ["--engine", "inline"] if line.startswith("simulate") else []
        with pytest.raises(SystemExit) as end:
            cli.commands()(shlex.split(line) + engine)
        printed = " ".join(capsys.readouterr().out.split())
        assert (end.value.code or 0) == 0, printed
        assert (
            " ".join(answer.replace("engine flower", "engine inline").split(", writing")[0].split())
            in printed
        )
        if line.startswith("init"):
            scenario = Path("patients.toml").read_text(encoding="utf-8")
            for key in corrected.splitlines():
                scenario, found = re.subn(
                    rf"^{key.split(' =')[0]} = .*$", key, scenario, flags=re.MULTILINE
                )
                assert found == 1, key
            Path("patients.toml").write_text(scenario, encoding="utf-8")
    assert "n = 246" in Path("runs/first/report.html").read_text(encoding="utf-8")


def test_commands_that_pages_list_are_all_there_are() -> None:
    group = typer.main.get_command(cli.app)
    assert isinstance(group, typer.core.TyperGroup)
    for text in (README, PAGES[ROOT / "docs" / "commands.md"]):
        rows = re.findall(r"^\| (`fl-dpbayes [^|]+)\|", text, flags=re.MULTILINE)
        listed = {
            name for row in rows for name in re.findall(r"`(?:fl-dpbayes )?([a-z]+)[^`]*`", row)
        }
        listed -= {"verify", "export", "repair"}
        assert listed <= set(group.commands)
    assert listed == set(group.commands), "docs/commands.md lists every command"


@pytest.mark.slow
def test_pages_build_as_a_site_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip(
        "mkdocs", reason="the site needs the extra docs: pip install 'fl-dpbayes[docs]'"
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    shown = (tmp_path / "api" / "python.html").read_text(encoding="utf-8")
    missing = {name for name in fl_dpbayes.__all__ if f'id="fl_dpbayes.{name}"' not in shown}
    assert missing <= {
        "__version__",
        "strategies",
    }  # the second is a module, with a heading of its own


def test_stroke_scenario_has_the_settings_that_the_search_chose() -> None:
    folder = ROOT / "docs" / "results" / "stroke"
    public = load_scenario(
        "stroke", [(folder / "covariance.toml").read_text(encoding="utf-8").strip()]
    )
    assert (public.model.features.scales, len(public.model.features.covariance)) == ((), 25)
    chosen = json.loads((folder / "settings.json").read_text(encoding="utf-8"))["declared"][
        "settings"
    ]
    found, (rounds, burn_in) = load_scenario("stroke"), chosen.pop("rounds")
    assert (found.training.rounds, found.training.burn_in) == (rounds, burn_in)
    assert chosen == {
        "clip_norm": found.privacy.clip_norm,
        "size_power": found.aggregation.power,
        "prior_scale": found.sampler.prior.scale,
        "step_size": found.sampler.step_size.initial,
    }


NO_FIGURES = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import fl_dpbayes.report.figures
from tests.undrawn import undrawn
fl_dpbayes.report.figures.drawn_figure = undrawn
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the notebook's own machinery
def test_tutorial_notebook_runs(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the notebook needs nbclient and ipykernel")
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", 4)
    assert not any(cell.get("outputs") for cell in notebook.cells), (
        "kept without results: noise is fresh"
    )
    notebook.cells.insert(0, nbformat.v4.new_code_cell(NO_FIGURES))
    notebook.cells.append(
        nbformat.v4.new_code_cell("assert 0.4 < np.mean(display.prob_true) < 0.52  # 46 % of 296")
    )
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    page, figure = (
        notebook.cells[-2].outputs[0],
        [cell.outputs for cell in notebook.cells if "Display" in cell.source],
    )
    assert "new-zealand" in page["data"]["text/html"]
    assert "image/png" in str(figure)
