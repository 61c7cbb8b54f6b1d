import re

import pytest

from fl_dpbayes.config.summary import CalibrationRecord
from fl_dpbayes.report.calibration_figures import MAX_PLACES, drawn_places
from fl_dpbayes.report.run_files import epsilon_curves

ROLES = ("held_out", "shifted", "train")
NAMES = [
    *(f"reliability-{role}-{predictor}" for role in ROLES for predictor in ("last", "posterior")), "epsilon",
    "sites-rms_debiased", "sites-ece", "sites-accuracy", "sites-nll", "reliability-sites",
]  # fmt: skip


@pytest.fixture(scope="module")
def drawn(reported, figures_of):
    return reported.parent, figures_of(reported.parent)


def test_every_figure_is_written_as_it_is_returned(drawn):
    run_dir, figures = drawn
    assert list(figures) == NAMES
    for figure in figures.values():
        assert (run_dir / "figures" / f"{figure.name}.svg").read_text(encoding="utf-8") == figure.svg


def test_text_stays_text(drawn, texts):
    found = {name: texts(figure.svg) for name, figure in drawn[1].items()}
    assert "Held-out sites, averaged posterior" in found["reliability-held_out-posterior"]
    assert "n = 450; off by 2.1 points [1.2, 3.0]" in found["reliability-held_out-posterior"]
    assert {"budget 2", "north-clinic", "valley", "round", "epsilon"} <= set(found["epsilon"])
    assert {"all held-out sites", "island", "last iterate"} <= set(found["sites-ece"])


def test_a_figure_promises_intervals_only_where_it_draws_them(drawn):
    descriptions = {name: figure.description for name, figure in drawn[1].items()}
    assert descriptions["sites-ece"] == "Calibration error, ECE (15 bins) at every site."
    assert descriptions["sites-accuracy"] == "Accuracy at every site, with 95% intervals."


def test_names_from_outside_are_drawn_literally(write_run, figures_of, summary, privacy_rounds, texts):
    summary["reliability"] = []
    for row in privacy_rounds:
        row["site"] = row["site"].replace("valley", "<b>$\\frac{$--></b>")
    figure = figures_of(write_run(summary, privacy_rounds))["epsilon"]
    assert "<b>$\\frac{$--></b>" in texts(figure.svg)
    assert "<b>" not in figure.inline


def test_a_mean_over_sites_is_drawn_as_no_site(write_run, figures_of, summary, texts):
    summary["reliability"] = []
    summary["calibration"].append({**summary["calibration"][0], "site": "mean:train", "role": "train"})
    figures = figures_of(write_run(summary, [])).values()
    assert not any("mean of" in text or "mean:" in text for figure in figures for text in texts(figure.svg) if text)


def test_a_figure_without_data_is_left_out(write_run, figures_of, summary):
    summary["calibration"], summary["reliability"] = [], []
    rows = [{"site": "valley", "round": 1, "epsilon": float("inf")}, {"site": "st-anne", "round": 1}]
    assert figures_of(write_run(summary, rows)) == {}


def test_empty_bins_have_no_point(write_run, figures_of, summary):
    for row in summary["reliability"]:
        for part in row["bins"]:
            part |= {"n": 0, "confidence": None, "accuracy": None, "band_low": None, "band_high": None}
    assert not any("reliability" in name for name in figures_of(write_run(summary)))


def test_epsilon_curves_skip_rounds_without_a_statement():
    rows = [
        {"site": "a", "round": "2", "epsilon": "1.5", "budget": "2.0"},
        {"site": "a", "round": "1", "epsilon": "1.0", "budget": "2.0"},
        {"site": "a", "round": "3", "epsilon": "", "budget": ""},
        {"site": "b", "round": "1", "epsilon": "", "budget": ""},
    ]
    (curve,) = epsilon_curves(rows)
    assert (curve.site, curve.rounds, curve.epsilons, curve.budget) == ("a", (1, 2), (1.0, 1.5), 2.0)


def test_many_sites_are_cut_to_the_worst_and_pooled_ones_stay():
    rows = [CalibrationRecord(site="pooled:train", role="train", predictor="last", ece=0.0, accuracy=1)]
    for i in range(90):
        rows.append(CalibrationRecord(site=f"s{i}", role="train", predictor="last", ece=i / 100, accuracy=i / 100))
    places = drawn_places(rows, "ece")
    assert len(places) == MAX_PLACES
    assert places[:2] == ["pooled:train", f"s{90 - MAX_PLACES + 1}"]
    assert drawn_places(rows, "accuracy")[:2] == ["pooled:train", "s0"]


def test_inline_svg_has_its_own_identifiers(drawn):
    _, figures = drawn
    seen: set[str] = set()
    for figure in figures.values():
        text = figure.inline
        identifiers = re.findall(r'\sid="([^"]*)"', text)
        assert all(name.startswith(f"{figure.name}-") for name in identifiers)
        references = re.findall(r'href="#([^"]*)"', text) + re.findall(r"url\(#([^)]*)\)", text)
        assert references
        assert set(references) <= set(identifiers)
        assert not seen & set(identifiers)
        seen |= set(identifiers)
        assert text.startswith("<svg")
        assert "xmlns" not in text
        assert "<style" not in text
        assert "width=" not in text[: text.index(">")]
