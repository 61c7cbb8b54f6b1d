"""A study with a declared baseline: opposite effects at two budgets are two findings, not none."""

import json
from pathlib import Path

import pandas as pd
import pytest

from fl_dpbayes.report.study.answer import study_answer
from fl_dpbayes.report.study.comparisons import differences
from fl_dpbayes.report.study.page import write_study_report
from fl_dpbayes.report.study.results import read_study
from fl_dpbayes.report.study.tables import baseline_table, differences_table

BETTER = {"1": 0.02, "8": -0.02}  # what sampler b adds to the error of both predictors, by epsilon
LANGEVIN = "sampler b, the averaged posterior"


@pytest.fixture
def folder(tmp_path: Path, write_study) -> Path:
    axes = {"sampler": ["a", "b"], "privacy.epsilon": [1, 8], "rule": ["fald", "mixture"]}
    folder = write_study(tmp_path, extra_axes=axes)
    table = pd.read_csv(folder / "results.csv")
    of_b = table["sampler"] == "b"
    for epsilon, added in BETTER.items():
        table.loc[of_b & (table["privacy.epsilon"].astype(str) == epsilon), "rms_debiased"] += added
    # Another rule helps one sampler as much as it hurts the other.
    table.loc[table["rule"] == "mixture", "rms_debiased"] += 0.1
    table.loc[(table["rule"] == "mixture") & of_b, "rms_debiased"] -= 0.105
    table.loc[table["privacy.epsilon"] == 8, "epsilon"] = 7.99
    table.loc[(table["privacy.epsilon"] == 8) & of_b, "epsilon"] = 1.852
    table.to_csv(folder / "results.csv", index=False)
    record = json.loads((folder / "study.json").read_text())
    record |= {
        "compare": ["predictor", "sampler", "rule"], "focus": {"rule": "fald"},
        "baseline": {"sampler": "a", "predictor": "posterior"}, "separate": ["privacy.epsilon"],
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(record))
    return folder


def test_each_sampler_is_held_against_averaged_descent_at_each_budget(folder: Path) -> None:
    found = [one for one in differences(read_study(folder), "rms_debiased") if one.method == LANGEVIN]
    assert [(one.at, one.baseline) for one in found] == [
        ("ε asked 1", "sampler a, the averaged posterior"), ("ε asked 8", "sampler a, the averaged posterior"),
    ]  # fmt: skip
    assert [one.value.mean for one in found] == pytest.approx([0.02, -0.02])
    # Two values of the axis that is neither compared nor kept apart; the focus keeps to one rule.
    assert {(one.value.seeds, one.value.settings) for one in found} == {(3, 2)}


def test_the_answer_names_both_directions_and_pools_neither(folder: Path) -> None:
    answer = study_answer(read_study(folder))
    assert answer.lead.startswith(
        "At held-out sites, with rule fald, the baseline, sampler a, the averaged posterior, is off by 3.1 points ["
    )
    assert answer.lead.count("at ε asked") == 2
    langevin = next(text for text in answer.differences if text.startswith("Sampler b, the averaged posterior"))
    assert "+2.0 points [2.0, 2.0] at ε asked 1; -2.0 points [-2.0, -2.0] at ε asked 8." in langevin
    rule = next(text for text in answer.differences if text.startswith("Rule mixture against rule fald"))
    assert rule.count("+10.0 points") == 2
    assert rule.count("-0.5 points") == 2
    assert not any(text.startswith("Compared with") for text in answer.differences)


def test_a_budget_that_was_not_spent_is_said(folder: Path) -> None:
    assert [text for text in study_answer(read_study(folder)).cautions if "spent at most" in text] == [
        "Sampler b spent at most ε 1.86 of the 8 that it was allowed: what it lost there, it did not lose to that "
        "budget."
    ]


def test_tables_hold_every_method_by_setting(folder: Path) -> None:
    study = read_study(folder)
    table = baseline_table(study)
    assert [(row[0][0], row[1][0]) for row in table.rows][:2] == [
        ("ε asked 1", "sampler a, the last iterate"), ("ε asked 1", "sampler a, the averaged posterior"),
    ]  # fmt: skip
    assert len(table.rows) == 2 * 2 * 2
    assert [row[3][0] for row in table.rows if row[1][0] == "sampler a, the averaged posterior"] == ["baseline"] * 2
    assert "At" in differences_table(study).columns
    assert "Beside the baseline" in write_study_report(folder).read_text()


def test_without_a_declared_baseline_nothing_is_kept_apart(tmp_path: Path, write_study) -> None:
    assert all(not one.at for one in differences(read_study(write_study(tmp_path)), "rms_debiased"))
