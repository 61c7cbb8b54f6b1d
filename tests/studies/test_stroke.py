"""Places that were held out, on made-up ones, and the cells' way from rounds to tables."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from fl_dpbayes.config import Scenario, load_scenario, load_study
from fl_dpbayes.posterior import mixed
from fl_dpbayes.study.grid import study_cells
from studies.stroke import cells, places, program, sets
from studies.stroke.comparison import held_out_split, hospitals_of
from studies.stroke.federation import Federation, read_federations, write_rounds
from studies.stroke.rivals import Split, losses
from studies.stroke.splits import read_split

ROOT = Path(__file__).parents[2]
SITES = {
    "norway": ("norway-206", "norway-258"),
    "uk": ("uk-119", "uk-129", "uk-32"),
}
SHORT = "training={rounds=6, steps_per_round=1, burn_in=2, thinning=1}"


def place(effect: float, patients: int, seed: int = 0) -> places.Place:
    """A place whose effect is `effect`, and of which N(0, 1) is foretold."""
    generator = np.random.default_rng(seed)
    log_odds = generator.standard_normal(patients)
    labels = (generator.random(patients) < expit(log_odds + effect)).astype(np.int64)
    foretold = mixed(np.ones(1), means=np.zeros(1), variances=np.ones(1))
    return MadeUpPlace(
        privacy="epsilon 1",
        hospital=f"place {seed}",
        country=f"country {seed}",
        features=log_odds[:, None],
        labels=labels,
        log_odds=log_odds,
        one_model=expit(log_odds),
        effects=dict.fromkeys((places.NOTHING, places.COUNTRY, places.NEW_COUNTRY), foretold),
        federation=None,
    )


class MadeUpPlace(places.Place):
    """A place of no federation."""

    @property
    def public_log_odds(self) -> np.ndarray:
        return np.random.default_rng(0).standard_normal(500)


def scenario(held_out: tuple[str, ...] = ()) -> Scenario:
    """Return five hospitals of two countries at a budget that tells something."""
    specs = ",".join(
        f'{site}={{role="{"held_out" if site in held_out else "train"}", group="{group}"}}'
        for group, names in SITES.items()
        for site in names
    )
    sites = f"sites={{{specs}}}"
    settings = [sites, SHORT, "privacy.epsilon=8.0", "aggregation.largest_share=1.0"]
    return load_scenario("stroke", settings)


@pytest.fixture(scope="module")
def split() -> Split:
    return read_split(scenario())


@pytest.fixture(scope="module")
def federations(split, tmp_path_factory) -> list[Federation]:
    folder = tmp_path_factory.mktemp("cells")
    for name, held_out in (("a", ()), ("b", ("uk-32",)), ("c", SITES["norway"])):
        one_cell = scenario(held_out)
        write_rounds(one_cell, split, np.random.default_rng(1), folder / name)
    return read_federations(folder)


def test_an_own_level_fits_and_a_joint_loss_is_the_product_where_the_level_is_known() -> None:
    patients = place(effect=1.0, patients=2_000)
    fitted = places.own_level_loss(patients.log_odds, patients.labels)
    at_truth = losses(expit(patients.log_odds + 1.0), patients.labels).sum()
    assert abs(fitted - 0.5 - at_truth) < 3
    assert places.best_level(patients.log_odds, patients.labels) == pytest.approx(1.0, abs=0.15)
    known = mixed(np.ones(1), means=np.zeros(1), variances=np.full(1, 1e-12))
    product = losses(patients.one_model, patients.labels).sum()
    assert places.joint_loss(known, patients) == pytest.approx(product, rel=1e-4)


def test_own_patients_close_the_gap_and_a_release_less_of_it() -> None:
    made = [place(effect=1.5, patients=1_000, seed=seed) for seed in range(3)]
    rows = places.update_rows(made, known=(places.NOTHING,), draws=1)
    frame = pd.DataFrame(rows).groupby("updated with").sum(numeric_only=True)
    assert list(frame.index) == list(places.PATIENTS_OF_UPDATES)
    most = frame.loc[100]
    gap = most["one model"] - most["own level"]
    closed = {way: (most["one model"] - most[way]) / gap for way in places.WAYS}
    assert closed["no update"] < 0.2
    assert closed["at home"] > 0.9
    assert closed["private"] > 0.8
    assert (frame["at home"] <= frame["no update"]).all()


def test_sets_hold_nine_in_ten_and_noise_makes_them_larger() -> None:
    rows = list(sets.sets_of_place(place(0.5, patients=500), np.random.default_rng(0)))
    assert [(row["patients"], row["epsilon"]) for row in rows] == list(sets.SETS)
    for row in rows:
        assert row["coverage"] >= 0.9
        assert row["lowest"] < row["coverage"]
        assert row["size"] > row["size_without_privacy"]


def test_a_federation_knows_what_it_held_out(federations) -> None:
    assert [each.held_out_country for each in federations] == [None, None, "norway"]
    assert [each.held_out for each in federations] == [(), ("uk-32",), SITES["norway"]]
    assert federations[2].hospitals.sites == SITES["uk"]
    assert {each.privacy for each in federations} == {"epsilon 8"}


@pytest.mark.slow
def test_a_held_out_split_is_the_programs(split) -> None:
    of_program = read_split(scenario(SITES["norway"]))
    held_out = held_out_split(split, SITES["norway"])
    np.testing.assert_array_equal(of_program.train.features, held_out.train.features)
    np.testing.assert_array_equal(of_program.train.hospitals, held_out.train.hospitals)
    tested = np.isin(of_program.test.hospitals, SITES["norway"])
    assert tested.sum() == len(held_out.test)
    assert of_program.test.labels[tested].sum() == held_out.test.labels.sum()


@pytest.mark.slow
def test_held_out_places_become_tables(federations, split) -> None:
    def held_out(kind: str):
        return places.places_held_out(federations, [split], kind)

    (hospital,) = held_out(places.HOSPITALS)
    (country,) = held_out(places.COUNTRIES)
    assert (hospital.hospital, country.hospital) == ("uk-32", "norway")
    assert (
        len(country.labels)
        == np.isin(
            np.concatenate([split.train.hospitals, split.test.hospitals, split.outside.hospitals]),
            hospitals_of(split, "norway"),
        ).sum()
    )
    assert places.COUNTRY in hospital.effects
    assert places.COUNTRY not in country.effects
    table = places.held_out_table(held_out)
    assert set(table["held out"]) == {places.HOSPITALS, places.COUNTRIES}
    assert table[table["figure"] == "width"]["value"].between(0, 1).all()
    updates = places.update_table(held_out)
    assert set(updates["figure"]) == set(places.WAYS)


def test_a_run_beside_draws_is_counted_in_their_standard_deviations(federations, split) -> None:
    everyone = federations[0]
    draws = [
        replace(everyone, samples=everyone.samples + shift * np.eye(1, 26)[0])
        for shift in (-0.1, 0.0, 0.1)
    ]
    table = program.program_table([everyone], [*draws, *federations[1:]], [split])
    assert set(table["draws"]) == {3}
    row = table.set_index("figure").loc["log loss, one model"]
    assert row["below"] <= 2
    assert row["sd"] > 0
    summary = program.program_summary(table.assign(program=table["mean"] + 2 * table["sd"]))
    assert summary.set_index("figure").loc["log loss, one model", "off"] == pytest.approx(2.0)


def test_at_home_is_of_all_hospitals_that_trained(federations, split) -> None:
    table = places.at_home_table(federations, [split]).set_index("figure")
    assert set(table["hospitals"]) == {5}
    difference = table.loc["at home", "value"] - table.loc["at the server", "value"]
    assert table.loc["at home less at the server", "value"] == pytest.approx(difference)


@pytest.mark.slow
def test_cells_are_named_once_and_their_noise_differs() -> None:
    every = list(cells.all_cells())
    assert len({cell.folder for cell in every}) == len(every)
    first = [cell.generator.standard_normal() for cell in every]
    assert len(set(first)) == len(every)
    deals = {cell.scenario.seed for cell in every}
    assert deals == set(cells.SEEDS)
    for cell in every:
        assert all(spec.role == "train" for spec in cell.everyone.sites.values())


def test_settings_beside_the_analysis_are_a_valid_study() -> None:
    study = load_study(str(ROOT / "studies" / "stroke" / "settings.toml"))
    assert len(study_cells(study)) == 54
