"""A run without privacy says so, and speaks of no account."""

import io
import math

import pytest
from rich.console import Console

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.headline import key_figures
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.tables import privacy_table

ACCOUNTING = ("pld", "clt", "central-limit", "ledger", "neighbours", "budget")


@pytest.fixture
def not_private(summary: dict) -> dict:
    for row in summary["privacy"]:
        row |= {"epsilon": math.inf, "mu": math.inf, "budget": math.inf, "temperature": None, "temperature_range": None}
    summary["releases"][0]["how"] = "sent without privacy"
    return summary | {"private": False}


@pytest.fixture
def page_of(write_run):
    """Write the page of a summary without figures, which take most of the time."""
    bare = {"calibration": [], "reliability": []}
    return lambda summary: write_report(write_run(summary | bare, [])).read_text(encoding="utf-8")


def printed(table) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return " ".join(console.file.getvalue().split()).lower()


def test_terminal_has_no_word_of_an_account(not_private: dict) -> None:
    text = printed(privacy_table(parse_summary(not_private)))
    assert "not private: epsilon is infinite" in text
    assert "∞" in text
    assert not [word for word in (*ACCOUNTING, "temp.", "delta", " mu ") if word in text]


def test_page_has_no_word_of_an_account(not_private: dict, page_of) -> None:
    page = page_of(not_private).lower()
    body = page.partition("<body>")[2]
    assert "(not private)</h1>" in body
    assert "not private: ε is infinite" in body
    assert not [word for word in (*ACCOUNTING, "temperature", "δ", "μ") if word in body]


def test_cost_of_noised_tests_is_still_shown(not_private: dict) -> None:
    not_private["evaluation_privacy"] = [
        {"site": "island", "unit": "patient", "delta": 1e-4, "epsilon": 0.8941, "epsilon_method": "pld", "mu": 0.35,
         "mu_kind": "exact", "budget": 2.0},
    ]  # fmt: skip
    text = printed(privacy_table(parse_summary(not_private)))
    assert "island 0.895 2.00 1e-4 0.350 exact evaluation" in text
    assert "north-clinic 1,234 200 ∞ ok" in text


def test_answer_and_key_figures_say_it(not_private: dict) -> None:
    assert answer(parse_summary(not_private)).privacy.startswith("Not private: epsilon is infinite.")
    assert key_figures(parse_summary(not_private))[-1] == ("∞", "epsilon: not private")


def test_absent_temperature_has_no_column_and_no_footnote(summary: dict, page_of) -> None:
    for row in summary["privacy"]:
        row |= {"temperature": None, "temperature_range": None}
    assert "temp." not in printed(privacy_table(parse_summary(summary)))
    assert "Temperature" not in page_of(summary)


def test_several_chains_cost_one_account(summary: dict, page_of) -> None:
    several = summary | {"chains": 3}
    said = "3 chains per site: their costs add up to this one account"
    assert said in printed(privacy_table(parse_summary(several)))
    assert said in page_of(several)
    assert "chains" not in printed(privacy_table(parse_summary(summary)))


def test_settings_are_a_table_of_the_page(summary: dict, page_of) -> None:
    settings = [{"name": "Clipping", "value": "flat, clip norm 3"}]
    page = page_of(summary | {"settings": settings})
    assert "What was run" in page
    assert "flat, clip norm 3" in page
    assert "What was run" not in page_of(summary)
