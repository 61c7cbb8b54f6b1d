"""Every mistake that a newcomer made with a table of his own is one line that says what to do"""

import re
from pathlib import Path

import numpy as np
import pandas
import pytest

from tests.undrawn import undrawn

COLUMNS = "hospital;age;outcome"


@pytest.fixture
def scenario(tmp_path: Path, command) -> Path:
    generator = np.random.default_rng(1)
    table = pandas.DataFrame({"hospital": np.repeat(["St. Mary", "Süd", "Nord"], 60)})
    table["age"] = generator.normal(67, 11, 180).round(1)
    table["outcome"] = np.where(
        generator.random(180) < 1 / (1 + np.exp((67 - table["age"]) / 9)), "dead", "alive"
    )
    table.to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",", encoding="cp1252")
    out = tmp_path / "mine.toml"
    asked = ["--from", tmp_path / "t.csv", "--label", "outcome", "--site", "hospital", "--out", out]
    status, _, error = command("init", *asked)
    assert status == 0, error
    return out


# What the table holds instead, what is set, and what is said.
MISTAKES = [
    (f"{COLUMNS}\nNord;1;dead;\n", [], "lines have more cells than the first has names"),
    (
        f"{COLUMNS}\nNord;1;dead\n\nNord;;dead\n",
        [],
        "line 4, column 'age': missing, or no finite number",
    ),
    (
        None,
        ["sites.St Mary.role=train"],
        "sites.St Mary: a site's name is 1 to 64 of .* for example 'St-Mary'",
    ),
    (None, ["sites.East.role=train"], "sites.East: choose one of Nord, St.-Mary, Sud"),
    (None, ["data.source.site_column="], "name a table's site_column"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("content", "settings", "said"), MISTAKES)
def test_a_mistake_is_one_line(
    scenario, refusal, tmp_path, monkeypatch, content, settings, said
) -> None:
    # The table lies beside the scenario, wherever the command is given.
    monkeypatch.chdir("/")
    if content is not None:
        (tmp_path / "t.csv").write_text(content)
    assignments = [word for one in settings for word in ("--set", one)]
    error = refusal("simulate", scenario, "--out", tmp_path / "run", *assignments)
    assert error.count("\n") == 1
    assert re.search(said, error), error


@pytest.mark.slow
def test_odd_features_and_budgets_are_told_at_the_start_and_a_left_budget_at_the_end(
    scenario, command, monkeypatch
) -> None:
    monkeypatch.setattr("fl_dpbayes.report.figures.drawn_figure", undrawn)

    def said_of(name: str, *settings: str) -> str:
        words = [
            word
            for one in ("training.rounds=2", "training.burn_in=0", *settings)
            for word in ("--set", one)
        ]
        status, said, _ = command(
            "simulate", scenario, "--out", scenario.parent / name, "--engine", "inline", *words
        )
        assert status == 0
        return " ".join(said.split())

    floor = ("privacy.coupling=floor", "privacy.temperature=1.0")
    said = said_of("a", "data.source.centers=[0]", "data.source.scales=[0.001]", *floor)
    assert "hold for all: 'age' (about 70,000). Correct data.source.centers" in said
    assert "Less was spent than allowed: the sampler itself needs this much noise." in said
    assert "is far too small" not in said
    said = said_of("b", "privacy.epsilon=.001")
    assert "'age' (about" not in said
    assert "Less was spent" not in said
    # Before the run, and among its warnings, which the page has too.
    assert said.count("epsilon 0.001 is far too small for") == 2
    drowned_to = re.search(r"up to an epsilon of about (\d\.\d+), and a useful model", said)
    assert drowned_to, said
    assert "far too small" not in said_of("c", f"privacy.epsilon={drowned_to[1]}")
