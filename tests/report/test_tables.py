import math

import pytest

from fl_dpbayes.config import Classification, Measures
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.model_card import model_card
from fl_dpbayes.report.page_tables import run_tables
from fl_dpbayes.report.summary import parse_summary
from fl_dpbayes.report.tables import calibration_table, privacy_overview, privacy_table


def line_of(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if name in line)


def test_privacy_table_shows_numbers_and_fits(summary, shown):
    text = " ".join(shown(privacy_table, summary).split())
    assert "north-clinic patient 1,234 200 1.96 2.00 1e-4 0.613 clt 1.37 OK" in text
    assert "adding or removing one patient" in text
    assert "not an upper bound" in text
    summary["privacy"][0] |= {
        "epsilon": math.inf,
        "mu": math.inf,
        "temperature": None,
        "status": "REFUSED",
    }
    summary["privacy"][1] = {"site": "harbour-hospital", "status": "FAILED no reply in time"}
    text = shown(privacy_table, summary, 120)
    assert line_of(text, "north-clinic")[4:9] == ["∞", "2.00", "1e-4", "∞", "clt"]
    assert line_of(text, "harbour-hospital")[3:9] == ["–"] * 6


def test_a_small_delta_and_a_seed_are_said_beside_the_table(summary, shown):
    small = {"small_delta": {"site": "north-clinic", "delta": 1e-5, "epsilon": 2.3401}}
    said_of = "At delta 1e-5 epsilon of north-clinic is 2.35."
    for change, said in ((small, said_of), ({"seeded": True}, "seeded: not private")):
        assert said not in " ".join(shown(privacy_table, summary).split())
        assert said in " ".join(shown(privacy_table, summary | change).split())


def test_the_overview_of_costs_has_two_lines_below_it_and_names_what_weakens_it(summary, shown):
    small = {"small_delta": {"site": "north-clinic", "delta": 1e-5, "epsilon": 2.3401}}
    for change, expected in (
        (small, "At delta 1e-5 north-clinic has 2.35."),
        ({"seeded": True}, "Seeded: not private."),
        ({"private": False}, "Not private: epsilon is infinite."),
    ):
        text = shown(privacy_overview, summary | change, 80)
        assert expected in " ".join(text.split())
        assert "μ" not in text
        caption = text.rstrip().rpartition("\n ")[2]
        assert len(" ".join(caption.split())) <= 2 * 80


def test_the_overview_of_many_costs_shows_the_highest_and_whatever_is_not_ok(summary, shown):
    row = summary["privacy"][0]
    summary["privacy"] = [
        {**row, "site": f"h{number}", "epsilon": 1 + number / 100, "status": "OK"}
        for number in range(40)
    ]
    summary["privacy"][7]["status"] = "OK; 1 of 20 rounds FAILED no reply in time"
    summary["privacy"][9]["status"] = "PARTIAL"
    text = shown(privacy_overview, summary, 80)
    names = [line.split()[0] for line in text.splitlines() if line.startswith(" h")]
    assert names == ["h7", "h9", "h39"]
    assert "of 40 sites the one that spent most, and any not OK" in " ".join(text.split())
    assert "h12 " in shown(privacy_table, summary, 80)


def test_calibration_table_pooled_first_then_means_then_sites_and_the_words_of_the_page(
    summary, shown
):
    summary["calibration"].append(
        {**summary["calibration"][0], "site": "mean:held_out", "role": "held_out"}
    )
    lines = [" ".join(line.split()) for line in shown(calibration_table, summary).splitlines()]
    start = next(index for index, line in enumerate(lines) if line.startswith("all held-out"))
    assert lines[start] == "all held-out last iterate 450 6.4 [5.5, 7.3] 7.4 (3.8) 91.5"
    assert lines[start + 1] == "average of posterior samples 450 2.1 [1.2, 3.0] 3.1 (3.8) 94.0"
    pooled = [index for index, line in enumerate(lines) if line.startswith("all ")]
    (mean,) = [index for index, line in enumerate(lines) if line.startswith("mean of held-out ")]
    assert max(pooled) < mean < next(index for index, line in enumerate(lines) if "island" in line)
    summary["calibration"] = [{"site": "island", "role": "held_out", "predictor": "last", "n": 0}]
    assert line_of(shown(calibration_table, summary), "island")[3:7] == ["0", "–", "–", "(–)"]


@pytest.mark.parametrize("name", ["[red]x[/red]", "[/]", "a" * 64, "a\x1b[2Jb\u202ec"])
def test_names_are_text_and_long_ones_fit(summary, name, shown):
    summary["privacy"][0]["site"] = summary["calibration"][6]["site"] = name
    for text in (shown(privacy_table, summary), shown(calibration_table, summary)):
        assert name[:18].translate({0x1B: 0xFFFD, 0x202E: 0xFFFD}) in text.replace("\n", "")
        assert not {"\x1b", "\u202e"} & set(text)
        assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("build", [privacy_table, calibration_table])
def test_narrow_terminal_loses_columns_and_breaks_no_word(summary, build, width, shown):
    text = shown(build, summary, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    table = text.split("Neighbours")[0].split("Accuracy in %")[0]
    for name in (
        ("north-clinic", "valley")
        if build is privacy_table
        else ("new-scanner", "university", "posterior")
    ):
        assert name in table
    assert f"Left out at {width} columns:" in " ".join(text.split()) or (build, width) == (
        privacy_table,
        100,
    )
    assert "Left out" not in shown(build, summary, 140)


def test_long_names_break_at_hyphens(summary, shown):
    summary["privacy"][0]["site"] = "children-and-maternity-hospital-of-the-valley"
    text = shown(privacy_table, summary)
    assert line_of(text, "children")[0] == "children-and-maternity-"
    assert line_of(text, "hospital-of")[0] == "hospital-of-the-valley"


def test_another_outcomes_measures_are_the_columns_and_the_answer(summary, shown, monkeypatch):
    measures = Measures(first=("brier", "epistemic"), note="Lower is better.")
    monkeypatch.setattr(Classification, "measures", measures)
    for row in summary["calibration"]:
        row |= {"rms_debiased": None, "intervals": {}}
    text = shown(calibration_table, summary)
    assert line_of(text, "island")[-2:] == ["0.131", "0.030"]
    assert "Lower is better." in text
    assert not {"ECE", "RMS", "Accuracy"} & set(text.split())
    run = parse_summary(summary)
    tables = run_tables(run)
    for name in ("calibration", "all_metrics"):
        assert tables[name].columns[2:] == ("n", "Brier", "Epistemic, nats")
    assert answer(run).calibration == (
        "At held-out sites Brier score is 0.131 (average of posterior samples; n = 450)."
    )
    assert "measure the predictions on patients" in answer(run).advice
    assert model_card(run)["Performance measures"] == "Brier score, epistemic"
