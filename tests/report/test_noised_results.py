"""Noised results stand where exact ones do, marked, and are not told where noise hides them."""

import pytest

from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.headline import median_rows
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.run_files import write_summary
from fl_dpbayes.report.summary import parse_summary
from fl_dpbayes.report.tables import calibration_table

HIDDEN = ("rms_debiased", "nll", "auroc")


def hidden(row: dict) -> dict:
    """A row whose calibration error, log loss and AUROC noise hides."""
    intervals = row["intervals"] | {"auroc": [0.41, 1.0], "nll": [0.2, 1.4]}
    kept = {key: value for key, value in row.items() if key not in {*HIDDEN, "auroc_bounds"}}
    return kept | {"intervals": intervals, "cannot_tell": list(HIDDEN)}


@pytest.fixture
def noised(summary) -> dict:
    """A run of which all results left with noise, and those of held-out sites tell little."""
    rows = []
    for row in summary["calibration"]:
        if row["role"] == "held_out":
            rows.append(hidden(row))
        else:
            intervals = row["intervals"] | {"auroc": [0.91, 0.99]}
            rows.append(row | {"auroc_bounds": None, "intervals": intervals, "cannot_tell": []})
    return summary | {"calibration": rows}


def test_terminal_marks_noised_rows_and_says_what_they_cannot_tell(noised, summary, shown) -> None:
    text = " ".join(shown(calibration_table, noised, 160).split())
    assert "all held-out, noised last iterate 450 cannot tell [5.5, 7.3]" in text
    assert "cannot tell [0.410, 1.000]" in text
    assert "0.970 [0.910, 0.990]" in text
    assert "the interval is too wide to say anything" in text
    assert "oised" not in shown(calibration_table, summary, 160)


@pytest.mark.slow
def test_page_marks_noised_rows_and_says_what_they_cannot_tell(noised, tmp_path) -> None:
    write_summary(parse_summary(noised), tmp_path)
    page = write_report(tmp_path).read_text()
    assert "cannot tell" in page
    assert "noised" in page
    assert "Cannot tell: the interval is too wide to say anything." in page


def test_answer_does_not_say_that_nothing_was_measured(noised) -> None:
    found = answer(parse_summary(noised))
    assert "noise" in found.calibration or "noise" in " ".join(found.cautions)
    assert "Privacy noise hides how far probabilities are off at held-out sites" in " ".join(
        found.cautions
    )


def test_median_of_sites_is_hidden_where_most_are(noised) -> None:
    (row,) = (
        row
        for row in median_rows(parse_summary(noised))
        if row.role == "train" and row.predictor == "posterior"
    )
    assert row.noised
    assert row.cannot_tell == ()
    assert row.rms_debiased is not None
    sites = [
        hidden(row) if row["site"] in ("north-clinic", "st-anne", "valley") else row
        for row in noised["calibration"]
    ]
    (row,) = (
        row
        for row in median_rows(parse_summary(noised | {"calibration": sites}))
        if row.role == "train" and row.predictor == "posterior"
    )
    assert row.cannot_tell == ("auroc", "nll", "rms_debiased")
    assert row.nll is None
