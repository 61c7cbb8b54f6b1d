"""A posterior of one sample is called what it is, and an interval is promised only where one is drawn."""

import copy

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.headline import key_figures
from fl_dpbayes.report.page_tables import all_metrics_table, metric_table
from fl_dpbayes.report.run_files import write_summary


def of_one_sample(summary: dict) -> dict:
    summary = copy.deepcopy(summary)
    for row in (*summary["calibration"], *summary["reliability"]):
        row |= {"samples": 1, "epistemic": None, "aleatoric": None}
    return summary


def test_sentences_tables_and_figures_call_it_a_point_estimate(summary, figures_of, tmp_path):
    point = of_one_sample(summary)
    run = parse_summary(point)
    text = str(answer(parse_summary(point)))
    assert "combined point estimate's probabilities are off by" in text
    assert "The combined point estimate is better calibrated." in text
    words = [text, *(meaning for _, meaning in key_figures(run)), *metric_table(run.calibration, "nll").columns]
    words += [row[1][0] for row in all_metrics_table(run.calibration).rows]
    write_summary(point, tmp_path)
    words += [figure.description + figure.svg for figure in figures_of(tmp_path).values()]
    assert "combined point estimate" in words[-1]
    assert not any("averag" in word.lower() for word in words)
    assert [cell for cell, _ in all_metrics_table(run.calibration).rows[0][-2:]] == ["–", "–"]
    assert "averaged posterior" in str(answer(parse_summary(summary)))


def test_figure_promises_intervals_only_where_it_draws_them(summary, figures_of, tmp_path):
    write_summary(summary, tmp_path)
    said = {name: figure.description for name, figure in figures_of(tmp_path).items()}
    assert said["sites-ece"] == "Calibration error, ECE (15 bins) at every site."
    assert said["sites-accuracy"] == "Accuracy at every site, with 95% intervals."
