import math

import pytest

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.tables import calibration_table, privacy_table


@pytest.fixture
def privacy(shown):
    return lambda summary: shown(privacy_table(parse_summary(summary)))


@pytest.fixture
def calibration(shown):
    return lambda summary: shown(calibration_table(parse_summary(summary)))


def test_privacy_table_shows_numbers_and_fits(summary, privacy):
    text = privacy(summary)
    line = next(line for line in text.splitlines() if "north-clinic" in line)
    assert line.split() == ["north-clinic", "1,234", "200", "1.96", "2.00", "1e-4", "0.613", "clt", "1.37", "OK"]
    assert "adding or removing one patient" in text
    assert "not an upper bound" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_privacy_table_undefined_and_infinite_limit(summary, privacy):
    summary["privacy"][0] |= {"epsilon": math.inf, "mu": math.inf, "temperature": None, "status": "REFUSED"}
    summary["privacy"][1] = {"site": "harbour-hospital", "status": "FAILED no reply in time"}
    text = privacy(summary)
    first = next(line for line in text.splitlines() if "north-clinic" in line)
    second = next(line for line in text.splitlines() if "harbour-hospital" in line)
    assert first.split()[3:8] == ["∞", "2.00", "1e-4", "∞", "clt"]
    assert second.split()[2:8] == ["–"] * 6


def test_epsilon_at_a_small_delta_stands_beside_a_large_one(summary, privacy):
    assert "At delta 1e-5" not in privacy(summary)
    summary["small_delta"] = {"site": "north-clinic", "delta": 1e-5, "epsilon": 2.3401}
    assert "At delta 1e-5 epsilon of north-clinic is 2.35." in " ".join(privacy(summary).split())


def test_seeded_run_says_so(summary, privacy):
    assert "seeded: not private" not in privacy(summary)
    assert "seeded: not private" in privacy({**summary, "seeded": True})


def test_calibration_table_pooled_first_and_predictors_beside(summary, calibration):
    lines = calibration(summary).splitlines()
    start = next(index for index, line in enumerate(lines) if "all held-out " in line)
    assert lines[start].split()[2:] == ["450", "last", "91.5", "0.304", "7.4", "(3.8)", "6.4", "[5.5,", "7.3]"]
    assert lines[start + 1].split() == ["posterior", "94.0", "0.214", "3.1", "(3.8)", "2.1", "[1.2,", "3.0]"]
    pooled = [index for index, line in enumerate(lines) if line.startswith(" all ")]
    assert max(pooled) < next(index for index, line in enumerate(lines) if "island" in line)
    assert max(map(len, lines)) <= 100
    assert "…" not in "".join(lines)


def test_means_over_sites_stand_between_the_pooled_rows_and_the_sites(summary, calibration):
    mean = {**summary["calibration"][0], "site": "mean:held_out", "role": "held_out", "intervals": {}}
    summary["calibration"].append(mean)
    lines = calibration(summary).splitlines()
    number = next(index for index, line in enumerate(lines) if line.startswith(" mean of held-out "))
    assert max(index for index, line in enumerate(lines) if line.startswith(" all ")) < number
    assert number < next(index for index, line in enumerate(lines) if "island" in line)


def test_calibration_table_undefined_is_a_dash(summary, calibration):
    summary["calibration"] = [{"site": "island", "role": "held_out", "predictor": "last", "n": 0}]
    line = next(line for line in calibration(summary).splitlines() if "island" in line)
    assert line.split() == ["island", "0", "last", "–", "–", "–", "(–)", "–"]


@pytest.mark.parametrize("name", ["[red]x[/red]", "[/]", "a" * 64])
def test_names_are_text_and_long_ones_fit(summary, name, shown):
    summary["privacy"][0]["site"] = name
    summary["calibration"][6]["site"] = name
    for table in (privacy_table(parse_summary(summary)), calibration_table(parse_summary(summary))):
        text = shown(table)
        assert name[:18] in text.replace("\n", "")
        assert max(map(len, text.splitlines())) <= 100


def test_control_characters_do_not_reach_the_terminal(summary, privacy):
    summary["privacy"][0]["site"] = "a\x1b[2Jb\u202ec"
    text = privacy(summary)
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("build", [privacy_table, calibration_table])
def test_narrow_terminal_loses_columns_and_breaks_no_word(summary, build, width, shown):
    text = shown(build(parse_summary(summary), width), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    table = text.split("Neighbours")[0].split("accuracy in %")[0]
    for name in ("north-clinic", "valley") if build is privacy_table else ("new-scanner", "university", "posterior"):
        assert name in table
    assert f"Left out at {width} columns:" in text.replace("\n", " ")
    assert "Left out" not in shown(build(parse_summary(summary)))


def test_long_names_break_at_hyphens(summary, privacy):
    summary["privacy"][0]["site"] = "children-and-maternity-hospital-of-the-valley"
    lines = privacy(summary).splitlines()
    start = next(index for index, line in enumerate(lines) if "children" in line)
    assert [line.split()[0] for line in lines[start : start + 2]] == [
        "children-and-maternity-",
        "hospital-of-the-valley",
    ]


def test_cost_of_noised_test_results_has_a_row_per_site(summary, privacy):
    assert "evaluation" not in privacy(summary)
    summary["evaluation_privacy"] = [
        {"site": "island", "unit": "patient", "delta": 1e-4, "epsilon": 0.8941, "epsilon_method": "pld", "mu": 0.35,
         "mu_kind": "exact", "budget": math.inf},
    ]  # fmt: skip
    line = next(line for line in privacy(summary).splitlines() if "island" in line)
    assert line.split() == ["island", "0.895", "∞", "1e-4", "0.350", "exact", "evaluation"]
