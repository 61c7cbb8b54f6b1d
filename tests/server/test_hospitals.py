"""A run with a posterior over hospitals: what it keeps, through a cut, and what it cannot be asked for."""

from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.posterior.hierarchical.effects import (
    HOSPITALS,
    POOLED_ROUNDS,
    Means,
    PooledRounds,
    log_odds_means,
    pooled_round,
    site_means,
)
from fl_dpbayes.posterior.hierarchical.model import fit_hospitals
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.predict.hospital_posterior import load_hospitals
from fl_dpbayes.report.page_tables import hospitals_table
from fl_dpbayes.report.run_files import read_summary
from server.strategies.moves import SketchedMoves
from tests.asking import refused
from tests.federations import Federation
from tests.hospitals import HospitalRun, scenario
from tests.resumed import assert_same_run
from tests.server.conftest import Cut

# Every test here needs a whole run.
pytestmark = pytest.mark.slow


@pytest.fixture
def noised(hospital_run: HospitalRun) -> list[np.ndarray]:
    return hospital_run.noised


@pytest.fixture
def run(hospital_run: HospitalRun) -> Federation:
    return hospital_run.federation


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
