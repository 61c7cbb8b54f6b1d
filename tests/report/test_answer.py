import math

import pytest

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.headline import key_figures


def row_of(summary, site, predictor):
    return next(row for row in summary["calibration"] if (row["site"], row["predictor"]) == (site, predictor))


def test_answer_states_held_out_errors_and_privacy(summary):
    found = answer(parse_summary(summary))
    assert found.calibration == (
        "At held-out sites the averaged posterior's probabilities are off by 2.1 percentage points [1.2, 3.0]; the "
        "last iterate's by 6.4 [5.5, 7.3] (debiased RMS calibration error, n = 450). Averaging over the posterior is "
        "better calibrated."
    )
    assert found.elsewhere.startswith("At shifted sites the averaged posterior's probabilities are off by 8.3")
    assert found.privacy == (
        "Every one of the 4 hospitals that trained spent at most epsilon 1.96 at delta 1e-4 (adding or removing one "
        "patient)."
    )
    assert found.cautions == ()


@pytest.mark.parametrize(
    ("posterior", "last", "verdict"),
    [
        ([0.01, 0.06], [0.05, 0.08], "The intervals overlap: no clear difference."),
        ([0.05, 0.06], [0.06, 0.08], "The intervals overlap: no clear difference."),
        ([0.07, 0.09], [0.01, 0.02], "The last iterate is better calibrated."),
        ([0.01, 0.02], [0.03, 0.04], "Averaging over the posterior is better calibrated."),
        (None, [0.03, 0.04], "Without intervals, whether they differ is open."),
        ([0.01, None], [0.03, 0.04], "Without intervals, whether they differ is open."),
    ],
)
def test_verdict_follows_the_intervals(summary, posterior, last, verdict):
    row_of(summary, "pooled:held_out", "posterior")["intervals"]["rms_debiased"] = posterior
    row_of(summary, "pooled:held_out", "last")["intervals"]["rms_debiased"] = last
    assert answer(parse_summary(summary)).calibration.endswith(verdict)


@pytest.mark.parametrize("how", ["absent", "unmeasured"])
def test_without_a_held_out_site_training_sites_answer_and_it_is_said(summary, how):
    if how == "absent":
        summary["calibration"] = [row for row in summary["calibration"] if row["role"] != "held_out"]
    else:
        for predictor in ("last", "posterior"):
            row_of(summary, "pooled:held_out", predictor)["rms_debiased"] = None
    found = answer(parse_summary(summary))
    assert found.calibration.startswith("At the median of the training sites")
    assert "No site was held out" in found.cautions[0]


def test_without_any_calibration(summary):
    summary["calibration"] = []
    found = answer(parse_summary(summary))
    assert found.calibration == "Calibration at training sites was not measured."
    assert found.elsewhere == ""


def test_one_predictor_is_not_compared(summary):
    summary["calibration"] = [row for row in summary["calibration"] if row["predictor"] == "last"]
    text = answer(parse_summary(summary)).calibration
    assert "the last iterate's probabilities are off by 6.4 percentage points [5.5, 7.3]" in text
    assert "better" not in text
    assert "posterior" not in text


def test_seeded_run_is_called_not_private(summary):
    summary["seeded"] = True
    assert answer(parse_summary(summary)).cautions[0].startswith("Seeded: not private.")
    assert "not private (seeded)" in key_figures(parse_summary(summary))[-1][1]


def test_infinite_epsilon_is_no_guarantee(summary):
    summary["privacy"][2]["epsilon"] = math.inf
    assert (
        answer(parse_summary(summary)).privacy == "There is no privacy guarantee: epsilon is infinite at 1 of 4 sites."
    )
    summary["privacy"][2]["epsilon"] = None
    assert (
        answer(parse_summary(summary)).privacy
        == "There is no privacy guarantee: epsilon is not recorded at 1 of 4 sites."
    )


def test_several_deltas_are_named(summary):
    summary["privacy"][0]["delta"] = 1e-5
    assert "at its own delta, 1e-5 to 1e-4" in answer(parse_summary(summary)).privacy


def test_stopped_sites_and_tuning_are_cautions(summary):
    summary["privacy"][0]["status"] = "PARTIAL"
    summary["privacy"][1] |= {"status": "REFUSED BUDGET_EXHAUSTED", "steps": None, "epsilon": None}
    summary["configurations_tried"] = 12
    found = answer(parse_summary(summary))
    assert found.cautions[0] == "1 of 4 sites stopped early, at the end of the budget: north-clinic."
    assert found.cautions[1] == "1 of 4 sites refused a round: harbour-hospital."
    assert found.cautions[2].startswith("12 configurations were tried")
    assert "the 3 hospitals that trained" in found.privacy


def test_nobody_trained(summary):
    summary["privacy"] = []
    assert answer(parse_summary(summary)).privacy == "No privacy cost is recorded: no site trained."


def test_key_figures(summary):
    assert [value for value, _ in key_figures(parse_summary(summary))] == ["2.1", "6.4", "94.0%", "1.96"]


def test_epsilon_of_a_site_that_did_not_end_by_its_plan_or_budget_is_qualified(summary):
    assert not any("depend on what was seen" in caution for caution in answer(parse_summary(summary)).cautions)
    summary["privacy"][1]["status"] = "REFUSED BUSY"
    assert any(
        "depend on what was seen; if it did, the whole plan's" in caution
        for caution in answer(parse_summary(summary)).cautions
    )
