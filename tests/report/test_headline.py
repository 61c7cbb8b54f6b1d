"""What stands first resists one made-up site of three."""

import copy

import pytest

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.headline import headline_rows, key_figures, median_rows
from fl_dpbayes.report.tables import calibration_table


def three_sites(summary, third, pooled):
    """Give the held-out role two honest sites and a third; values are (error, accuracy, n)."""
    template = next(row for row in summary["calibration"] if row["site"] == "pooled:held_out")
    rows = [row for row in summary["calibration"] if row["role"] != "held_out"]
    sites = {"a": (0.05, 0.80, 400), "b": (0.09, 0.70, 300), "made-up": third, "pooled:held_out": pooled}
    for site, (error, accuracy, n) in sites.items():
        ends = {"rms_debiased": [max(0.0, error - 0.01), error + 0.01]}
        changed = {"site": site, "predictor": "posterior", "rms_debiased": error, "accuracy": accuracy, "n": n}
        rows.append({**template, **changed, "intervals": ends})
    return {**copy.deepcopy(summary), "calibration": rows}


@pytest.mark.parametrize("error", [0.0, 0.07, 0.9])
@pytest.mark.parametrize("accuracy", [0.0, 0.75, 0.9993])
def test_one_made_up_site_of_three_cannot_move_the_headline_beyond_the_honest_sites(summary, error, accuracy):
    run = parse_summary(three_sites(summary, (error, accuracy, 400_000), (error, accuracy, 400_700)))
    row = headline_rows(run, "held_out")["posterior"]
    assert row.site == "median:held_out"
    assert 0.05 <= row.rms_debiased <= 0.09
    assert 0.70 <= row.accuracy <= 0.80
    assert 300 <= row.n <= 400_000
    low, high = row.intervals["rms_debiased"]
    assert 0.04 <= low <= 0.08
    assert 0.06 <= high <= 0.10


def test_the_median_is_what_is_read_first(summary):
    made_up = three_sites(summary, (0.0, 0.9993, 400_000), (0.0, 0.9990, 400_700))
    found = answer(parse_summary(made_up)).calibration
    assert found.startswith("At the median of the held-out sites the averaged posterior's probabilities are off by 5.0")
    assert "n = 400 at a site" in found
    tiles = {meaning: value for value, meaning in key_figures(parse_summary(made_up))}
    assert tiles["accuracy at the median of the held-out sites, averaged posterior"] == "80.0%"
    assert "median of held-out" in "".join(map(str, calibration_table(parse_summary(made_up)).columns[0].cells))


def test_fewer_than_three_sites_are_read_as_before(summary):
    run = parse_summary(summary)
    sites = {
        role: [row for row in run.places if row.role == role and not row.pooled] for role in ("held_out", "shifted")
    }
    for role, rows in sites.items():
        assert len({row.site for row in rows}) < 3
        assert all(row.pooled for row in headline_rows(run, role).values())
    assert not [row for row in median_rows(run) if row.role != "train"]
