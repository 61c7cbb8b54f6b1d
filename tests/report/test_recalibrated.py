"""What tables, figures and report say of recalibration."""

import copy
import io
import math

from rich.console import Console

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.headline import key_figures
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.page_tables import privacy_table
from fl_dpbayes.report.run_files import write_summary
from fl_dpbayes.report.tables import calibration_table
from fl_dpbayes.report.tables import privacy_table as terminal_privacy_table


def recalibrated(summary: dict, epsilon: float = 1.5) -> dict:
    """Add a recalibrated predictor, half as far off, to a run's summary."""
    summary = copy.deepcopy(summary)
    for rows in (summary["calibration"], summary["reliability"]):
        for row in [row for row in rows if row["predictor"] == "posterior"]:
            added = row | {"predictor": "recalibrated"}
            if "rms_debiased" in row:
                rms = row["rms_debiased"] / 2
                added |= {"rms_debiased": rms, "epistemic": None, "aleatoric": None}
                added["intervals"] = row["intervals"] | {"rms_debiased": [rms - 0.004, rms + 0.004]}
            rows.append(added)
    for row in summary["privacy"]:
        row["recalibration_epsilon"] = epsilon
    return summary


def printed(table) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return " ".join(console.file.getvalue().split())


def test_it_stands_beside_the_posterior_everywhere(summary, figures_of, tmp_path):
    write_summary(recalibrated(summary), tmp_path)
    assert any("recalibrated" in name for name in figures_of(tmp_path))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "recalibrated posterior" in page
    assert "kept from training" in page
    assert "recalibrated" in printed(calibration_table(parse_summary(recalibrated(summary))))


def test_the_answer_and_the_key_figures_name_it(summary):
    with_it = recalibrated(summary)
    text = answer(parse_summary(with_it)).calibration
    assert text.endswith("Recalibrated, they are off by 1.1 [0.7, 1.5].")
    assert "Recalibrated" not in answer(parse_summary(summary)).calibration
    assert "recalibrated posterior" in key_figures(parse_summary(with_it))[0][1]


def test_its_cost_is_a_column_and_the_larger_of_both_is_the_answer(summary):
    assert "ε of recalibration" not in privacy_table(parse_summary(summary)).columns
    table = privacy_table(parse_summary(recalibrated(summary)))
    column = table.columns.index("ε of recalibration")
    assert [row[column][0] for row in table.rows] == ["1.50"] * 4
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert "at most epsilon 1.96 " in answer(parse_summary(recalibrated(summary))).privacy
    assert "at most epsilon 2.50 " in answer(parse_summary(recalibrated(summary, 2.5))).privacy
    assert "epsilon is infinite at 4 of 4" in answer(parse_summary(recalibrated(summary, math.inf))).privacy
    assert "epsilon at most 2.50" in printed(terminal_privacy_table(parse_summary(recalibrated(summary, 2.5))))


def test_map_that_is_mostly_noise_does_not_come_first(summary):
    noisy = recalibrated(summary) | {"recalibration": {"method": "temperature", "noise": "it is mostly noise"}}
    figures = [meaning for _, meaning in key_figures(parse_summary(noisy))]
    assert "averaged posterior" in figures[0]
    assert "recalibrated posterior" in figures[2]
    assert "mostly privacy noise" in figures[2]
    assert answer(parse_summary(noisy)).calibration.endswith("but do not use that: the map is mostly privacy noise.")
