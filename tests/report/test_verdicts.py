"""The table that a page opens with: a row a hospital, those that took no part first."""

import math

import pytest

from fl_dpbayes.calibration import MOST_SHOWN, CalibrationRecord, verdict
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.evaluation_page import write_evaluation
from fl_dpbayes.report.glossary import VERDICTS
from fl_dpbayes.report.hospitals import HospitalVerdict, hospital_verdicts
from fl_dpbayes.report.numbers import unbroken
from fl_dpbayes.report.run_files import parse_summary
from fl_dpbayes.report.tables import verdict_table
from fl_dpbayes.report.verdicts import calibration_words, verdicts

INTERVALS = {
    "fits here": {"auroc": [0.7, 0.9], "calibration_intercept": [-0.3, 0.3]},
    "recalibrate first": {"auroc": [0.7, 0.9], "calibration_intercept": [-1.9, -1.2]},
    "does not fit": {"auroc": [0.4, 0.55], "calibration_intercept": [-0.3, 0.3]},
    "too few to tell": {"auroc": [0.4, 0.9], "calibration_intercept": [-1.0, 1.0]},
}


def row(site: str, role: str, word: str, risk: float = 0.3, predictor: str = "posterior"):
    return {
        "site": site,
        "role": role,
        "predictor": predictor,
        "n": 200,
        "accuracy": 0.8,
        "nll": 0.4,
        "auroc": 0.8,
        "event_rate": 0.2,
        "mean_risk": risk,
        "rms_debiased": 0.1,
        "intervals": {**INTERVALS[word], "event_rate": [0.15, 0.26]},
    }


@pytest.fixture
def told(summary):
    summary["calibration"] = [
        row("pooled:held_out", "held_out", "fits here"),
        row("a", "train", "fits here"),
        row("b", "held_out", "recalibrate first", risk=0.46),
        row("c", "held_out", "too few to tell"),
        row("c", "held_out", "does not fit", predictor="last"),
        row("d", "shifted", "does not fit"),
    ]
    summary["reliability"] = []
    summary["class_names"] = ["survived", "died"]
    return summary


def test_a_row_a_hospital_of_the_predictor_that_would_be_taken(told):
    seen = verdicts(parse_summary(told))
    cells = [[value for value, _ in line] for line in seen.shown.rows]
    assert [(line[0], line[1]) for line in cells] == [
        ("b", "▲ recalibrate first"),
        ("c", "? too few to tell"),
        ("d", "✗ does not fit"),
        ("a", "✓ fits here"),
    ]
    assert seen.shown.columns[2] == "Of 100 patients, died"
    assert seen.shown.rows[0][2] == ("predicted 46, happened 20", "15 to 26")
    # Of hospitals that took no part.
    assert seen.sentence == (
        "Hospitals that took no part: 1 does not fit, 1 recalibrate first, 1 too few to tell."
    )
    assert seen.folded.rows == []


def test_levels_of_hospitals_come_before_the_one_model(told):
    told["calibration"].append(row("b", "held_out", "fits here", predictor="hierarchical"))
    assert [(seen.row.site, seen.word) for seen in hospital_verdicts(parse_summary(told))] == [
        ("b", "fits here")
    ]


def test_above_twelve_hospitals_those_clearly_or_farthest_off_stand_open(told):
    told["calibration"] += [
        row(f"hospital-{number}", "held_out", "too few to tell", risk=0.3 + number / 100)
        for number in range(20)
    ]
    seen = verdicts(parse_summary(told))
    names = [line[0][0] for line in seen.shown.rows]
    assert len(names) == MOST_SHOWN
    # Two of them are certain, whose risks are off by less than those of ten others.
    assert {"b", "d"} < set(names)
    assert names[:2] == ["b", "hospital-19"]
    assert "hospital-9" not in names
    assert len(seen.folded.rows) == 24 - MOST_SHOWN


def test_one_that_took_no_part_stands_open_though_trained_ones_are_farther_off(told):
    told["calibration"] += [
        row(f"hospital-{number}", "train", "too few to tell", risk=0.5) for number in range(20)
    ]
    names = [line[0][0] for line in verdicts(parse_summary(told)).shown.rows]
    # The risks at c are off by less than those of the twenty.
    assert {"b", "c", "d"} < set(names)


def test_advice_names_the_hospitals_of_each_word_and_is_no_advice_on_a_patient(told):
    told["calibration"] += [row(f"e{number}", "train", "too few to tell") for number in range(7)]
    assert answer(parse_summary(told)).advice == (
        "For research: not for decisions about a patient. This is no medical device. "
        "Do not rely on the model: d. Recalibrate first, then measure again: b. Watch: a. "
        "Look at more patients: c, e0, e1, e2, e3, e4 and 2 more. Anywhere else: measure first."
    )


def test_one_sentence_says_how_far_the_shown_rows_are_off(told):
    # Of b, c and d, not of a, which trained: 46, 30 and 30 where 20 of 100 had the event.
    assert verdicts(parse_summary(told)).gaps == (
        "Where the model did not train, risks differ from what happened by 10 to 26 of 100 "
        "patients."
    )


def test_the_page_of_one_evaluation_tells_of_risks_too(told, tmp_path, monkeypatch):
    none: dict = {name: [] for name in ("panels", "reliability", "other_figures")}
    monkeypatch.setattr("fl_dpbayes.report.evaluation_page.draw_figures", lambda *_, **__: none)
    told["calibration"] = [row("b", "held_out", "recalibrate first", risk=0.46)]
    page = write_evaluation(tmp_path / "page", parse_summary(told)).read_text(encoding="utf-8")
    assert "On 200 records risks differ from what happened by 26 of 100 patients." in page
    assert "For research: not for decisions about a patient." in page


def hospital(word, **intervals):
    measured = row("a", "train", word) | {"calibration_intercept": -0.49}
    measured["intervals"] = measured["intervals"] | intervals
    return HospitalVerdict(row=CalibrationRecord.model_validate(measured), word=word)


def test_a_factor_of_an_interval_that_excludes_1_does_not_read_as_1():
    words = calibration_words(hospital("recalibrate first", calibration_intercept=[-0.95, -0.02]))
    assert unbroken("too high (1.02 to 2.6).") in words
    words = calibration_words(hospital("recalibrate first", calibration_intercept=[-0.95, -0.001]))
    assert "(just above 1 to 2.6)" in words
    words = calibration_words(hospital("too few to tell", calibration_intercept=[-0.03, 1.13]))
    assert words.endswith("Predicted odds may be hardly too high, or up to 3.1 times too low.")


def test_a_fit_says_how_many_patients_and_what_is_open():
    words = calibration_words(hospital("fits here", calibration_slope=[0.77, 3.42]))
    assert words.startswith("No large error was seen in 200 patients.")
    assert words.endswith("Whether their spread fits is open.")
    assert "open" not in calibration_words(hospital("fits here", calibration_slope=[0.6, 1.8]))


def test_the_example_of_a_fit_in_the_glossary_is_one_and_hardly_more_is():
    assert "400 patients: predicted 60 of 100, happened 50" in VERDICTS[0].example
    for risk, word in ((0.60, "fits here"), (0.63, "recalibrate first")):
        intercept = -math.log(risk / (1 - risk))
        half = 1.96 * 2 / math.sqrt(400)
        ends = (intercept - half, intercept + half)
        measured = row("a", "train", "fits here", risk)
        measured["intervals"] |= {"calibration_intercept": ends}
        assert verdict(CalibrationRecord.model_validate(measured)) == word


def test_a_terminal_of_80_columns_shows_it_whole(told, shown):
    text = shown(verdict_table, told, 80)
    (line,) = (line for line in text.splitlines() if line.split()[:1] == ["b"])
    assert line.split() == [
        "b",
        "▲",
        "recalibrate",
        "first",
        "46,",
        "20",
        "0.80",
        "[0.70,",
        "0.90]",
        "200",
    ]
    assert "…" not in text
    told["calibration"] += [row(f"h{number}", "held_out", "fits here") for number in range(20)]
    text = " ".join(shown(verdict_table, told, 80).split())
    assert "20 fits here, 1 too few to tell." in text
    assert "Chance alone calls off about 1 calibrated hospital in 20." in text
    assert "Shown are the 12 first" in text


def test_an_outcome_of_more_classes_has_no_such_table(summary):
    assert verdicts(parse_summary(summary)) is None
    assert verdict_table(parse_summary(summary)) is None
