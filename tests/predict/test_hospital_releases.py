"""What a run over hospitals predicts for one of them, what that hospital releases, and what a bad bank cannot do."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas
import pytest

from fl_dpbayes.calibration.release import BoundedSum
from fl_dpbayes.config.task import FrozenBody, MLPModel
from fl_dpbayes.data.site import load_site
from fl_dpbayes.files.record import digest
from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.hospital.ledger import ledger_of
from fl_dpbayes.models.build import model_shapes
from fl_dpbayes.posterior.hierarchical.effects import (
    HOSPITALS,
    POOLED_ROUNDS,
)
from fl_dpbayes.posterior.hierarchical.model import with_intercept
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.store import POSTERIOR_FILE, save_posterior
from fl_dpbayes.predict.finished_run import read_run
from fl_dpbayes.predict.hospital_posterior import load_hospitals
from fl_dpbayes.predict.paid_release import read_hospital_records
from fl_dpbayes.predict.update import residual_sum
from fl_dpbayes.privacy.ledger.file import LedgerError
from fl_dpbayes.privacy.ledger.ledger import Ledger
from tests.asking import refused
from tests.federations import Federation
from tests.hospitals import HospitalRun

# Every test here needs a whole run.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(
    hospital_run: HospitalRun, federations, tmp_path_factory: pytest.TempPathFactory
) -> Federation:
    """A copy of the run, whose held-out hospital pays for releases here."""
    own = copy.copy(hospital_run.federation)
    own.folder = tmp_path_factory.mktemp("hospitals") / "run"
    shutil.copytree(hospital_run.federation.folder, own.folder)
    return own


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


def test_what_the_others_foretell_is_less_sure_than_what_a_hospitals_own_states_add(
    run: Federation,
) -> None:
    found = load_hospitals(run.folder, run.scenario, run.scenario.data.source.task)
    assert found.without("uk-119").sd > 1.5 * found.effect("uk-119").sd
    alike = found.effect(group="uk")
    assert abs(found.without("uk-119").mean - alike.mean) < alike.sd


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
