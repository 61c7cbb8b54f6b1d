import re

import numpy as np
import pytest

from fl_dpbayes.report.figure_style import DrawnFigure
from fl_dpbayes.report.hospital_figures import NAMES_APART, heights_apart
from fl_dpbayes.report.run_files import read_epsilon_curves

NAMES = {
    *(
        f"reliability-{role}-{name}"
        for role in ("held_out", "shifted", "train")
        for name in ("last", "posterior")
    ),
    "epsilon",
    "sites-rms_debiased",
    "sites-accuracy",
    "sites-nll",
}


@pytest.mark.slow
def test_every_figure_is_saved_its_text_stays_text_and_says_what_it_draws(reported, texts):
    saved = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (reported.parent / "figures").iterdir()
    }
    assert set(saved) == NAMES
    found = {name: set(texts(svg)) for name, svg in saved.items()}
    held_out = {
        "Held-out sites, average of posterior samples",
        "n = 450; off by 2.1 points [1.2, 3.0]",
    }
    assert held_out <= found["reliability-held_out-posterior"]
    assert {"budget 2", "north-clinic", "valley", "round", "epsilon"} <= found["epsilon"]
    assert {"all held-out sites", "island", "last iterate"} <= found["sites-nll"]
    page = reported.read_text(encoding="utf-8")
    assert 'aria-label="Accuracy at every site, with 95% intervals."' in page


def test_names_from_outside_are_drawn_literally(
    write_run, figures_of, summary, privacy_rounds, texts
):
    summary["reliability"] = []
    for row in privacy_rounds:
        row["site"] = row["site"].replace("valley", "<b>$\\frac{$--></b>")
    folder = write_run(summary | {"calibration": []}, privacy_rounds)
    figure = figures_of(folder)["epsilon"]
    assert (folder / "figures" / "epsilon.svg").read_text(encoding="utf-8") == figure.svg
    assert "<b>$\\frac{$--></b>" in texts(figure.svg)
    assert "<b>" not in figure.inline


@pytest.mark.parametrize("rates", [[0.4, 0.41, 0.42], [0.97, 0.98, 0.99, 1.0], [0.1, 0.9]])
def test_names_beside_the_plot_of_hospitals_stand_apart_and_below_its_top(rates):
    heights = heights_apart(rates)
    assert min(np.diff(heights)) >= NAMES_APART - 1e-9
    assert heights[-1] <= 1
    # Names that are apart already stay at their dots.
    assert heights_apart([0.1, 0.9]) == [0.1, 0.9]


def test_a_mean_over_sites_is_drawn_as_no_site(write_run, figures_of, summary, texts):
    summary["reliability"] = []
    summary["calibration"].append(
        {**summary["calibration"][0], "site": "mean:train", "role": "train"}
    )
    figures = figures_of(write_run(summary, [])).values()
    assert not any(
        "mean of" in text or "mean:" in text
        for figure in figures
        for text in texts(figure.svg)
        if text
    )


@pytest.mark.slow
def test_a_figure_without_data_is_left_out(write_run, figures_of, summary):
    rows = [
        {"site": "valley", "round": 1, "epsilon": float("inf")},
        {"site": "st-anne", "round": 1},
    ]
    for row in summary["reliability"]:
        for part in row["bins"]:
            part |= {
                "n": 0,
                "confidence": None,
                "accuracy": None,
                "band_low": None,
                "band_high": None,
            }
    assert figures_of(write_run(summary | {"calibration": []}, rows)) == {}


def test_epsilon_curves_skip_rounds_without_a_statement(write_run, summary):
    rows = [
        {"site": "a", "round": 2, "epsilon": 1.5, "budget": 2},
        {"site": "a", "round": 1, "epsilon": 1, "budget": 2},
        {"site": "a", "round": 3},
        {"site": "b", "round": 1},
    ]
    (curve,) = read_epsilon_curves(write_run(summary, rows))
    assert (curve.site, curve.rounds, curve.epsilons, curve.budget) == (
        "a",
        (1, 2),
        (1.0, 1.5),
        2.0,
    )


def test_inline_svg_has_its_own_identifiers(reported):
    seen: set[str] = set()
    for path in (reported.parent / "figures").iterdir():
        text = DrawnFigure(path.stem, path.read_text(encoding="utf-8"), "").inline
        identifiers = set(re.findall(r'\sid="([^"]*)"', text))
        references = set(
            re.findall(r'href="#([^"]*)"', text) + re.findall(r"url\(#([^)]*)\)", text)
        )
        assert references
        assert references <= identifiers
        assert all(name.startswith(f"{path.stem}-") for name in identifiers)
        assert not seen & identifiers
        seen |= identifiers
        assert text.startswith("<svg")
        assert not re.search("xmlns|<style", text)
        assert "width=" not in text[: text.index(">")]
