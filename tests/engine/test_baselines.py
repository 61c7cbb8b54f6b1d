"""Baselines beside a simulated run: what they predict, on whose records, and where they are not computed."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from fl_dpbayes.calibration import CalibrationRecord
from fl_dpbayes.config.scenario import Evaluation, load_scenario
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.simulation import BASELINES, plan_sites, prepare_simulation
from fl_dpbayes.data.site import load_site
from fl_dpbayes.engine.baselines import measured_baselines, write_baselines
from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.page_tables import baselines_table
from fl_dpbayes.report.summary import BaselineRecord, Baselines, parse_summary
from server.summary import _same_records
from tests.engine.test_simulate import SUMMARY


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    scenario = load_scenario("stroke-uk")
    folder = tmp_path_factory.mktemp("run")
    return scenario, prepare_simulation(scenario, plan_sites(scenario, None), folder), folder


@pytest.fixture(scope="module")
def sites(prepared):
    return [load_site(read_site_file(path)) for path in prepared[1]]


def arrays(sites, role, part):
    return (
        np.concatenate([getattr(getattr(s, part), key) for s in sites if s.role == role])
        for key in ("features", "labels")
    )


def test_baselines_are_what_the_page_says_they_are(sites):
    rows = {
        (row.predictor, row.role, row.trained_at): row for row in measured_baselines(sites).rows
    }
    (x, y), (test_x, test_y) = arrays(sites, "train", "train"), arrays(sites, "held_out", "test")
    risk = LogisticRegression(max_iter=500).fit(x, y).predict_proba(test_x)[:, 1]
    central = rows["central", "held_out", ""]
    assert central.n == len(test_y)
    assert central.nll == round(log_loss(test_y, risk), 3)
    assert central.auroc == pytest.approx(roc_auc_score(test_y, risk), abs=2e-3)
    assert rows["majority", "held_out", ""].accuracy == pytest.approx(
        max(test_y.mean(), 1 - test_y.mean()), abs=6e-4
    )
    published = np.concatenate([site.test.published for site in sites if site.role == "held_out"])
    for name, risk in (("majority", np.full(len(test_y), y.mean())), ("published", published)):
        assert rows[name, "held_out", ""].nll == pytest.approx(log_loss(test_y, risk), abs=6e-4)
    alone = [key[2] for key in rows if key[:2] == ("site_only", "held_out")]
    assert sorted(alone) == sorted(site.name for site in sites if site.role == "train")


def test_what_cannot_be_computed_is_told(sites, prepared, tmp_path):
    pictures = [
        replace(
            site,
            train=site.train and replace(site.train, features=site.train.features[:, None]),
            test=replace(site.test, published=None),
        )
        for site in sites
    ]
    found = measured_baselines(pictures)
    assert set(found.missing) == {"site_only", "central", "published"}
    assert {row.predictor for row in found.rows} == {"majority"}
    for key, value, why in (
        ("release", "none", "not declared public"),
        ("baselines", False, "without privacy"),
    ):
        evaluation = prepared[0].evaluation.model_copy(update={key: value})
        RunStore.make(tmp_path).close()
        write_baselines(prepared[0].model_copy(update={"evaluation": evaluation}), [], tmp_path)
        assert why in RunStore.open(tmp_path).latest(BASELINES)["missing"]["all"]
    assert not Evaluation().baselines


def test_they_are_left_out_where_a_site_fell_silent():
    rows = tuple(
        BaselineRecord(site=f"pooled:{role}", role=role, predictor="central", n=62)
        for role in ("train", "held_out")
    )
    own = [
        CalibrationRecord(site=f"pooled:{role}", role=role, predictor="posterior", n=n)
        for role, n in (("train", 46), ("held_out", 62))
    ]
    found = _same_records(Baselines(rows=rows), own)
    assert found.rows == rows[1:]
    assert found.missing == {
        "simpler predictors at pooled:train": "the run measured 46 of its 62 records"
    }


def test_the_table_shows_one_row_of_all_that_trained_alone(sites):
    rows = [row.model_dump(mode="json") for row in measured_baselines(sites).rows]
    own = {
        "site": "pooled:held_out",
        "role": "held_out",
        "predictor": "posterior",
        "nll": 0.6,
        "rms_debiased": 0.1,
    }
    run = parse_summary(
        SUMMARY | {"calibration": [own], "warnings": [], "baselines": {"rows": rows}}
    )
    table = baselines_table(run)
    assert table.rows[0][1:4] == (
        ("average of posterior samples", "this run"),
        ("–", ""),
        ("0.600", ""),
    )
    assert answer(run).baselines.startswith(
        "At all held-out sites its negative log-likelihood, lower is better, is 0.6"
    )
    covered = (
        "The simpler ones were computed from training records without privacy: not "
        "covered by epsilon."
    )
    assert answer(run).baselines.endswith(
        f", all records in one place 0.607, published score 0.569. {covered}"
    )
    (alone,) = [row for row in table.rows[:5] if row[1][0] == "one site alone"]
    areas = [
        row["auroc"] for row in rows if (row["predictor"], row["role"]) == ("site_only", "held_out")
    ]
    assert alone[2] == (f"{np.median(areas):.3f}", f"{min(areas):.3f} to {max(areas):.3f}")
