"""The analysis of the stroke trial: its figures on made-up places, and its tables of real cells."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.special import expit

from fl_dpbayes.config import load_study
from fl_dpbayes.posterior import mixed
from fl_dpbayes.study.cell import run_cell
from fl_dpbayes.study.grid import study_cells
from fl_dpbayes.study.study import Workers, begin_study
from studies.stroke import analysis

ROOT = Path(__file__).parents[2]
SITES = {
    "norway": ("norway-206", "norway-258"),
    "uk": ("uk-119", "uk-129", "uk-32"),
}


def place(effect: float, patients: int, seed: int = 0) -> analysis.Place:
    """A place whose effect is `effect`, and of which N(0, 1) is foretold."""
    generator = np.random.default_rng(seed)
    log_odds = generator.standard_normal(patients)
    labels = (generator.random(patients) < expit(log_odds + effect)).astype(np.int64)
    one_model = expit(log_odds)
    foretold = mixed(np.ones(1), means=np.zeros(1), variances=np.ones(1))
    known = (analysis.NOTHING, analysis.COUNTRY, analysis.NEW_COUNTRY)
    return analysis.Place(
        seed=1,
        name=f"place {seed}",
        patients=analysis.Patients(labels, log_odds, one_model=one_model, pooled=one_model),
        effects=dict.fromkeys(known, foretold),
        public_log_odds=generator.standard_normal(500),
    )


def test_a_ratio_goes_over_pairs_and_its_interval_over_seeds_and_places() -> None:
    frame = pd.DataFrame(
        [(seed, name, above, 2.0) for seed in (1, 2) for name, above in (("a", 1.0), ("b", 5.0))],
        columns=["seed", "place", "above", "below"],
    )
    figure = analysis.ratio(frame, frame["above"], frame["below"])
    assert figure == {"value": 1.5, "low": 0.5, "high": 2.5, "places": 2, "seeds": 2}


def test_an_own_level_fits_and_a_joint_loss_is_the_product_where_the_level_is_known() -> None:
    patients = place(effect=1.0, patients=2_000).patients
    fitted = analysis.own_level_loss(patients.log_odds, patients.labels)
    at_truth = analysis.losses(expit(patients.log_odds + 1.0), patients.labels).sum()
    assert abs(fitted - 0.5 - at_truth) < 3
    known = mixed(np.ones(1), means=np.zeros(1), variances=np.full(1, 1e-12))
    product = analysis.losses(patients.one_model, patients.labels).sum()
    assert analysis.joint_loss(known, patients) == pytest.approx(product, rel=1e-4)


def test_own_patients_close_the_gap_and_a_release_less_of_it() -> None:
    rows = analysis._updates(
        iter([place(effect=1.5, patients=1_000, seed=seed) for seed in range(3)]),
        known=(analysis.NOTHING,),
        draws=1,
    )
    frame = pd.DataFrame(rows).groupby("updated with").sum(numeric_only=True)
    assert list(frame.index) == list(analysis.PATIENTS_OF_UPDATES)
    most = frame.loc[200]
    gap = most["one model"] - most["own level"]
    closed = {way: (most["one model"] - most[way]) / gap for way in analysis.WAYS}
    assert closed["no update"] < 0.2
    assert closed["at home"] > 0.9
    assert closed["private"] > 0.8
    assert (frame["at home"] <= frame["no update"]).all()


def test_sets_hold_nine_in_ten_and_noise_makes_them_larger() -> None:
    rows = list(analysis._sets_of_place(place(0.5, patients=500), np.random.default_rng(0)))
    assert [(row["patients"], row["epsilon"]) for row in rows] == list(analysis.SETS)
    for row in rows:
        assert row["coverage"] >= 0.9
        assert row["size"] > row["size_without_privacy"]


@pytest.mark.parametrize(("name", "cells"), [("heart", 10), ("settings", 54)])
def test_study_files_beside_the_analysis_are_valid(name: str, cells: int) -> None:
    study = load_study(str(ROOT / "studies" / "stroke" / f"{name}.toml"))
    assert len(study_cells(study)) == cells


@pytest.mark.slow
def test_tables_are_made_of_finished_cells(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(
        "fl_dpbayes.study.ray_pool.run_on_ray", lambda jobs, *_: (run_cell(job) for job in jobs)
    )
    monkeypatch.setattr("server.federation.write_report", lambda folder: None)
    monkeypatch.setattr(analysis, "REPLICATES", 50)
    sites = "".join(
        f'{site} = {{ role = "train", group = "{group}" }}\n'
        for group, names in SITES.items()
        for site in names
    )
    norway = "".join(f'sites.{site}.role = "held_out"\n' for site in SITES["norway"])
    path = tmp_path / "small.toml"
    path.write_text(
        f"""name = "small"
scenario = "stroke"
training = {{ rounds = 3, steps_per_round = 1, burn_in = 1, thinning = 1 }}
aggregation = {{ rule = "fald", size_power = 1.75, move_bound = "none" }}
[study]
compare = ["predictor"]
[sites]
{sites}
[axes]
seed = [1]
[variants.budget.1]
privacy.epsilon = 1.0
[variants.left_out.nobody]
description = "All train"
[variants.left_out."fifth 1"]
sites.uk-32.role = "held_out"
[variants.left_out.norway]
{norway}"""
    )
    folder = tmp_path / "study"
    console = Console(quiet=True)
    assert begin_study(load_study(str(path)), folder, None, Workers(keep_runs=True), console)
    tables = tmp_path / "tables"
    monkeypatch.setattr("sys.argv", ["analysis", str(folder), str(tables)])
    analysis.main()
    made = {path.stem: pd.read_csv(path, keep_default_na=False) for path in tables.iterdir()}
    assert {"training", "spread", "held-out", "update"} <= set(made)
    # The summary's own figure is the same.
    results = pd.read_csv(folder / "results.csv", keep_default_na=False)
    trained = results[(results["left_out"] == "nobody") & (results["site"] == "pooled:train")]
    for predictor, figure in (("posterior", "one model"), ("hierarchical", "hierarchical")):
        (summary,) = trained[trained["predictor"] == predictor]["nll"]
        everywhere = made["training"][made["training"]["patients"] == "all"]
        (value,) = everywhere[everywhere["figure"] == figure]["value"]
        assert value == pytest.approx(float(summary), abs=2e-4)
    held_out = made["held-out"]
    assert set(held_out["held out"]) == {"hospitals", "countries"}
    assert held_out[held_out["figure"] == "width"]["value"].astype(float).between(0, 1).all()
