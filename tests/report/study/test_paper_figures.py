"""A paper's numbers are drawn beside ours, and reliability is pooled over seeds by records."""

from dataclasses import replace

import pandas as pd
import pytest

from fl_dpbayes.report.study import paper_figures
from fl_dpbayes.report.study.page import write_study_report
from fl_dpbayes.report.study.paper_figures import (
    beside_paper_figures,
    pooled_bins,
    reliability_figure,
)
from fl_dpbayes.report.study.results import read_study


def bins_of(alpha: str, seed: int, records: int, accuracy: float) -> dict[str, object]:
    return {
        "cell": f"{alpha}-{seed}",
        "partition.alpha": alpha,
        "seed": seed,
        "site": "pooled:held_out",
        "predictor": "last",
        "risk": False,
        "low": 0.8,
        "high": 1.0,
        "n": records,
        "confidence": 0.9,
        "accuracy": accuracy,
    }


def printed(column: str, seeds: int) -> dict[str, object]:
    return {
        "partition.alpha": "1",
        "predictor": "last",
        "site": "pooled:held_out",
        "column": column,
        "paper": 0.021,
        "measured": 0.03,
        "low": 0.02,
        "high": 0.04,
        "seeds": seeds,
    }


def test_bins_are_pooled_by_their_records() -> None:
    bins = pd.DataFrame([bins_of("1", 1, 30, 0.5), bins_of("1", 2, 10, 0.9)])
    bins.loc[len(bins)] = {**bins_of("1", 2, 0, 0.0), "low": 0.0, "high": 0.2}
    (pooled,) = pooled_bins(bins).to_dict("records")
    assert pooled["n"] == 40
    assert pooled["accuracy"] == pytest.approx((30 * 0.5 + 10 * 0.9) / 40)
    assert pooled["confidence"] == pytest.approx(0.9)


def test_each_setting_has_a_panel_and_too_many_have_none(study, monkeypatch) -> None:
    settings = study().axes["partition.alpha"]
    rows = [bins_of(alpha, seed, 40, 0.5) for alpha in settings for seed in (1, 2)]
    with_bins = replace(study(), reliability=pd.DataFrame(rows))
    drawn = reliability_figure(with_bins)
    assert drawn is not None
    assert all(f">{alpha}<" in drawn.svg for alpha in settings)
    assert reliability_figure(study()) is None
    monkeypatch.setattr(paper_figures, "MOST_PANELS", len(settings) - 1)
    assert reliability_figure(with_bins) is None


def test_a_printed_value_is_drawn_where_it_was_measured(study) -> None:
    rows = [printed("ece", 3), printed("epsilon", 3), printed("nll", 0)]
    (drawn,) = beside_paper_figures(replace(study(), paper=pd.DataFrame(rows)))
    assert drawn.name == "paper-ece"
    assert "the paper" in drawn.svg
    assert beside_paper_figures(study()) == []


def test_rows_of_several_predictors_name_theirs(study) -> None:
    rows = [printed("ece", 3), printed("ece", 3) | {"predictor": "posterior"}]
    (drawn,) = beside_paper_figures(replace(study(), paper=pd.DataFrame(rows)))
    assert "last iterate" in drawn.svg
    (alone,) = beside_paper_figures(replace(study(), paper=pd.DataFrame(rows[:1])))
    assert "last iterate" not in alone.svg


@pytest.mark.slow
def test_the_page_opens_its_figures_with_the_paper(study_folder) -> None:
    folder = study_folder()
    alpha = read_study(folder).axes["partition.alpha"][0]
    pd.DataFrame([printed("ece", 3)]).to_csv(folder / "paper.csv", index=False)
    pd.DataFrame([bins_of(alpha, 1, 40, 0.5)]).to_csv(folder / "reliability.csv", index=False)
    page = write_study_report(folder).read_text()
    headings = ("Beside the paper</h2>", "Reliability</h2>", "Methods</h2>")
    positions = [page.index(heading) for heading in headings]
    assert positions == sorted(positions)
    assert {"paper-ece", "reliability"} <= {path.stem for path in (folder / "figures").iterdir()}
