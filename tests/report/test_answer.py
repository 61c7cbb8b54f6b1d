"""What a run's answer, its largest numbers and its facts claim: what the intervals and the record allow, no more."""

import copy
import math
import re
from itertools import product

import pytest

from fl_dpbayes.calibration import METRICS
from fl_dpbayes.report.answer import Answer, answer
from fl_dpbayes.report.headline import headline_rows, median_rows
from fl_dpbayes.report.model_card import model_card
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.page_tables import all_metrics_table, facts, privacy_table, run_tables
from fl_dpbayes.report.run_files import write_summary
from fl_dpbayes.report.summary import parse_summary
from fl_dpbayes.report.tables import calibration_table
from fl_dpbayes.report.tables import privacy_table as printed_privacy_table

SERVER = "Server's own inputs"
PUBLIC = {
    "kind": "file",
    "file": "public.npz",
    "statement": "by its authors\x1b[2J",
    "count": 1200,
    "labelled": True,
}
ACCOUNTING = ("pld", "clt", "central-limit", "ledger", "neighbours", "budget")
TESTED = {
    "site": "island",
    "unit": "patient",
    "delta": 1e-4,
    "epsilon": 0.8941,
    "epsilon_method": "pld",
    "mu": 0.35,
    "mu_kind": "exact",
    "budget": 2.0,
}


def answer_of(summary: dict) -> Answer:
    return answer(parse_summary(summary))


def facts_of(summary: dict, **changes: object) -> dict[str, str]:
    return dict(facts(parse_summary(summary | changes)))


def row_of(summary, site, predictor):
    return next(
        row
        for row in summary["calibration"]
        if (row["site"], row["predictor"]) == (site, predictor)
    )


def test_answer_states_held_out_errors_and_privacy(summary):
    found = answer_of(summary)
    assert found.calibration == (
        "At held-out sites the probabilities are off by 2.1 percentage points [1.2, 3.0] "
        "(average of posterior samples; debiased RMS error of the certainty of the predicted "
        "class, n = 450)."
    )
    assert found.comparison == (
        f"{found.calibration} Those of the last iterate are off by 6.4 [5.5, 7.3]. "
        "Better calibrated: the average of posterior samples."
    )
    assert found.elsewhere[0].startswith("At shifted sites the probabilities are off by 8.3")
    assert found.elsewhere[1].startswith("At the median of the training sites")
    assert "the risks are off. Check" in found.advice
    assert found.privacy == (
        "Every one of the 4 hospitals that trained spent at most epsilon 1.96 at delta 1e-4 "
        "(adding or removing one "
        "patient)."
    )
    assert found.cautions == ()


@pytest.mark.parametrize(
    ("posterior", "last", "verdict"),
    [
        ([0.05, 0.06], [0.06, 0.08], "The intervals overlap: no clear difference."),
        ([0.07, 0.09], [0.01, 0.02], "Better calibrated: the last iterate."),
        ([0.01, 0.02], [0.03, 0.04], "Better calibrated: the average of posterior samples."),
        (None, [0.03, 0.04], "Without intervals, whether they differ is open."),
        ([0.01, None], [0.03, 0.04], "Without intervals, whether they differ is open."),
    ],
)
def test_verdict_follows_the_intervals(summary, posterior, last, verdict):
    row_of(summary, "pooled:held_out", "posterior")["intervals"]["rms_debiased"] = posterior
    row_of(summary, "pooled:held_out", "last")["intervals"]["rms_debiased"] = last
    assert answer_of(summary).comparison.endswith(verdict)


def test_intervals_of_the_two_predictors_that_are_shown_decide_between_them(summary):
    """The posterior's own interval overlaps the last iterate's, that of the levels does not."""
    last = row_of(summary, "pooled:held_out", "last")
    last["intervals"]["rms_debiased"] = [0.2, 0.4]
    row_of(summary, "pooled:held_out", "posterior")["intervals"]["rms_debiased"] = [0.1, 0.3]
    levels = {"predictor": "hierarchical", "intervals": {"rms_debiased": [0.02, 0.16]}}
    summary["calibration"].append({**last, **levels, "rms_debiased": 0.08})
    comparison = answer_of(summary).comparison
    assert "[2.0, 16.0]" in comparison
    assert "[20.0, 40.0]. Better calibrated: the posterior over hospitals." in comparison


def test_an_error_cut_at_zero_is_told_by_its_interval(summary):
    row = row_of(summary, "pooled:held_out", "posterior")
    row["rms_debiased"], row["intervals"]["rms_debiased"] = 0.0, [0.0, 0.076]
    found = answer_of(summary)
    assert "are off by between 0.0 and 7.6 percentage points (average" in found.calibration
    assert "no error was seen, and one of 7.6 points is possible" in found.advice
    shown = [
        cell for cells in run_tables(parse_summary(summary))["calibration"].rows for cell in cells
    ]
    assert ("0.0 to 7.6", "") in shown
    row["intervals"]["rms_debiased"] = [0.0, 0.616]
    assert (
        "too little is known here, an error of 61.6 points is possible" in answer_of(summary).advice
    )


def test_too_little_is_known_from_the_width_on_that_cannot_tell(summary):
    row = row_of(summary, "pooled:held_out", "posterior")
    widest = METRICS["rms_debiased"].widest
    row["rms_debiased"], row["intervals"]["rms_debiased"] = 0.0, [0.0, widest - 0.01]
    assert "no error was seen, and one of 24.0 points is possible" in answer_of(summary).advice
    row["intervals"]["rms_debiased"] = [0.0, widest]
    assert "too little is known here, an error of 25.0 points" in answer_of(summary).advice


def test_the_first_sentence_says_who_and_how_often(summary):
    for site in summary["sites"]:
        site |= {"shares": [0.6, 0.4] if site["name"] == "island" else [0.9, 0.1]}
    first = (
        "Trained by 4 hospitals on 4,936 patients; tested on 300 records of 2 hospitals that "
        "did not train."
    )
    shares = "In 25% of these the outcome is 'ill', 10% to 40% from hospital to hospital."
    assert answer_of(summary | {"class_names": ["well", "ill"]}).lead == f"{first} {shares}"
    summary["privacy"][0]["steps"] = None  # it refused every round
    assert answer_of(summary).lead.startswith("Trained by 3 hospitals on 3,702 patients")
    assert model_card(parse_summary(summary))["Sample size"].startswith("3,702 units trained")


def test_where_all_outcomes_are_the_same_no_error_is_told(summary):
    row = row_of(summary, "pooled:held_out", "posterior")
    row["rms_debiased"], row["intervals"]["rms_debiased"] = 0.0, [0.0, 0.26]
    assert "too little is known here, an error of 26.0" in answer_of(summary).advice
    # No two records there can be told apart: no area under the ROC curve, and an interval that says
    # nothing.
    row["auroc"] = None
    found = answer_of(summary)
    unknown = (
        "At held-out sites all outcomes are the same: how far the probabilities are off "
        "cannot be told (n = 450)."
    )
    assert found.calibration == unknown
    assert "no medical device. What to do: measure the risks" in found.advice
    cells = run_tables(parse_summary(summary))["calibration"].rows
    assert ("–", "one outcome") in [cell for row in cells for cell in row]
    row |= {"auroc": 0.9, "intervals": {}}
    assert (
        "the probabilities are off by an unknown amount (average" in answer_of(summary).calibration
    )


@pytest.mark.parametrize("how", ["absent", "unmeasured"])
def test_without_a_held_out_site_training_sites_answer_and_it_is_said(summary, how):
    if how == "absent":
        summary["calibration"] = [
            row for row in summary["calibration"] if row["role"] != "held_out"
        ]
    for predictor in ("last", "posterior") if how == "unmeasured" else ():
        row_of(summary, "pooled:held_out", predictor)["rms_debiased"] = None
    assert answer_of(summary).calibration.startswith("At the median of the training sites")
    why = "were not sent: " if how == "absent" else "are too few to measure calibration: "
    assert (
        answer_of(summary)
        .cautions[0]
        .startswith(f"Results of held-out sites {why}nothing here says")
    )
    summary["sites"] = [site for site in summary["sites"] if site["role"] != "held_out"]
    assert (
        answer_of(summary)
        .cautions[0]
        .startswith("No site was held out and measured: nothing here says")
    )


def test_what_was_not_measured_is_not_compared(summary):
    text = answer_of(
        summary
        | {"calibration": [row for row in summary["calibration"] if row["predictor"] == "last"]}
    )
    assert (
        "the probabilities are off by 6.4 percentage points [5.5, 7.3] (last iterate;"
        in text.calibration
    )
    assert not {"better", "posterior"} & set(text.calibration.split())
    nothing = answer_of(summary | {"calibration": []})
    assert (nothing.calibration, nothing.elsewhere) == (
        "Calibration at training sites was not measured.",
        (),
    )


def test_privacy_is_said_of_the_costliest_site_and_never_where_it_is_not_known(summary):
    assert answer_of(summary | {"seeded": True}).cautions[0].startswith("Seeded: not private.")
    assert (
        "is not recorded"
        in answer_of(summary | {"evaluation_privacy": [TESTED | {"epsilon": None}]}).privacy
    )
    assert (
        answer_of(summary | {"privacy": []}).privacy
        == "No privacy cost is recorded: no site trained."
    )
    summary["privacy"][0]["delta"] = 1e-5
    assert "at its own delta, 1e-5 to 1e-4" in answer_of(summary).privacy
    for epsilon, state in ((math.inf, "infinite"), (None, "not recorded")):
        summary["privacy"][2]["epsilon"] = epsilon
        assert (
            answer_of(summary).privacy
            == f"There is no privacy guarantee: epsilon is {state} at 1 of 4 sites."
        )


def test_cost_at_a_smaller_delta_is_that_of_the_costliest_site(summary):
    small = {"site": "valley", "delta": 1e-5, "epsilon": 2.4012}
    said = answer_of(summary | {"small_delta": small}).privacy
    assert "at most epsilon 1.96 at delta 1e-4 " in said
    assert said.endswith("At delta 1e-5 the costliest, valley, spent 2.41.")


def test_stopped_sites_and_tuning_are_cautions(summary):
    assert not any("depend on what was seen" in caution for caution in answer_of(summary).cautions)
    summary["privacy"][0]["status"] = "PARTIAL"
    summary["privacy"][1] |= {"status": "REFUSED BUDGET_EXHAUSTED", "steps": None, "epsilon": None}
    summary["configurations_tried"] = 12
    found = answer_of(summary)
    assert (
        found.cautions[0] == "1 of 4 sites stopped early, at the end of the budget: north-clinic."
    )
    assert found.cautions[1] == "1 of 4 sites refused a round: harbour-hospital."
    assert found.cautions[2] == (
        "12 versions were tried on these records, so results may look better than they will be; "
        "epsilon does not count that choice."
    )
    assert "the 3 hospitals that trained" in found.privacy
    summary["privacy"][1]["status"] = "REFUSED BUSY"
    qualified = "depend on what was seen. If it did, count the whole plan's"
    assert any(qualified in caution for caution in answer_of(summary).cautions)


def three_sites(summary, third, pooled):
    """Give the held-out role two honest sites and a third; values are (error, accuracy, n)."""
    template = row_of(summary, "pooled:held_out", "last")
    rows = [row for row in summary["calibration"] if row["role"] != "held_out"]
    sites = {
        "a": (0.05, 0.80, 400),
        "b": (0.09, 0.70, 300),
        "made-up": third,
        "pooled:held_out": pooled,
    }
    for site, (error, accuracy, n) in sites.items():
        ends = {"rms_debiased": [max(0.0, error - 0.01), error + 0.01]}
        changed = {
            "site": site,
            "predictor": "posterior",
            "rms_debiased": error,
            "accuracy": accuracy,
            "n": n,
        }
        rows.append({**template, **changed, "intervals": ends})
    return {**copy.deepcopy(summary), "calibration": rows}


@pytest.mark.parametrize(("error", "accuracy"), [*product([0.0, 0.07, 0.9], [0.0, 0.75, 0.9993])])
def test_one_made_up_site_of_three_cannot_move_the_headline_beyond_the_honest_sites(
    summary, error, accuracy
):
    run = parse_summary(
        three_sites(summary, (error, accuracy, 400_000), (error, accuracy, 400_700))
    )
    row = headline_rows(run, "held_out")["posterior"]
    assert row.site == "median:held_out"
    low, high = row.intervals["rms_debiased"]
    found = (row.rms_debiased, row.accuracy, row.n, low, high)
    bounds = ((0.05, 0.09), (0.70, 0.80), (300, 400_000), (0.04, 0.08), (0.06, 0.10))
    assert all(least <= value <= most for value, (least, most) in zip(found, bounds, strict=True))


def test_one_site_of_three_without_a_number_does_not_take_the_headline_away(summary):
    hidden = three_sites(summary, (0.05, 0.75, 3), (0.9, 0.1, 700))
    for row in hidden["calibration"]:
        if row["n"] == 3:
            row.update(dict.fromkeys(("rms_debiased", "accuracy", "auroc")), intervals={})
    row = headline_rows(parse_summary(hidden), "held_out")["posterior"]
    assert row.rms_debiased == pytest.approx(0.07)
    assert row.intervals["rms_debiased"] == pytest.approx((0.06, 0.08))
    assert "held-out sites" in answer_of(hidden).calibration


def test_the_median_is_what_is_read_first_of_three_sites_or_more(summary):
    made_up = three_sites(summary, (0.0, 0.9993, 400_000), (0.0, 0.9990, 400_700))
    found = answer_of(made_up).calibration
    assert found.startswith("At the median of the held-out sites the probabilities are off by 5.0")
    assert "median n = 400" in found
    assert "median of held-out" in "".join(
        map(str, calibration_table(parse_summary(made_up)).columns[0].cells)
    )
    run = parse_summary(summary)
    assert all(
        row.over == "pooled"
        for role in ("held_out", "shifted")
        for row in headline_rows(run, role).values()
    )
    assert not [row for row in median_rows(run) if row.role != "train"]


def recalibrated(summary: dict, epsilon: float = 1.5) -> dict:
    """Add a recalibrated predictor, half as far off, to a run's summary."""
    summary = copy.deepcopy(summary)
    for row in [row for row in summary["calibration"] if row["predictor"] == "posterior"]:
        rms = row["rms_debiased"] / 2
        ends = row["intervals"] | {"rms_debiased": [rms - 0.004, rms + 0.004]}
        summary["calibration"].append(
            row | {"predictor": "recalibrated", "rms_debiased": rms, "intervals": ends}
        )
    for row in summary["privacy"]:
        row["recalibration_epsilon"] = epsilon
    return summary


def test_recalibration_stands_beside_the_posterior_with_its_cost_and_the_larger_of_both_is_the_answer(
    summary, shown
):
    assert "recalibrated" in shown(calibration_table, recalibrated(summary), 120)
    assert answer_of(recalibrated(summary)).comparison.endswith(
        "Recalibrated, they are off by 1.1 [0.7, 1.5]."
    )
    assert "Recalibrated" not in answer_of(summary).comparison
    assert "Recalibrated" not in answer_of(recalibrated(summary)).calibration
    assert "ε of recalibration" not in privacy_table(parse_summary(summary)).columns
    table = privacy_table(parse_summary(recalibrated(summary)))
    column = table.columns.index("ε of recalibration")
    assert [row[column][0] for row in table.rows] == ["1.50"] * 4
    assert all(len(row) == len(table.columns) for row in table.rows)
    for epsilon, text in (
        (1.5, "at most epsilon 1.96 "),
        (2.5, "at most epsilon 2.50 "),
        (math.inf, "infinite at 4 "),
    ):
        assert text in answer_of(recalibrated(summary, epsilon)).privacy
    assert " 2.50 " in shown(printed_privacy_table, recalibrated(summary, 2.5), 120)


def test_map_that_is_mostly_noise_does_not_come_first(summary):
    noisy = recalibrated(summary) | {
        "recalibration": {"method": "temperature", "noise": "it is mostly noise"}
    }
    assert answer_of(noisy).comparison.endswith(
        "but do not use that: the map is mostly privacy noise."
    )


@pytest.mark.slow
def test_sentences_tables_and_figures_call_one_sample_a_point_estimate(
    summary, figures_of, tmp_path
):
    assert "average of posterior samples" in answer_of(summary).calibration
    summary["reliability"] = summary["reliability"][:2]
    for row in (*summary["calibration"], *summary["reliability"]):
        row |= {"samples": 1, "epistemic": None, "aleatoric": None}
    run, text = (
        parse_summary(summary),
        answer_of(summary).comparison + "".join(answer_of(summary).elsewhere),
    )
    assert "(combined point estimate; debiased" in text
    assert "Better calibrated: the combined point estimate." in text
    words = [text]
    words += [row[1][0] for row in all_metrics_table(run.calibration, run.measures).rows]
    write_summary(summary, tmp_path)
    words += [figure.description + figure.svg for figure in figures_of(tmp_path).values()]
    assert "combined point estimate" in words[-1]
    assert not any("averag" in word.lower() for word in words)
    assert [cell for cell, _ in all_metrics_table(run.calibration, run.measures).rows[0][-2:]] == [
        "–",
        "–",
    ]


@pytest.fixture
def not_private(summary: dict) -> dict:
    for row in summary["privacy"]:
        row |= {
            "epsilon": math.inf,
            "mu": math.inf,
            "budget": math.inf,
            "temperature": None,
            "temperature_range": None,
        }
    summary["releases"][0]["how"] = "sent without privacy"
    return summary | {"private": False}


@pytest.fixture
def page_of(write_run):
    """Write the page of a summary without figures, which take most of the time."""
    bare = {"calibration": [], "reliability": []}
    link = re.compile(r'<a class="term"[^>]*>(.*?)</a>')

    def page(summary: dict) -> str:
        text = write_report(write_run(summary | bare, [])).read_text(encoding="utf-8")
        # What the run says, without the glossary of its words.
        return link.sub(r"\1", text).partition('<details class="card" id="glossary">')[0]

    return page


@pytest.fixture
def printed(shown):
    return lambda summary: " ".join(shown(printed_privacy_table, summary).split()).lower()


def test_a_run_without_privacy_has_no_word_of_an_account(
    not_private: dict, page_of, printed
) -> None:
    text, body = printed(not_private), page_of(not_private).lower().partition("<body>")[2]
    assert "not private: epsilon is infinite" in text
    assert "∞" in text
    assert not [word for word in (*ACCOUNTING, "temperature", "delta", "μ") if word in text]
    assert "(not private)</h1>" in body
    assert "not private: epsilon is infinite" in body
    assert not [word for word in (*ACCOUNTING, "temperature", "δ", "μ") if word in body]
    assert answer_of(not_private).privacy.startswith("Not private: epsilon is infinite.")
    tested = printed(not_private | {"evaluation_privacy": [TESTED]})
    assert "island patient 0.895 2.00 1e-4 0.350 exact evaluation" in tested
    assert "north-clinic patient 1,234 200 ∞ ok" in tested


def test_chains_cost_one_account_and_no_temperature_leaves_no_column(
    summary: dict, page_of, printed
) -> None:
    text = "3 chains per site: their costs add up to this one account"
    page = page_of(
        summary | {"chains": 3, "settings": [{"name": "Clipping", "value": "flat, clip norm 3"}]}
    )
    assert text in printed(summary | {"chains": 3})
    assert "chains" not in printed(summary)
    assert all(part in page for part in (text, "What was run", "flat, clip norm 3"))
    for row in summary["privacy"]:
        row |= {"temperature": None, "temperature_range": None}
    assert "temperature is" not in printed(summary)
    bare = page_of(summary)
    assert not [word for word in ("What was run", "Temperature") if word in bare]


def test_resumed_rounds_and_inputs_of_the_server_with_their_declaration_are_facts(summary):
    assert facts_of(summary, resumed_after=[0, 2])["Resumed"] == "before round 1, after round 2"
    assert not {"Resumed", SERVER} & set(facts_of(summary))
    found = facts_of(summary, aggregation_inputs=PUBLIC | {"beta": 0.125, "divergence": 0.0214})
    assert (
        found[SERVER]
        == "1,200 records of public.npz, with labels, declared public: by its authors�[2J"
    )
    assert found["beta of PredBayes"] == "0.125"
    assert [value for name, value in found.items() if name.startswith("Divergence")] == ["0.021"]
    unread = facts_of(summary, aggregation_inputs=PUBLIC | {"labelled": False})[SERVER]
    assert unread.startswith("1,200 records of public.npz, labels not used, declared public")
    made_up = {
        "kind": "synthetic",
        "pattern": "noise",
        "statement": "",
        "count": 300,
        "labelled": False,
    }
    found = facts_of(summary, aggregation_inputs=made_up)
    assert found[SERVER] == "300 made-up inputs (noise), no record"
    assert "beta of PredBayes" not in found
