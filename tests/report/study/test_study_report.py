"""The page of a study: its sentences claim what the numbers allow, its figures are means of them."""

import io
import math
from dataclasses import replace

import pandas as pd
import pytest
import tomli_w
from rich.console import Console
from scipy.stats import t as student

from fl_dpbayes.errors import UserError
from fl_dpbayes.report.figure_style import figure_settings
from fl_dpbayes.report.study.answer import study_answer
from fl_dpbayes.report.study.comparisons import differences, estimate, paired
from fl_dpbayes.report.study.figures import study_figures
from fl_dpbayes.report.study.page import write_study_report
from fl_dpbayes.report.study.panels import MOST_PANELS, PanelFigure, draw_panels
from fl_dpbayes.report.study.quantities import Estimate
from fl_dpbayes.report.study.results import StudyResults, label_text, read_study
from fl_dpbayes.report.study.show import show_study
from fl_dpbayes.report.study.tables import (
    baseline_table,
    differences_table,
    study_tables,
)

HALF = float(student.ppf(0.975, 2)) * 0.004 / math.sqrt(3)
COMPARED = "Compared with the last iterate (3 seeds × 2 settings): the average of posterior samples"


def figures_of(found: StudyResults) -> dict[str, PanelFigure]:
    return {figure.name: figure for section in study_figures(found) for figure in section.figures}


def panels_of(content: PanelFigure) -> list:
    with figure_settings("test"):
        return [axes for axes in draw_panels(content).axes if axes.get_title(loc="left")]


def texts_of(table) -> list[list[str]]:
    return [[cell for cell, _ in row] for row in table.rows]


def test_the_answer_opens_with_each_method_and_its_interval(study) -> None:
    answer = study_answer(study())
    assert (f"{100 * (0.031 - HALF):.1f}", f"{100 * (0.031 + HALF):.1f}") == ("2.1", "4.1")
    assert answer.lead == (
        "At held-out sites the last iterate is off by 6.4 points [5.4, 7.4]; the average of "
        "posterior samples by 3.1 "
        "points [2.1, 4.1]."
    )
    assert answer.differences == (
        f"{COMPARED} lowers the calibration error by 3.3 points [3.3, 3.3].",
    )
    assert answer.basis.startswith("6 of 6 cells finished; 3 seeds.")


def test_a_difference_is_said_as_its_interval_allows(study) -> None:
    unclear = study(noise=0.0, last_noise=0.02)
    assert study_answer(unclear).differences == (
        f"{COMPARED} shows no clear difference, -3.3 points [-8.3, 1.7].",
    )
    worse = study(lambda table: table.assign(rms_debiased=0.2 - table["rms_debiased"]))
    assert study_answer(worse).differences == (
        f"{COMPARED} raises the calibration error by 3.3 points [3.3, 3.3].",
    )


def test_one_seed_gives_no_interval_and_says_so(study) -> None:
    answer = study_answer(study(seeds=(2,), shifts=True))
    lead = (
        "At held-out sites the last iterate is off by 6.4 points; the average of posterior "
        "samples by 3.1 points."
    )
    assert answer.lead == lead
    basis = "the last iterate (one seed × 2 settings, hence no interval)"
    assert answer.differences == (
        f"Compared with {basis}: the average of posterior samples -3.3 points.",
    )
    assert "There is one seed: no interval can be given" in answer.basis
    assert "[" not in answer.lead + "".join(answer.differences) + answer.shifts


def test_the_worst_shift_is_named(study) -> None:
    # Means at rotation: 3.1 + 2 severity, half an interval 1.0; less at gamma and noise.
    assert study_answer(study(shifts=True)).shifts == (
        "Under shift, the average of posterior samples is worst at rotation, severity 5: "
        "13.1 points [12.1, 14.1]; "
        "unshifted: 3.1 points [2.1, 4.1]."
    )


def test_a_method_that_was_not_measured_everywhere_says_where(study) -> None:
    found = study(
        lambda table: table[(table["predictor"] != "last") | (table["partition.alpha"] > 1)]
    )
    lead = study_answer(found).lead
    assert "the last iterate is off by 5.4 points [4.4, 6.4] over 1 of 2 settings;" in lead


def test_other_metrics_are_named(study) -> None:
    answer = study_answer(study(None, {"metrics": ["nll"], "where": "away"}))
    assert answer.lead.startswith(
        "At away the negative log-likelihood is with the last iterate 0.328 ["
    )
    assert "lowers the negative log-likelihood by 0.066" in answer.differences[0]
    assert (
        study_answer(study(None, {"where": "nowhere"})).lead
        == "Nothing was measured by rms_debiased at nowhere."
    )


def test_cautions(study_folder) -> None:
    folder = study_folder(
        lambda table: table.assign(warnings=2 * (table["cell"] == "c1")),
        {
            "cells": {"all": 8, "finished": 6, "failed": 2},
            "failed": [{"labels": {"seed": 4}, "error": "lost"}],
        },
        alphas=(1.0,),
    )
    settings = {
        "simulation": {"insecure_seed": 3},
        "configurations_tried": 12,
        "data": {"source": {"kind": "heart"}},
    }
    (folder / "study.toml").write_text(tomli_w.dumps(settings))
    answer = study_answer(read_study(folder))
    said = (
        "Seeded: not private.",
        "2 cells are missing",
        "12 configurations",
        "data set (heart)",
        "1 of 3 runs ended",
    )
    assert all(words in text for words, text in zip(said, answer.cautions, strict=True))
    assert "2 failed" in answer.basis
    page = write_study_report(folder).read_text()
    assert "seed 4" in page
    assert "lost" in page


@pytest.mark.slow
def test_every_figure_that_can_be_drawn_is_drawn_saved_and_listed(study_folder) -> None:
    folder = study_folder(shifts=True, further=True)
    page = write_study_report(folder).read_text()
    names = {"methods-predictor", "sites", "subgroups", "shift-predictor", "shift-detection"}
    names |= {"conformal-coverage", "conformal-size"}
    assert {path.stem for path in (folder / "figures").iterdir()} == names
    assert page.count("<svg") == len(names)
    assert len(page) < 1_000_000


def test_figures_without_their_columns_are_left_out(study) -> None:
    columns = ["seconds", "heterogeneity", "epsilon"]
    assert set(figures_of(study(lambda table: table.drop(columns=columns)))) == {
        "methods-predictor",
        "sites",
    }


def test_many_kinds_of_shift_are_a_map_for_each_method(study, monkeypatch) -> None:
    monkeypatch.setattr("fl_dpbayes.report.study.figures.MOST_SHIFTS", 2)
    figures = figures_of(study(shifts=True))
    assert {"shift-predictor-last", "shift-predictor-posterior"} <= set(figures)
    assert "shift-predictor" not in figures
    with figure_settings("test"):
        (axes,) = draw_panels(figures["shift-predictor-posterior"]).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2", "3", "4", "5"]
    assert len(axes.patches) == 3 * 6
    assert "13.1" in {text.get_text() for text in axes.texts}


AVERAGE = "average of posterior samples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "panel", "place", "line", "mean", "half", "settings"),
    [
        ("methods-predictor", "Dirichlet α", "100", "last iterate", 0.054, HALF, 1),
        ("methods-predictor", "Dirichlet α", "0.1", AVERAGE, 0.041, HALF, 1),
        ("shift-predictor", "rotation", "5", AVERAGE, 0.131, HALF, 2),
        ("shift-predictor", "gamma", "0", "last iterate", 0.064, HALF, 2),
        ("conformal-coverage", "gamma", "5", "as calibrated", 0.76, 0.0, 2),
        ("subgroups", "sex", "male", AVERAGE, 0.051, HALF, 2),
        ("shift-detection", "rotation", "5", "epistemic uncertainty", 0.8, 2.5 * HALF, 2),
        ("sites", "held-out sites", "away", AVERAGE, 0.031, HALF, 2),
    ],
)
def test_a_figure_holds_means_over_seeds(
    study, name: str, panel: str, place: str, line: str, mean: float, half: float, settings: int
) -> None:
    figure = figures_of(study(shifts=True, further=True))[name]
    (content,) = [part for part in figure.panels if part.title == panel]
    (drawn,) = [part for part in content.lines if part.words == line]
    value = drawn.values[place]
    ends = (pytest.approx(mean - half), pytest.approx(mean + half))
    assert value == Estimate(pytest.approx(mean), ends, 3, settings)


def test_a_figure_draws_its_means(study) -> None:
    panels = panels_of(figures_of(study(shifts=True))["shift-predictor"])
    assert [axes.get_title(loc="left") for axes in panels] == [
        "gamma",
        "detector_noise",
        "rotation",
    ]
    drawn = [
        line
        for line in panels[2].lines
        if line.get_linestyle() == "-" and len(line.get_xdata()) > 2
    ]
    assert [list(line.get_ydata()) for line in drawn] == [
        pytest.approx([100 * (base + 0.02 * severity) for severity in range(6)])
        for base in (0.064, 0.031)
    ]
    low, high = panels[0].get_ylim()
    assert low == 0
    assert high > 16.4
    assert all(axes.get_ylim() == (low, high) for axes in panels)


def test_sites_that_change_roles_are_drawn_in_each(study) -> None:
    def edit(table: pd.DataFrame) -> None:
        table.loc[(table["site"] == "north") & (table["partition.alpha"] < 1), "role"] = "held_out"

    panels = {panel.title: panel for panel in figures_of(study(edit))["sites"].panels}
    assert {title: panel.places for title, panel in panels.items()} == {
        "training sites": ("north", "south"),
        "held-out sites": ("away", "north"),
    }


def test_a_recalibration_is_compared_by_the_predictor_that_it_makes(study) -> None:
    def edit(table: pd.DataFrame) -> pd.DataFrame:
        extra = table[
            (table["recalibration"] == "platt") & (table["predictor"] == "posterior")
        ].copy()
        extra["predictor"], extra["rms_debiased"] = "recalibrated", extra["rms_debiased"] - 0.01
        return pd.concat([table, extra])

    axes = {"recalibration": ["none", "platt"]}
    found = study(edit, {"compare": ["predictor", "recalibration"]}, extra_axes=axes)
    (one,) = [one for one in differences(found, "rms_debiased") if one.axis == "recalibration"]
    assert (one.method, one.baseline, one.value.seeds, one.value.settings) == (
        "platt",
        "none",
        3,
        2,
    )
    assert one.value.mean == pytest.approx(-0.01)
    said = "recalibration platt lowers the calibration error by 1.0 points [1.0, 1.0]"
    assert said in study_answer(found).differences[1]


def test_the_answer_keeps_to_the_focus_but_where_its_axis_is_compared(study) -> None:
    def answer(compare: list[str]) -> tuple:
        def edit(table: pd.DataFrame) -> None:
            table.loc[table["aggregation"] == "mixture", "rms_debiased"] += 0.2

        record = {"compare": compare, "focus": {"aggregation": "fald"}}
        found = study(edit, record, extra_axes={"aggregation": ["fald", "mixture"]})
        return study_answer(found), differences(found, "rms_debiased")

    found, compared = answer(["predictor", "aggregation"])
    assert found.lead.startswith(
        "At held-out sites, with aggregation rule fald, the last iterate is off by 6.4 points"
    )
    said = (
        "with aggregation rule fald (3 seeds × 2 settings): the average of posterior samples lowers"
    )
    assert said in found.differences[0]
    (predictor,) = [one.value for one in compared if one.axis == "predictor"]
    assert (predictor.mean, predictor.settings) == (pytest.approx(-0.033), 2)
    opening = answer(["aggregation", "predictor"])[0].lead
    assert opening.startswith("At held-out sites aggregation rule fald is off by 3.1 points")
    assert "aggregation rule mixture by 23.1 points" in opening


def test_tables_of_settings_differences_and_privacy(study) -> None:
    found = study(extra_axes={"privacy.epsilon": [1.0, 8.0]})
    tables = study_tables(found)
    settings = tables["settings"]
    assert settings.columns[:3] == ("Dirichlet α", "ε asked", "Predictor")
    assert len(settings.rows) == 8
    assert settings.rows[0][:4] == (
        ("100", ""),
        ("1", ""),
        ("last iterate", ""),
        ("5.4", "[4.4, 6.4]"),
    )
    rows, name = texts_of(tables["differences"]), "average of posterior samples – last iterate"
    assert [
        "predictor",
        name,
        "Calibration error, debiased RMS",
        "-3.3",
        "[-3.3, -3.3]",
        "3",
        "4",
    ] in rows
    assert ["predictor", name, "Accuracy", "3.3", "[3.3, 3.3]", "3", "4"] in rows
    assert texts_of(tables["spent"]) == [
        ["1.00", "3.96", "1e-4", "22", "6"],
        ["8.00", "3.96", "1e-4", "22", "6"],
    ]


@pytest.mark.parametrize(("epsilon", "shown"), [(math.inf, "∞"), (math.nan, "–")])
def test_an_unknown_or_infinite_epsilon_is_not_hidden(study, epsilon, shown) -> None:
    found = study(
        lambda table: table.assign(epsilon=table["epsilon"].where(table["cell"] != "c0", epsilon))
    )
    assert study_tables(found)["spent"].rows[0][1][0] == shown


def test_a_mean_counts_only_seeds_with_every_setting() -> None:
    frame = pd.DataFrame(
        {"seed": [1, 1, 2, 2, 3], "value": [1.0, 3.0, 2.0, 6.0, 100.0], "key": list("ababa")}
    )
    found = estimate(frame, "value")
    half = float(student.ppf(0.975, 1)) * math.sqrt(2) / math.sqrt(2)
    # No mean of values of 0 or more is below 0; one of differences may be.
    assert found == Estimate(3.0, (0.0, pytest.approx(3 + half)), 2, 2)
    lower = estimate(frame.assign(value=frame["value"] - 2.0), "value")
    assert lower == Estimate(1.0, (pytest.approx(1 - half), pytest.approx(1 + half)), 2, 2)
    assert estimate(frame, "nothing") is estimate(frame.assign(value=math.nan), "value") is None
    assert estimate(frame[frame["seed"] == 1], "value") == Estimate(2.0, None, 1, 2)
    difference = paired(frame, frame.assign(value=frame["value"] - 2.0), "value", ["key"])
    assert difference == Estimate(2.0, (2.0, 2.0), 2, 2)


def test_labels_agree_between_files() -> None:
    values = [100.0, "100", 0.1, 1e6, "none", True]
    assert list(map(label_text, values)) == ["100", "100", "0.1", "1000000", "none", "True"]


def test_a_study_without_a_finished_cell_has_a_page(study_folder) -> None:
    record = {"cells": {"all": 6, "finished": 0, "failed": 6}, "focus": {"partition.alpha": 0.1}}
    folder = study_folder(None, record)
    (folder / "results.csv").write_text("\n")
    page = write_study_report(folder).read_text()
    assert "Nothing was measured by rms_debiased at " in page
    assert "No cell finished." in page


def test_the_first_metric_is_printed_with_interval_and_bounds(study) -> None:
    def printed(**record: object) -> str:
        columns = {"auroc": 0.7, "auroc_low": 0.6, "auroc_high": 0.8}
        show_study(
            study(lambda table: table.assign(**columns), record),
            Console(width=200, file=(file := io.StringIO())),
        )
        return " ".join(file.getvalue().split())

    assert "percentage points, at pooled:held_out" in printed()
    assert "last iterate 5.4 [4.4, 6.4] 3" in printed()
    assert "0.700 [0.700, 0.700], bounds [0.600, 0.800]" in printed(metrics=["auroc"])
    assert "nothing was measured by auroc at nowhere" in printed(metrics=["auroc"], where="nowhere")


def test_many_panels_are_drawn_in_part(study) -> None:
    content = figures_of(study(seeds=(1, 2)))["methods-predictor"]
    many = replace(content, panels=content.panels * (MOST_PANELS + 1))
    assert len(panels_of(many)) == MOST_PANELS


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("study.json", "{", "damaged"),
        ("study.json", "{}", "is no study's record"),
        ("study.toml", "a = ", "damaged"),
        ("results.csv", 'a,b\n"1', "a table in"),
    ],
)
def test_a_damaged_folder_is_one_line(study_folder, name: str, content: str, words: str) -> None:
    folder = study_folder()
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=words) as caught:
        write_study_report(folder)
    assert "fl-dpbayes study --resume" in str(caught.value)
    assert "\n" not in str(caught.value)


LANGEVIN = "sampler b, the average of posterior samples"


@pytest.fixture
def beside(study_folder):
    """A study with a declared baseline: opposite effects at two budgets are two findings, not none."""

    def edit(table: pd.DataFrame) -> None:
        of_b, eight, mixture = (
            table["sampler"] == "b",
            table["privacy.epsilon"] == 8,
            table["rule"] == "mixture",
        )
        table.loc[of_b, "rms_debiased"] += 0.02
        table.loc[of_b & eight, "rms_debiased"] -= 0.04
        # Another rule helps one sampler as much as it hurts the other.
        table.loc[mixture, "rms_debiased"] += 0.1
        table.loc[mixture & of_b, "rms_debiased"] -= 0.105
        table.loc[eight, "epsilon"] = 7.99
        table.loc[eight & of_b, "epsilon"] = 1.852

    record = {
        "compare": ["predictor", "sampler", "rule"],
        "focus": {"rule": "fald"},
        "baseline": {"sampler": "a", "predictor": "posterior"},
        "separate": ["privacy.epsilon"],
    }
    axes = {"sampler": ["a", "b"], "privacy.epsilon": [1, 8], "rule": ["fald", "mixture"]}
    return study_folder(edit, record, extra_axes=axes)


def test_each_sampler_is_held_against_averaged_descent_at_each_budget(beside) -> None:
    found = [
        one for one in differences(read_study(beside), "rms_debiased") if one.method == LANGEVIN
    ]
    baseline = "sampler a, the average of posterior samples"
    assert [(one.setting, one.baseline) for one in found] == [
        ("ε asked 1", baseline),
        ("ε asked 8", baseline),
    ]
    assert [one.value.mean for one in found] == pytest.approx([0.02, -0.02])
    # Two values of the axis that is neither compared nor kept apart; the focus keeps to one rule.
    assert {(one.value.seeds, one.value.settings) for one in found} == {(3, 2)}


def test_the_answer_names_both_directions_pools_neither_and_says_what_was_not_spent(beside) -> None:
    answer = study_answer(read_study(beside))
    baseline = "the baseline, sampler a, the average of posterior samples, is off by 3.1 points ["
    assert answer.lead.startswith(f"At held-out sites, with rule fald, {baseline}")
    assert answer.lead.count("at ε asked") == 2
    # Three methods against the baseline, and the rules; the baseline's own axes are compared there.
    assert len(answer.differences) == 4
    langevin = next(text for text in answer.differences if text.startswith(f"S{LANGEVIN[1:]}"))
    assert "+2.0 points [2.0, 2.0] at ε asked 1; -2.0 points [-2.0, -2.0] at ε asked 8." in langevin
    rule = next(
        text for text in answer.differences if text.startswith("Rule mixture against rule fald")
    )
    assert (rule.count("+10.0 points"), rule.count("-0.5 points")) == (2, 2)
    assert not any(text.startswith("Compared with") for text in answer.differences)
    assert [text for text in answer.cautions if "spent at most" in text] == [
        "Sampler b spent at most ε 1.86 of the 8 that it was allowed: what it lost there, it "
        "did not lose to that "
        "budget."
    ]


@pytest.mark.slow
def test_tables_hold_every_method_by_setting(beside) -> None:
    found = read_study(beside)
    table = texts_of(baseline_table(found))
    assert [row[:2] for row in table][:2] == [
        ["ε asked 1", "sampler a, the last iterate"],
        ["ε asked 1", "sampler a, the average of posterior samples"],
    ]
    assert len(table) == 2 * 2 * 2
    assert [row[3] for row in table if row[1] == "sampler a, the average of posterior samples"] == [
        "baseline"
    ] * 2
    assert "At" in differences_table(found).columns


def test_a_baseline_is_on_the_page_only_where_one_is_declared(study_folder, study) -> None:
    assert all(not one.setting for one in differences(study(), "rms_debiased"))
    record = {"baseline": {"predictor": "last"}, "separate": ["partition.alpha"]}
    assert "Beside the baseline" in write_study_report(study_folder(None, record)).read_text()


def test_parquet_stands_in_for_the_table_of_results_and_without_either_nothing_is_written(
    study_folder,
) -> None:
    folder = study_folder()
    table = folder / "results.csv"
    pd.read_csv(table, keep_default_na=False, na_values=[""]).to_parquet(folder / "results.parquet")
    before = study_answer(read_study(folder))
    table.unlink()
    assert study_answer(read_study(folder)) == before
    (folder / "results.parquet").unlink()
    with pytest.raises(UserError, match="neither results"):
        read_study(folder)
