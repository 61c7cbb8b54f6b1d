"""A run with a posterior over hospitals: what it keeps, through a cut, and what it predicts."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas
import pytest

from fl_dpbayes.calibration.release import BoundedSum
from fl_dpbayes.config.scenario import Scenario, load_scenario
from fl_dpbayes.config.task import FrozenBody, MLPModel
from fl_dpbayes.data.site import load_site
from fl_dpbayes.files.record import digest
from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.hospital.ledger import ledger_of
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.posterior.hierarchical.effects import (
    HOSPITALS,
    POOLED_ROUNDS,
    Means,
    PooledRounds,
    log_odds_means,
    pooled_round,
    site_means,
)
from fl_dpbayes.posterior.hierarchical.model import fit_hospitals, with_intercept
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.store import POSTERIOR_FILE, save_posterior
from fl_dpbayes.predict.finished_run import read_run
from fl_dpbayes.predict.hospital_posterior import load_hospitals
from fl_dpbayes.predict.paid_release import read_hospital_records
from fl_dpbayes.predict.update import residual_sum
from fl_dpbayes.privacy.ledger.file import LedgerError
from fl_dpbayes.privacy.ledger.ledger import Ledger
from fl_dpbayes.report.page_tables import hospitals_table
from fl_dpbayes.report.run_files import read_summary
from server.strategies.moves import SketchedMoves
from tests.asking import refused
from tests.federations import Federation
from tests.resumed import assert_same_run
from tests.server.conftest import Cut

# Every test here needs a whole run.
pytestmark = pytest.mark.slow

SITES = """sites={
uk-119 = {role="train", group="uk"}, uk-32 = {role="train", group="uk"},
norway-258 = {role="train", group="norway"},
uk-129 = {role="held_out", group="uk"}}""".replace("\n", "")
SETTINGS = [
    "training={rounds=6, steps_per_round=1, burn_in=2, thinning=1}",
    "privacy.coupling=constant",
    "evaluation={}",
    "privacy.temperature=",
    "privacy.sampling_rate=1.0",
    "privacy.epsilon=8",
    "simulation.insecure_seed=5",
    "sampler.step_size.initial=1.0",
    "hierarchical.group=country",
]


def scenario(*overrides: str) -> Scenario:
    return load_scenario("quickstart", [SITES, *SETTINGS, *overrides])


@pytest.fixture(scope="module")
def noised() -> list[np.ndarray]:
    """What the sites' chains summed up and noised, in the order of their steps."""
    return []


@pytest.fixture(scope="module")
def run(
    federations, noised: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> Federation:
    from fl_dpbayes.samplers import chain

    plain = chain.noisy_gradient

    def watched(clipped_sum, *, noise, noise_multiplier, noise_unit, **settings):
        noised.append((clipped_sum + noise_multiplier * noise_unit * noise.double()).numpy().copy())
        given = {"noise": noise, "noise_multiplier": noise_multiplier, "noise_unit": noise_unit}
        return plain(clipped_sum, **given, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "noisy_gradient", watched)
        return Federation(tmp_path_factory.mktemp("hospitals") / "run", scenario()).run()


@pytest.fixture(scope="module")
def patients(run: Federation) -> Path:
    """The records of the held-out hospital, with their labels, as a file of its own."""
    site = load_site(run.site_file("uk-129"))
    np.savez(
        path := run.folder.parent / "patients.npz",
        features=site.test.features,
        labels=site.test.labels,
    )
    return path


def test_sums_are_those_that_the_chains_noised_to_rounding(
    run: Federation, noised: list[np.ndarray]
) -> None:
    sums = PosteriorBank(RunStore.open(run.folder, to_read=True)).last(HOSPITALS, 0)
    means = site_means(sums)
    assert sorted(sums) == ["norway-258", "uk-119", "uk-32"]
    assert [row[1] for row in sums.values()] == [4, 4, 4]
    # Three sites in turn, the Norwegian one last; six rounds, of which the first two are burn-in.
    own = np.array(noised).reshape(6, 3, -1)[2:, [2, 0, 1]].mean(axis=0)
    assert np.abs(means.gradients - own).max() < 1e-3 * np.abs(own).max()


def test_every_round_s_pooled_score_is_the_mean_of_what_the_chains_noised(
    run: Federation, noised: list[np.ndarray]
) -> None:
    bank = PosteriorBank(RunStore.open(run.folder, to_read=True))
    rounds = bank.last(POOLED_ROUNDS, 0)
    means = log_odds_means(site_means(bank.last(HOSPITALS, 0)))
    assert (rounds["states"].shape, rounds["noises"].shape) == ((6, 26), (6,))
    # Three sites in turn, the Norwegian one last; burn-in is among the rounds.
    for number, sums in enumerate(np.array(noised).reshape(6, 3, -1)[:, [2, 0, 1]]):
        of_round = log_odds_means(
            Means(
                units=means.units,
                gradients=sums,
                states=np.zeros_like(sums),
                # Rounds have equal noise, and four came after burn-in.
                noise=means.noise * 2 * np.sqrt(2),
            )
        )
        pooled = pooled_round(of_round, rounds=6)
        scale = np.abs(pooled.scores).max()
        np.testing.assert_allclose(rounds["scores"][number], pooled.scores[0], atol=1e-3 * scale)
        np.testing.assert_allclose(rounds["noises"][number], pooled.noises[0], rtol=1e-9)


def test_after_burn_in_a_hospital_is_asked_at_its_own_intercept_and_moves_count_from_there(
    run: Federation, federation, tmp_path: Path
) -> None:
    starts = {}
    for site in ("norway-258", "uk-119", "uk-32"):
        requests = run.requests("train", site)
        starts[site] = [
            {name: array.numpy() for name, array in request.content["arrays"].items()}
            for request in requests
        ]
    # Two rounds of burn-in and the first after it, of which the levels are made.
    for number in range(3):
        assert all(
            np.array_equal(starts["uk-32"][number][name], starts["uk-119"][number][name])
            for name in starts["uk-32"][number]
        )
    model = load_hospitals(run.folder, run.scenario, run.scenario.data.source.task)
    for number in range(3, 6):
        biases = []
        for site in model.sites:
            *slopes, bias = starts[site][number].values()
            (norwegian_slopes, _) = starts["norway-258"][number].values()
            assert np.array_equal(slopes[0], norwegian_slopes)
            biases.append(bias[1] - bias[0])
        assert len(set(biases)) == 3
    # Levels of the last round go as those of the fit, on one more round.
    assert np.argsort(biases).tolist() == np.argsort(model.posterior.mean_effects).tolist()

    # A hospital that is far from all others in its level alone has not moved far.
    moved = []
    original = SketchedMoves.add

    def add(self, site, start, last):
        moved.append((site, start))
        original(self, site=site, start=start, last=last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SketchedMoves, "add", add)
        again = Federation(tmp_path / "again", scenario()).run()
    last_starts = dict(moved[-3:])
    for request in again.requests("train")[-3:]:
        sent = list(request.content["arrays"].values())
        start = list(last_starts[again.site_of(request)].values())
        assert all(np.array_equal(a.numpy(), b) for a, b in zip(sent, start, strict=True))


def test_a_run_that_was_cut_off_keeps_its_sums(run: Federation, federation, tmp_path: Path) -> None:
    again = Federation(tmp_path / "again", scenario())
    sent = 0

    def cut(request, reply):
        nonlocal sent
        sent += 1
        if sent == 4 + 3 * 4 + 2:
            raise Cut
        return reply

    again.grid.change = cut
    with pytest.raises(Cut):
        again.run()
    again.grid.change = lambda request, reply: reply
    again.run()
    assert_same_run(again.folder, run.folder)
    stored = PosteriorBank(RunStore.open(run.folder, to_read=True))
    stored_again = PosteriorBank(RunStore.open(again.folder, to_read=True))
    for name in (HOSPITALS, POOLED_ROUNDS):
        for key, values in stored.last(name, 0).items():
            assert np.array_equal(stored_again.last(name, 0)[key], values)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (POOLED_ROUNDS, "pooled sums of its rounds are missing"),
        (HOSPITALS, "not those of its sites"),
    ],
)
def test_a_run_whose_store_lacks_what_it_keeps_of_hospitals_does_not_go_on(
    federation, tmp_path: Path, name: str, said: str
) -> None:
    cut_off = Federation(tmp_path / "cut", scenario())

    def cut(request, reply):
        if len(cut_off.grid.requests) > 4 + 3 * 4:
            raise Cut
        return reply

    cut_off.grid.change = cut
    with pytest.raises(Cut):
        cut_off.run()
    cut_off.grid.change = lambda request, reply: reply
    with RunStore.open(cut_off.folder) as store:
        stored = store.state(name, 0)
        store.replace_state(name, 0, stored.round, {})
        store.append()
    refused(f"{cut_off.folder}/run.sqlite is not as it was written .*{said}", cut_off.run)


def test_every_hospital_is_measured_with_its_own_posterior(run: Federation) -> None:
    summary = run.summary()
    measured = {row["site"] for row in summary["calibration"] if row["predictor"] == "hierarchical"}
    assert {
        "uk-119",
        "uk-32",
        "norway-258",
        "uk-129",
        "pooled:train",
        "pooled:held_out",
    } <= measured
    bundles = {
        site: record["arrays"]
        for site in run.scenario.sites
        for record in run.asked("evaluate", site)
    }
    assert len(set(bundles.values())) == 4
    # Two groups cannot tell how groups differ, nor three hospitals within two groups how hospitals
    # do.
    found = summary["hospitals"]
    assert [(row["among"], row["identified"]) for row in found[:2]] == [(2, False), (2, False)]
    widths = [row["interval"][1] - row["interval"][0] for row in found]
    # A new hospital's rate: where nothing is known, in Norway with its one hospital, in the UK with
    # two.
    assert [row["of"].rpartition(" ")[2] for row in found[2:]] == ["hospital", "norway", "uk"]
    assert widths[4] < widths[3] < widths[2]
    shown = [
        " ".join(map(str, cell))
        for row in hospitals_table(read_summary(run.folder)).rows
        for cell in row
    ]
    assert any("between hospitals log odds, 2 of them: too few to tell" in cell for cell in shown)


def test_what_the_others_foretell_is_less_sure_than_what_a_hospitals_own_states_add(
    run: Federation,
) -> None:
    found = load_hospitals(run.folder, run.scenario, run.scenario.data.source.task)
    assert found.without("uk-119").sd > 1.5 * found.effect("uk-119").sd
    alike = found.effect(group="uk")
    assert abs(found.without("uk-119").mean - alike.mean) < alike.sd


def test_a_site_whose_level_cannot_be_and_chains_that_ran_away_are_not_heard(
    run: Federation,
) -> None:
    bank = PosteriorBank(RunStore.open(run.folder, to_read=True))
    sums = bank.last(HOSPITALS, 0)
    rounds = PooledRounds.of_arrays(bank.last(POOLED_ROUNDS, 0))
    away = {site: np.append(row[:56], 1e9 * row[56:]) for site, row in sums.items()}
    assert fit_hospitals(away, rounds, run.scenario).posterior.is_left_out.all()
    sums["uk-32"][55] += 1e6
    model = fit_hospitals(sums, rounds, run.scenario)
    is_left_out = dict(zip(model.sites, model.posterior.is_left_out.tolist(), strict=True))
    assert is_left_out == {"norway-258": False, "uk-119": False, "uk-32": True}


def test_predictions_are_those_of_the_hospital_that_is_named(
    run: Federation, patients: Path, command, refusal
) -> None:
    def predicted(*options: str) -> tuple[pandas.DataFrame, str]:
        status, printed, said = command("predict", run.folder, patients, *options)
        assert status == 0
        (run.folder.parent / "out.csv").write_text(printed)
        return pandas.read_csv(run.folder.parent / "out.csv"), said

    own, said = predicted("--site", "uk-119")
    said = " ".join(said.split())
    assert "rate of dead or dependent among these records of hospital uk-119: 0." in said
    assert "nothing guarantees that without sets" in said
    new, said = predicted()
    assert "an unknown hospital" in said
    # How sure the level is, is what differs most.
    assert own["epistemic_uncertainty"].mean() < new["epistemic_uncertainty"].mean()
    known, _ = predicted("--group", "uk")
    assert not np.allclose(
        known["probability_dead or dependent"], new["probability_dead or dependent"], atol=1e-4
    )
    said = refusal("predict", run.folder, patients, "--site", "mars")
    assert "training hospitals' (norway-258, uk-119, uk-32)" in said
    assert "(norway, uk)" in refusal("predict", run.folder, patients, "--group", "mars")


def test_at_home_own_patients_narrow_the_level_and_nothing_is_overwritten(
    run: Federation, patients: Path, tmp_path: Path, command, refusal
) -> None:
    out = tmp_path / "own.json"
    status, printed, _ = command("update", run.folder, patients, "--group", "uk", "--out", out)
    assert status == 0
    assert "nothing left this machine" in " ".join(printed.split())
    effect = json.loads(out.read_text())
    assert effect["epsilon"] is None
    status, _, said = command("predict", run.folder, patients, "--update", out)
    labels, said = np.load(patients)["labels"], " ".join(said.split())
    assert (status, "the hospital updated in" in said) == (0, True)
    expected = float(said.partition("rate of dead or dependent ")[2].partition(": ")[2].split()[0])
    assert abs(expected - labels.mean()) < 0.05
    assert "exists already" in refusal("update", run.folder, patients, "--out", out)
    (tmp_path / "bad.json").write_text(json.dumps(effect | {"mean": 1e300}))
    assert "is not what" in refusal(
        "predict", run.folder, patients, "--update", tmp_path / "bad.json"
    )
    assert "leave out --epsilon" in refusal("update", run.folder, patients, "--epsilon", "-1")


def spent(path: Path) -> float:
    with ledger_of(path) as ledger:
        return ledger.spent("test").epsilon


def test_one_release_is_paid_for_once(run: Federation, tmp_path: Path, command, refusal) -> None:
    (path,) = (run.folder / "sites").glob("*uk-129.toml")
    released = [tmp_path / "first.json", tmp_path / "second.json"]
    for out in released:
        status, printed, said = command("update", run.folder, path, "--epsilon", "1", "--out", out)
        assert (status, "released at epsilon 1" in printed) == (0, True), said
        assert 0.9 < spent(path) <= 1.0
    assert released[0].read_bytes() == released[1].read_bytes()
    assert "BUDGET_EXHAUSTED" in refusal(
        "update", run.folder, path, "--epsilon", "100", "--out", tmp_path / "3.json"
    )
    assert "give --epsilon" in refusal("update", run.folder, path)
    assert "above 0" in refusal("update", run.folder, path, "--epsilon", "nan")
    assert "has released its states already" in refusal(
        "update",
        run.folder,
        path,
        "--epsilon",
        "1",
        "--site",
        "uk-32",
        "--out",
        tmp_path / "fourth.json",
    )


def test_sets_are_predicted_from_what_was_paid_for_once(
    run: Federation, patients: Path, tmp_path: Path, command, refusal
) -> None:
    (path,), labels = (run.folder / "sites").glob("*uk-129.toml"), np.load(patients)["labels"]
    home, first, second, few = (
        tmp_path / f"{name}.json" for name in ("home", "first", "second", "few")
    )
    assert command("update", run.folder, patients, "--sets", "0.95", "--out", home)[0] == 0
    before = spent(path)
    for out in (first, second):
        status, printed, said = command(
            "update", run.folder, path, "--epsilon", "3", "--sets", "0.95", "--out", out
        )
        assert (status, "if patients are exchangeable" in printed) == (0, True), said
    assert 2.0 < spent(path) - before <= 3.0
    assert first.read_bytes() == second.read_bytes()
    for file in (home, first):
        assert (
            command(
                "predict", run.folder, patients, "--update", file, "--out", file.with_suffix(".csv")
            )[0]
            == 0
        )
        sets, names = (
            pandas.read_csv(file.with_suffix(".csv"))["set"],
            run.scenario.data.source.names_of_classes,
        )
        held = [names[label] in told.split(" | ") for label, told in zip(labels, sets, strict=True)]
        assert np.mean(held) >= (0.95 if file == home else 0.9)
    # What leaves has the noise that its sensitivity asks for.
    own = read_hospital_records(path, read_run(run.folder), 0.5)
    sent, std = own.release("sets", "", BoundedSum(np.zeros(4_000), 1.5))
    assert (std, abs(sent.std() / std - 1) < 0.05) == (1.5 * own.noise_multiplier, True)
    assert "patients at this" in refusal(
        "update", run.folder, path, "--epsilon", "0.1", "--sets", "0.9", "--out", few
    )
    assert "patients at this" in refusal(
        "update", run.folder, path, "--epsilon", "1", "--sets", "nan", "--out", few
    )


def test_a_changed_record_is_another_request_and_a_release_that_fails_is_paid_for(
    run: Federation, tmp_path: Path, command, refusal, monkeypatch
) -> None:
    (path,) = (run.folder / "sites").glob("*uk-129.toml")

    def changed(site_file):
        site = load_site(site_file)
        return replace(
            site,
            test=replace(
                site.test, labels=np.append(site.test.labels[:-1], 1 - site.test.labels[-1])
            ),
        )

    asked, costs = ("update", run.folder, path, "--epsilon", "2", "--out"), [spent(path)]
    for out in (tmp_path / "first.json", tmp_path / "changed.json"):
        assert command(*asked, out)[0] == 0
        costs.append(spent(path))
        monkeypatch.setattr("fl_dpbayes.predict.paid_release.load_site", changed)
    monkeypatch.undo()
    # Also where the ledger refuses what it should store: its length depends on records and noise.
    for failure in (ZeroDivisionError("division"), LedgerError("database or disk is full")):
        monkeypatch.setattr(Ledger, "commit", Mock(side_effect=failure))
        asked = ("update", run.folder, path, "--epsilon", "1.5", "--out", tmp_path / "failed.json")
        assert "its budget is spent" in command(*asked)[2]
        assert not (tmp_path / "failed.json").exists()
        costs.append(spent(path))
    assert (np.diff(costs) > 0.1).all()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("aggregation.rule=mixture", "aggregation.rule is 'mixture'"),
        ("training.steps_per_round=2", "training.steps_per_round is 2"),
        (
            "aggregation={rule='fald', robust='median', site_weights='uniform'}",
            "aggregation.robust is 'median'",
        ),
        ("privacy.sampling_rate=0.5", r"privacy.sampling_rate is 0.5.*needs 1.0"),
        ("model={kind='mlp'}", "model.kind is 'mlp'.*needs 'logistic'"),
        ("sampler={kind='dp-sgd'}", "sampler.kind is 'sgd'"),
        ("privacy.pre_noise=0.1", "privacy.pre_noise is 0.1"),
        ("privacy.clipping={kind='automatic'}", "privacy.clipping.kind is 'automatic'"),
        ("hierarchical.group=", r"hierarchical.group is None and sites.uk-119.group 'uk'"),
        ("sites.uk-32.group=", r"sites.uk-32.group None"),
        ("hierarchical=", r"sites.uk-119.group 'uk'"),
    ],
)
def test_what_the_states_cannot_tell_is_refused(override: str, said: str) -> None:
    refused(said, scenario, override)


def test_more_than_two_classes_are_refused_before_anything_is_spent(federation) -> None:
    fitting = [
        "training={rounds=2, steps_per_round=1, burn_in=0, thinning=1}",
        "aggregation.rule=fald",
    ]
    refused(
        "for 2 classes, the records have 10",
        federation,
        *fitting,
        "model={kind='logistic'}",
        "hierarchical={}",
    )


def alternating(size: int) -> np.ndarray:
    return np.where(np.arange(size) % 2, 1.0, -1.0)


HOSTILE = {
    "states beyond float64's squares": (
        lambda row: 1e307 * alternating(len(row)),
        "beyond float32's range",
    ),
    "not a number": (lambda row: row * np.nan, "beyond float32's range"),
    "a weight that makes them so": (
        lambda row: np.concatenate([row[:2], [1e-37], row[3:4], 3e38 * alternating(len(row) - 4)]),
        "'states' has a value",
    ),
    "half a round": (lambda row: np.concatenate([row[:1], [0.5], row[2:]]), "rounds"),
    "a billion patients": (lambda row: np.concatenate([[1e30], row[1:]]), "rounds"),
    "no weight": (lambda row: np.concatenate([row[:2], [0.0], row[3:]]), "rounds"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("options", [(), ("--sets", "0.9")])
def test_a_hostile_bank_is_refused_in_one_line_before_anything_is_spent(
    run: Federation, tmp_path: Path, refusal, name: str, options: tuple[str, ...]
) -> None:
    change, said = HOSTILE[name]
    folder = tampered(run, tmp_path, change)
    (path,) = (run.folder / "sites").glob("*uk-129.toml")
    before = spent(path)
    out = tmp_path / "out.json"
    told = refusal("update", folder, path, *options, "--epsilon", "3", "--out", out)
    assert said in told
    assert "put back a copy" in told
    assert spent(path) == before


HOSTILE_ROUNDS = {
    "none": (lambda rounds: {}, "are missing"),
    "another array": (lambda rounds: rounds | {"more": np.ones(1)}, "are missing"),
    "of another model": (lambda rounds: rounds | {"scores": np.ones((6, 3))}, "of its rounds"),
    "more than the run has": (
        lambda rounds: {name: np.repeat(array, 2, axis=0) for name, array in rounds.items()},
        "of its rounds",
    ),
    "burn-in alone": (
        lambda rounds: {name: array[:2] for name, array in rounds.items()},
        "of its rounds",
    ),
    "not a number": (
        lambda rounds: rounds | {"states": rounds["states"] * np.nan},
        "beyond float32's range",
    ),
    "without noise": (lambda rounds: rounds | {"noises": np.zeros(6)}, "have no noise"),
}


def with_rounds(run: Federation, tmp_path: Path, change) -> Path:
    """Copy a run, and change its pooled rounds."""
    folder = tmp_path / "hostile"
    shutil.copytree(run.folder, folder)
    with RunStore.open(folder) as store:
        stored = store.state(POOLED_ROUNDS, 0)
        store.replace_state(POOLED_ROUNDS, 0, stored.round, change({**stored.read()}))
        store.append()
    return folder


@pytest.mark.parametrize("name", HOSTILE_ROUNDS)
def test_hostile_pooled_rounds_are_refused_in_one_line(
    run: Federation, tmp_path: Path, name: str
) -> None:
    change, said = HOSTILE_ROUNDS[name]
    folder = with_rounds(run, tmp_path, change)
    task = run.scenario.data.source.task
    refused(f"{folder}/run.sqlite .*{said}", load_hospitals, folder, run.scenario, task)


def test_scores_of_any_size_stretch_made_up_patients_within_bounds(
    run: Federation, tmp_path: Path
) -> None:
    huge = {"scores": np.full((6, 26), 3e38), "noises": np.full(6, 1e-9)}
    folder = with_rounds(run, tmp_path, lambda rounds: rounds | huge)
    task = run.scenario.data.source.task
    spreads = [
        (model.covariates[:, 1:] @ model.state[1:]).std()
        for model in (load_hospitals(place, run.scenario, task) for place in (run.folder, folder))
    ]
    assert 0.6 / 3.2 < spreads[1] / spreads[0] < 3.2 / 0.6


@pytest.mark.parametrize("size", [1e12, 1e36])
def test_a_release_is_bounded_whatever_states_a_bank_may_hold(
    run: Federation, tmp_path: Path, size: float
) -> None:
    def change(row: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [row[:4], row[4:] + min(row[2], 1.0) * size * alternating(len(row) - 4)]
        )

    folder = tampered(run, tmp_path, change)
    (path,) = (run.folder / "sites").glob("*uk-129.toml")
    own = read_hospital_records(path, read_run(run.folder), 0.5)
    model = load_hospitals(folder, run.scenario, read_run(folder).task)
    log_odds = with_intercept(own.inputs) @ model.state
    whole = residual_sum(log_odds, own.labels, own.unit_index)
    assert np.isfinite(whole.sums).all()
    assert abs(whole.sums[0]) <= own.unit_index.max() + 1


def of_another_model(folder: Path) -> None:
    """Put a posterior into a run's folder whose model sees other values of the records."""
    finished = read_run(folder)
    model = MLPModel(hidden=(3,), frozen_body=FrozenBody(seed=1))
    shapes = model_shapes(model, finished.task)
    arrays = {name: np.zeros((1, *shape), np.float32) for name, shape in shapes.items()}
    samples = PosteriorSamples(arrays, np.ones(1), np.zeros(1))
    path, scenario = folder / POSTERIOR_FILE, digest(finished.scenario)
    save_posterior(path, samples, model, finished.task, scenario)


@pytest.mark.parametrize("options", [(), ("--sets", "0.9")])
def test_a_posterior_of_another_model_than_its_runs_is_refused_before_anything_is_spent(
    run: Federation, tmp_path: Path, refusal, options: tuple[str, ...]
) -> None:
    folder = tampered(run, tmp_path, lambda row: row)
    of_another_model(folder)
    (path,) = (run.folder / "sites").glob("*uk-129.toml")
    before = spent(path)
    out = tmp_path / "out.json"
    assert "is of another model than" in refusal(
        "update", folder, path, *options, "--epsilon", "3", "--out", out
    )
    assert spent(path) == before


def tampered(run: Federation, tmp_path: Path, change) -> Path:
    """Copy a run, and change the sums of its hospitals."""
    folder = tmp_path / "hostile"
    shutil.copytree(run.folder, folder)
    with RunStore.open(folder) as store:
        stored = store.state(HOSPITALS, 0)
        sums = {site: change(row) for site, row in stored.read().items()}
        store.replace_state(HOSPITALS, 0, stored.round, sums)
        store.append()
    return folder
