"""Simulations with known truth: rounds are the program's, and tables count what they say."""

import numpy as np
import pandas as pd
import pytest

from fl_dpbayes.config import load_scenario
from fl_dpbayes.data import load_site
from fl_dpbayes.files import RunStore
from fl_dpbayes.posterior import (
    HOSPITALS,
    POOLED_ROUNDS,
    PosteriorBank,
    log_odds_means,
    mixed,
    predict,
    site_means,
)
from fl_dpbayes.predict.finished_run import read_run
from studies.known_hospitals.rounds import run_rounds
from studies.known_hospitals.study import (
    KINDS,
    WITHOUT_PRIVACY,
    coverage_table,
    level_of_rate,
    log_loss,
    run_deal,
)
from studies.known_hospitals.truths import TRUTHS, Patients, deal, standardised
from studies.stroke.federation import read_kept_run
from studies.stroke.program import noise_row
from studies.stroke.splits import read_split
from tests.federations import Federation

SITES = """sites={
uk-119 = {role="train", group="uk"}, uk-32 = {role="train", group="uk"},
norway-258 = {role="train", group="norway"}}""".replace("\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_without_noise_the_rounds_are_those_of_a_run(federation, tmp_path, clip_norm) -> None:
    settings = [*WITHOUT_PRIVACY, "training={rounds=6, steps_per_round=1, burn_in=2, thinning=1}"]
    if clip_norm is not None:
        settings.append(f"privacy.clip_norm={clip_norm}")
    settings.append("aggregation.largest_share=1.0")
    scenario = load_scenario("stroke", [*settings, SITES, "evaluation.baselines=false"])
    run = Federation(tmp_path / "run", scenario).run()
    bank = PosteriorBank(RunStore.open(run.folder, to_read=True))
    means = log_odds_means(site_means(bank.last(HOSPITALS, 0)))
    pooled = bank.last(POOLED_ROUNDS, 0)
    parts = [load_site(run.site_file(name)).train for name in sorted(scenario.sites)]
    features = standardised(np.concatenate([part.features for part in parts]), scenario)
    released = run_rounds(
        features=np.column_stack([np.ones(len(features)), features]),
        outcomes=np.concatenate([part.labels for part in parts]),
        hospital=np.repeat(np.arange(3), [len(part.labels) for part in parts]),
        sites=tuple(sorted(scenario.sites)),
        scenario=scenario,
        generator=np.random.default_rng(0),
    )
    # States are float32.
    scale = np.abs(means.gradients).max()
    np.testing.assert_allclose(released.means.gradients, means.gradients, atol=1e-3 * scale)
    np.testing.assert_allclose(released.means.states, means.states, atol=1e-5)
    np.testing.assert_allclose(released.rounds.states, pooled["states"], atol=1e-5)
    np.testing.assert_allclose(released.rounds.scores, pooled["scores"], atol=1e-4)
    np.testing.assert_allclose(released.rounds.noises, pooled["noises"], rtol=1e-6)
    kept = read_kept_run(run.folder)
    np.testing.assert_allclose(released.samples, kept.samples, atol=1e-5)
    # The log odds tell what the softmax model does.
    stored = read_run(run.folder)
    inputs = features.astype(np.float32)
    samples = stored.stored.samples
    by_module = predict(
        stored.build_module(), samples.arrays, weights=samples.weights, features=inputs
    )
    np.testing.assert_allclose(kept.one_model(inputs), by_module.probabilities[:, 1], atol=1e-5)


@pytest.mark.slow
def test_the_noise_of_a_run_has_the_planned_size_and_its_steps_are_the_rounds(
    federation, tmp_path
) -> None:
    settings = ["training={rounds=12, steps_per_round=1, burn_in=2, thinning=1}"]
    settings += ["aggregation.largest_share=1.0", "evaluation.baselines=false"]
    settings.append("simulation.insecure_seed=3")
    scenario = load_scenario("stroke", [*settings, SITES])
    run = Federation(tmp_path / "run", scenario).run()
    row = noise_row(run.folder, read_split(scenario))
    assert row["numbers"] == 3 * 26
    assert abs(row["square"] - 1) < 4 / np.sqrt(2 * row["numbers"])
    assert row["planned off"] < 1e-12
    # A state is rounded to float32 when it is sent, moved to a hospital's intercept, released and
    # moved back: in each of twelve rounds four times by 2^-24 of at most 8.
    assert row["steps off"] < 12 * 4 * 8 * 2**-24


def small_trial() -> Patients:
    generator = np.random.default_rng(0)
    return Patients(
        features=np.column_stack([np.ones(6000), generator.normal(size=(6000, 25)) / 2]),
        hospital=np.repeat(np.arange(60), 100),
        country=np.arange(60) // 10,
        coefficients=np.append(0.5, generator.normal(size=25) / 3),
    )


@pytest.mark.parametrize("name", TRUTHS)
def test_a_truth_draws_hospitals_as_it_says(name: str) -> None:
    truth = TRUTHS[name]
    drawn = deal(truth, small_trial(), np.random.default_rng(1))
    sizes = np.bincount(drawn.hospital)
    count = truth.hospitals or 60
    assert (len(sizes), sizes[0]) == (count, truth.patients or 100)
    assert not drawn.trains[drawn.held_out[drawn.hospital]].any()
    within = drawn.levels - np.array(
        [drawn.levels[drawn.country == place].mean() for place in drawn.country]
    )
    # In countries of ten and eight the mean takes a part; heavy tails vary most.
    expected = truth.hospital_sd * np.sqrt(1 - 1 / np.bincount(drawn.country)[0])
    errors = 5 if truth.law != "normal" else 4
    assert abs(within.std() - expected) < errors * expected / np.sqrt(2 * count)


def test_dealing_by_risk_makes_hospitals_differ_in_case_mix_and_keeps_a_country_s_patients() -> (
    None
):
    patients = small_trial()
    spread = {}
    for name in ("as found", "case mix differs"):
        drawn = deal(TRUTHS[name], patients, np.random.default_rng(2))
        risk = drawn.features @ patients.coefficients
        spread[name] = np.std([risk[drawn.hospital == place].mean() for place in range(60)])
        assert risk[:1000].sum() == pytest.approx(
            (patients.features @ patients.coefficients)[:1000].sum()
        )
    assert spread["case mix differs"] > 3 * spread["as found"]


@pytest.mark.slow
def test_a_deal_compares_every_kind_of_hospital_and_its_shares_are_in_0_to_1() -> None:
    result = run_deal("20 hospitals of 200", "8", 0, small_trial())
    for kind in KINDS:
        shares = np.array(result["below"][kind])
        assert len(shares) == len(result["width"][kind]) == len(result["off"][kind])
        assert ((shares >= 0) & (shares <= 1)).all()
        assert len(shares) or kind == "country known"
    again = run_deal("20 hospitals of 200", "8", 0, small_trial())
    assert again == result


def test_a_level_gives_the_rate_that_it_was_found_for() -> None:
    log_odds = np.random.default_rng(3).normal(size=200)
    rate = float((1 / (1 + np.exp(-log_odds - 0.7))).mean())
    assert level_of_rate(log_odds, rate) == pytest.approx(0.7, abs=1e-6)


def test_log_loss_integrates_over_the_effect() -> None:
    known = mixed(np.ones(1), means=np.full(1, 0.4), variances=np.full(1, 1e-10))
    expected = -np.log(1 / (1 + np.exp(-1.4))) - np.log(1 - 1 / (1 + np.exp(-0.2)))
    loss = log_loss(np.array([1.0, -0.2]), np.array([1, 0]), known)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_coverage_counts_cases_and_its_error_goes_over_deals() -> None:
    def result(below: list[float]) -> dict[str, object]:
        of_kinds = {kind: [] for kind in KINDS} | {"training": below}
        figures = {kind: [0.5] * len(values) for kind, values in of_kinds.items()}
        return {
            "below": of_kinds,
            "width": figures,
            "off": figures,
            "losses": {},
            "tested": 0,
            "medians": [0.3, 0.4],
        }

    deals = [[0.5, 0.97], [0.5, 0.5], [0.04, 0.02]]
    rows = pd.DataFrame(
        [
            {"truth": "as found", "epsilon": "1", "deal": number, "result": result(below)}
            for number, below in enumerate(deals)
        ]
    )
    row = coverage_table(rows).set_index("kind").loc["training"]
    assert (row["deals"], row["cases"]) == (3, 6)
    assert row["held_90%"] == pytest.approx(0.5)
    # Deals are off by 0, 1 and -1 cases of six.
    assert row["error_90%"] == pytest.approx(np.sqrt(2) / 6)
    assert row["held_95%"] == pytest.approx(5 / 6)
