"""The page of a study: its sentences claim what the numbers allow, its tables are the numbers of its figures."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import tomli_w
from scipy.stats import t as student

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.report.figure_style import figure_settings
from fl_dpbayes.report.study.answer import study_answer
from fl_dpbayes.report.study.comparisons import differences, estimate, paired
from fl_dpbayes.report.study.figures import study_figures
from fl_dpbayes.report.study.page import write_study_report
from fl_dpbayes.report.study.panels import MOST_PANELS, PanelFigure, draw_panels
from fl_dpbayes.report.study.results import label_text, read_study
from fl_dpbayes.report.study.tables import differences_table, figure_table, privacy_table, settings_table, spent_table

HALF = float(student.ppf(0.975, 2)) * 0.004 / math.sqrt(3)
HOSTILE = "<script>alert(1)</script>\" onload='x' <img src=//evil>"


def change(folder: Path, **changes: object) -> None:
    path = folder / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def figures_of(folder: Path) -> dict:
    return {figure.name: figure for _, _, figures in study_figures(read_study(folder)) for figure in figures}


def panels_of(content: PanelFigure) -> list:
    with figure_settings("test"):
        return [axes for axes in draw_panels(content).axes if axes.get_title(loc="left")]


def test_the_answer_opens_with_each_method_and_its_interval(tmp_path: Path, write_study) -> None:
    answer = study_answer(read_study(write_study(tmp_path)))
    low, high = 100 * (0.031 - HALF), 100 * (0.031 + HALF)
    assert (f"{low:.1f}", f"{high:.1f}") == ("2.1", "4.1")
    assert answer.lead == (
        "At held-out sites the last iterate is off by 6.4 points [5.4, 7.4]; the averaged posterior by 3.1 points "
        "[2.1, 4.1]."
    )
    assert answer.differences == (
        "Compared with the last iterate (3 seeds × 2 settings): the averaged posterior lowers the calibration error by "
        "3.3 points [3.3, 3.3].",
    )
    assert answer.basis.startswith("6 of 6 cells finished; 3 seeds.")


def test_a_difference_whose_interval_holds_0_is_not_clear(tmp_path: Path, write_study) -> None:
    answer = study_answer(read_study(write_study(tmp_path, noise=0.0, last_noise=0.02)))
    assert answer.differences == (
        "Compared with the last iterate (3 seeds × 2 settings): the averaged posterior shows no clear difference, "
        "-3.3 points [-8.3, 1.7].",
    )


def test_what_is_worse_is_said_to_raise_the_error(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path)
    table = pd.read_csv(folder / "differences.csv")
    ends = -table[["high", "low"]].to_numpy()
    table["mean"], table["low"], table["high"] = -table["mean"], ends[:, 0], ends[:, 1]
    table.to_csv(folder / "differences.csv", index=False)
    assert "raises the calibration error by 3.3 points [3.3, 3.3]" in study_answer(read_study(folder)).differences[0]


def test_one_seed_gives_no_interval_and_says_so(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path, seeds=(2,), shifts=True)
    answer = study_answer(read_study(folder))
    assert answer.lead == (
        "At held-out sites the last iterate is off by 6.4 points; the averaged posterior by 3.1 points."
    )
    assert answer.differences == (
        "Compared with the last iterate (one seed × 2 settings, hence no interval): the averaged posterior "
        "-3.3 points.",
    )
    assert "There is one seed: no interval can be given" in answer.basis
    assert "In the only seed it lies above 5 points first at" in answer.shifts
    assert "[" not in answer.lead + "".join(answer.differences) + answer.shifts


def test_the_worst_shift_is_named_and_where_the_error_is_surely_large(tmp_path: Path, write_study) -> None:
    answer = study_answer(read_study(write_study(tmp_path, shifts=True)))
    # Means at rotation: 3.1 + 2 severity, half an interval 1.0; gamma: 3.1 + 1.2 severity; noise: 3.1 + .1 severity.
    assert answer.shifts == (
        "Under shift, the averaged posterior is worst at rotation, severity 5: 13.1 points [12.1, 14.1]; unshifted: "
        "3.1 points [2.1, 4.1]. Its whole interval lies above 5 points first at severity 2 of rotation; severity 3 of "
        "gamma. Its mean stays below 5 points at every severity of detector_noise."
    )


def test_a_method_that_was_not_measured_everywhere_says_where(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path)
    table = pd.read_csv(folder / "results.csv")
    table = table[(table["predictor"] != "last") | (table["partition.alpha"] > 1)]
    table.to_csv(folder / "results.csv", index=False)
    lead = study_answer(read_study(folder)).lead
    assert "the last iterate is off by 5.4 points [4.4, 6.4] over 1 of 2 settings;" in lead


def test_other_metrics_are_named(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path, where="away")
    change(folder, metrics=["nll"])
    answer = study_answer(read_study(folder))
    assert answer.lead.startswith("At away the negative log-likelihood is with the last iterate 0.328 [")
    assert "lowers the negative log-likelihood by 0.066" in answer.differences[0]
    change(folder, metrics=["rms_debiased"], where="nowhere")
    assert study_answer(read_study(folder)).lead == "Nothing was measured by rms_debiased at nowhere."


def test_cautions(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path)
    settings = {"simulation": {"insecure_seed": 3}, "configurations_tried": 12, "data": {"source": {"kind": "heart"}}}
    (folder / "study.toml").write_text(tomli_w.dumps(settings))
    change(folder, cells={"all": 8, "finished": 6, "failed": 2}, failed=[{"labels": {"seed": 4}, "error": "lost"}])
    table = pd.read_csv(folder / "results.csv")
    table.loc[table["cell"] == "c1", "warnings"] = 2
    table.to_csv(folder / "results.csv", index=False)
    answer = study_answer(read_study(folder))
    text = " ".join(answer.cautions)
    assert answer.cautions[0].startswith("Seeded: not private.")
    assert "2 cells are missing" in text
    assert "12 configurations were tried" in text
    assert "one data set (heart)" in text
    assert "1 of 6 runs ended with warnings" in text
    assert "2 failed" in answer.basis
    page = write_study_report(folder).read_text()
    assert "seed 4" in page
    assert "lost" in page


@pytest.mark.slow
def test_every_figure_that_can_be_drawn_is_drawn_saved_and_listed(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path, shifts=True, further=True)
    page = write_study_report(folder).read_text()
    names = {
        "methods-predictor", "heterogeneity-predictor", "sites", "subgroups", "shift-predictor", "shift-detection",
        "epistemic", "conformal-coverage", "conformal-size", "truth", "seconds",
    }  # fmt: skip
    assert set(figures_of(folder)) == names
    assert {path.stem for path in (folder / "figures").iterdir()} == names
    assert page.count("<svg") == page.count("Numbers of this figure") == len(names)
    assert len(page) < 1_000_000


def test_figures_without_their_columns_are_left_out(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path, alphas=(1.0,))
    assert set(figures_of(folder)) == {"methods-predictor", "sites"}
    table = pd.read_csv(folder / "results.csv").drop(columns=["seconds", "heterogeneity", "epistemic", "epsilon"])
    table.to_csv(folder / "results.csv", index=False)
    page = write_study_report(folder).read_text()
    assert page.count("<svg") == 2


def test_the_table_of_a_figure_holds_its_numbers(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path, shifts=True, further=True)
    figures = figures_of(folder)

    def rows(name: str) -> list[list[str]]:
        return [[cell for cell, _ in row] for row in figure_table(figures[name]).rows]

    methods = rows("methods-predictor")
    assert ["Dirichlet α", "100", "last iterate", "5.40", "[4.41, 6.39]", "3", "1"] in methods
    assert ["Dirichlet α", "0.1", "averaged posterior", "4.10", "[3.11, 5.09]", "3", "1"] in methods
    shifts = rows("shift-predictor")
    assert ["rotation", "5", "averaged posterior", "13.10", "[12.11, 14.09]", "3", "2"] in shifts
    assert ["gamma", "0", "last iterate", "6.40", "[5.41, 7.39]", "3", "2"] in shifts
    assert len(shifts) == 3 * 6 * 2
    assert ["gamma", "5", "as calibrated", "76.0", "[76.0, 76.0]", "3", "2"] in rows("conformal-coverage")
    assert ["sex", "male", "averaged posterior", "5.10", "[4.11, 6.09]", "3", "2"] in rows("subgroups")
    half = float(student.ppf(0.975, 2)) * 0.01 / math.sqrt(3)
    found = ["rotation", "5", "epistemic uncertainty", "0.800", f"[{0.8 - half:.3f}, {0.8 + half:.3f}]", "3", "2"]
    assert found in rows("shift-detection")
    assert ["rotation", "3", "averaged posterior", "25.00", "[25.00, 25.00]", "3", "2"] in rows("epistemic")
    assert ["Dirichlet α", "100", "seconds of a cell", "22.0", "[19.5, 24.5]", "3", "1"] in rows("seconds")
    (at,) = [row for row in rows("truth") if row[:3] == ["debiased RMS", "away: 2.79", "averaged posterior"]]
    assert at[3] == "3.10"
    (at,) = [row for row in rows("heterogeneity-predictor") if row[1].startswith("0.620") and "last" in row[2]]
    assert at[3] == "7.40"
    assert ["held-out sites", "away", "averaged posterior", "3.10", "[2.11, 4.09]", "3", "2"] in rows("sites")


def test_a_figure_draws_what_its_table_lists(tmp_path: Path, write_study) -> None:
    content = figures_of(write_study(tmp_path, shifts=True))["shift-predictor"]
    panels = panels_of(content)
    assert [axes.get_title(loc="left") for axes in panels] == ["gamma", "detector_noise", "rotation"]
    drawn = [line for line in panels[2].lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 2]
    assert [list(line.get_ydata()) for line in drawn] == [
        pytest.approx([100 * (base + 0.02 * severity) for severity in range(6)]) for base in (0.064, 0.031)
    ]
    low, high = panels[0].get_ylim()
    assert low == 0
    assert high > 16.4
    assert all(axes.get_ylim() == (low, high) for axes in panels)


def test_sites_that_change_roles_have_a_panel_each(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path)
    table = pd.read_csv(folder / "results.csv")
    table.loc[(table["site"] == "north") & (table["partition.alpha"] < 1), "role"] = "held_out"
    table.to_csv(folder / "results.csv", index=False)
    panels = {panel.title: panel for panel in figures_of(folder)["sites"].panels}
    assert set(panels) == {"away", "north", "south"}
    assert panels["north"].ticks == ("trains", "held out")
    assert panels["south"].ticks == ("trains",)


def test_a_recalibration_is_compared_by_the_predictor_that_it_makes(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path, extra_axes={"recalibration": ["none", "platt"]})
    table = pd.read_csv(folder / "results.csv", keep_default_na=False, na_values=[""])
    extra = table[(table["recalibration"] == "platt") & (table["predictor"] == "posterior")].copy()
    extra["predictor"], extra["rms_debiased"] = "recalibrated", extra["rms_debiased"] - 0.01
    pd.concat([table, extra]).to_csv(folder / "results.csv", index=False)
    change(folder, compare=["predictor", "recalibration"])
    study = read_study(folder)
    (found,) = [one for one in differences(study, "rms_debiased") if one.axis == "recalibration"]
    assert (found.method, found.baseline) == ("platt", "none")
    assert found.value.mean == pytest.approx(-0.01)
    assert (found.value.seeds, found.value.settings) == (3, 2)
    assert (
        "recalibration platt lowers the calibration error by 1.0 points [1.0, 1.0]"
        in study_answer(study).differences[1]
    )


def test_the_answer_keeps_to_the_focus_but_where_its_axis_is_compared(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path, extra_axes={"aggregation": ["fald", "mixture"]})
    table = pd.read_csv(folder / "results.csv")
    table.loc[table["aggregation"] == "mixture", "rms_debiased"] += 0.2
    table.to_csv(folder / "results.csv", index=False)
    pd.read_csv(folder / "differences.csv").assign(predictor="").to_csv(folder / "differences.csv", index=False)
    change(folder, compare=["predictor", "aggregation"], focus={"aggregation": "fald"})
    study = read_study(folder)
    answer = study_answer(study)
    assert answer.lead.startswith(
        "At held-out sites, with aggregation rule fald, the last iterate is off by 6.4 points"
    )
    assert "with aggregation rule fald (3 seeds × 2 settings): the averaged posterior lowers" in answer.differences[0]
    (predictor,) = [one.value for one in differences(study, "rms_debiased") if one.axis == "predictor"]
    assert predictor.mean == pytest.approx(-0.033)
    assert predictor.settings == 2
    change(folder, compare=["aggregation", "predictor"])
    opening = study_answer(read_study(folder)).lead
    assert opening.startswith("At held-out sites aggregation rule fald is off by 3.1 points")
    assert "aggregation rule mixture by 23.1 points" in opening


def test_tables_of_settings_differences_and_privacy(tmp_path: Path, write_study) -> None:
    study = read_study(write_study(tmp_path, extra_axes={"privacy.epsilon": [1.0, 8.0]}))
    settings = settings_table(study)
    assert settings.columns[:3] == ("Dirichlet α", "ε asked", "Predictor")
    assert len(settings.rows) == 8
    assert settings.rows[0][:4] == (("100", ""), ("1", ""), ("last iterate", ""), ("5.4", "[4.4, 6.4]"))
    rows = [[cell for cell, _ in row] for row in differences_table(study).rows]
    name = "averaged posterior – last iterate"
    assert ["predictor", name, "Calibration error, debiased RMS", "-3.3", "[-3.3, -3.3]", "3", "4"] in rows
    assert ["predictor", name, "Accuracy", "3.3", "[3.3, 3.3]", "3", "4"] in rows
    assert [[cell for cell, _ in row] for row in spent_table(study).rows] == [
        ["1.00", "3.96", "1e-4", "22", "6"], ["8.00", "3.96", "1e-4", "22", "6"],
    ]  # fmt: skip
    assert len(privacy_table(study).rows) == 4


def test_an_unknown_or_infinite_epsilon_is_not_hidden(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path)
    table = pd.read_csv(folder / "results.csv")
    for value, shown in ((math.inf, "∞"), (math.nan, "–")):
        table.loc[table["cell"] == "c0", "epsilon"] = value
        table.to_csv(folder / "results.csv", index=False)
        assert spent_table(read_study(folder)).rows[0][1][0] == shown


def test_a_mean_counts_only_seeds_with_every_setting() -> None:
    frame = pd.DataFrame({"seed": [1, 1, 2, 2, 3], "value": [1.0, 3.0, 2.0, 6.0, 100.0], "key": list("ababa")})
    found = estimate(frame, "value")
    assert found is not None
    assert (found.mean, found.seeds, found.settings) == (3.0, 2, 2)
    half = float(student.ppf(0.975, 1)) * math.sqrt(2) / math.sqrt(2)
    # No mean of values of 0 or more is below 0; one of differences may be.
    assert found.ends == pytest.approx((0.0, 3 + half))
    lower = estimate(frame.assign(value=frame["value"] - 2.0), "value")
    assert lower is not None
    assert lower.ends == pytest.approx((1 - half, 1 + half))
    assert estimate(frame, "nothing") is None
    assert estimate(frame.assign(value=math.nan), "value") is None
    one = estimate(frame[frame["seed"] == 1], "value")
    assert one is not None
    assert one.ends is None
    difference = paired(frame, frame.assign(value=frame["value"] - 2.0), "value", ["key"])
    assert difference is not None
    assert (difference.mean, difference.low, difference.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(100.0, "100"), ("100", "100"), (0.1, "0.1"), (1e6, "1000000"), ("none", "none"), (True, "True")],
)
def test_labels_agree_between_files(value: object, text: str) -> None:
    assert label_text(value) == text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes += [name for name, _ in attributes]


@pytest.mark.slow
def test_hostile_names_stay_text_and_the_page_needs_nothing_else(tmp_path: Path, write_study) -> None:
    folder = write_study(
        tmp_path, question=HOSTILE, site=HOSTILE, shifts=True, further=True, extra_axes={HOSTILE: [HOSTILE, "b"]}
    )
    change(folder, study=HOSTILE, failed=[{"labels": {HOSTILE: HOSTILE}, "error": HOSTILE}], versions={"a": HOSTILE})
    page = write_study_report(folder).read_text()
    tags = Tags()
    tags.feed(page)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(tags.found)
    assert not [name for name in tags.attributes if name.startswith("on")]
    assert "alert(1)" in page
    assert not re.search(r'(href|src)="(?!#)', page)
    assert "default-src 'none'" in page


def test_a_study_without_a_finished_cell_has_a_page(tmp_path: Path, write_study) -> None:
    folder = write_study(tmp_path)
    for name in ("results", "differences"):
        (folder / f"{name}.csv").write_text("\n")
    change(folder, cells={"all": 6, "finished": 0, "failed": 6}, focus={"partition.alpha": 0.1})
    page = write_study_report(folder).read_text()
    assert "Nothing was measured by rms_debiased at held-out sites." in page
    assert "No cell finished." in page


def test_many_panels_are_drawn_in_part_and_listed_whole(tmp_path: Path, write_study) -> None:
    extra = {f"axis_{number}": [1, 2] for number in range(3)}
    content = figures_of(write_study(tmp_path, extra_axes=extra, seeds=(1, 2)))["methods-predictor"]
    assert len(content.panels) == 4
    many = type(content)(**{**content.__dict__, "panels": content.panels * 6})
    assert len(panels_of(many)) == MOST_PANELS
    assert len(figure_table(many).rows) == 6 * len(figure_table(content).rows)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("study.json", "{", "damaged"),
        ("study.json", "{}", "is no study's record"),
        ("study.toml", "a = ", "damaged"),
        ("results.csv", 'a,b\n"1', "a table in"),
    ],
)
def test_a_damaged_folder_is_one_line(tmp_path: Path, write_study, name: str, content: str, words: str) -> None:
    folder = write_study(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=words) as caught:
        write_study_report(folder)
    assert "fl-dpbayes study --resume" in str(caught.value)
    assert "\n" not in str(caught.value)
