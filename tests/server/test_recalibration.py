"""Recalibration of a whole run: its part, budget and maps, and sites that take no part."""

import json

import numpy as np
import pandas
import pytest
from flwr.app import Array
from rich.console import Console
from scipy.special import entr

from fl_dpbayes.calibration.metrics.ranking import exact_auroc
from fl_dpbayes.calibration.recalibration.isotonic import count, fit
from fl_dpbayes.calibration.recalibration.maps import recalibrate
from fl_dpbayes.calibration.release import NoisedTable, sensitivity
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.site import load_site
from fl_dpbayes.models.build import build_model
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.predict.stored_posterior import evaluate_records, predict_records
from fl_dpbayes.privacy.account import account
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.planned_noise import solve_multiplier
from fl_dpbayes.report.page import write_report
from tests.asking import ask, changed, record_of, refusal_of, refused
from tests.server.conftest import predictions

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow

RECALIBRATED = ["recalibration={fraction=0.2, steps=12}"]


@pytest.fixture(scope="module")
def recalibrated(federations):
    run = federations(*RECALIBRATED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.federation.write_report", write_report)
        return run.run()


def test_recalibrated_predictions_are_measured_everywhere_and_paid_for_beside_training(
    recalibrated,
) -> None:
    run, summary = recalibrated, recalibrated.summary()
    assert not [text for text in summary["warnings"] if "recalibrate" in text]
    rows = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    places = {"pooled:train", "pooled:held_out", "pooled:shifted", *run.scenario.sites}
    means = {"mean:train", "mean:shifted"}
    assert {site for site, predictor in rows if predictor == "recalibrated"} == places | means
    for place in places:
        # One temperature for all: the top labels stay, their confidences do not.
        before, after = rows[place, "posterior"], rows[place, "recalibrated"]
        assert after["accuracy"] == before["accuracy"]
        assert after["nll"] != before["nll"]
        assert after["epistemic"] is None
    budget = run.scenario.privacy.epsilon
    for row in summary["privacy"]:
        assert 0.999 * budget <= row["recalibration_epsilon"] <= budget
        assert 0.999 * budget <= row["epsilon"] <= budget
    for site in ("north", "south", "east", "west"):
        with run.ledger(site) as ledger:
            assert ledger.spent("recalibration").steps == 12
            assert ledger.verify() == []
    mapping = load_posterior(run.folder / "posterior.safetensors").metadata.recalibration
    assert list(mapping.parameters) == summary["recalibration"]["average"]
    own = np.array([parameters[0] for parameters in summary["recalibration"]["sites"].values()])
    assert mapping.parameters[0] == pytest.approx(np.median(own), rel=1e-12)
    page = (run.folder / "report.html").read_text()
    assert "recalibrated posterior" in page
    assert "ε of recalibration" in page


def test_predict_and_evaluate_use_the_stored_map(
    recalibrated, tmp_path, capsys: pytest.CaptureFixture
) -> None:
    run = recalibrated
    records = load_unscaled(BuiltIn(kind="digits"), "train").scaled()
    archive, table = tmp_path / "digits.npz", tmp_path / "predictions.csv"
    np.savez(archive, features=records.features[:60], labels=records.labels[:60])
    predict_records(run.folder, archive, table, Console(quiet=True))
    stored = load_posterior(run.folder / "posterior.safetensors")
    plain = predictions(run, records.features[:60])
    written = pandas.read_csv(table).filter(like="probability_").to_numpy()
    assert np.abs(written - recalibrate(plain, stored.metadata.recalibration)).max() < 1e-6
    assert np.abs(written - plain).max() > 1e-3
    uncertainty = pandas.read_csv(table).filter(like="_uncertainty")
    assert np.abs(uncertainty["total_uncertainty"] - entr(written).sum(axis=1)).max() < 1e-4
    assert uncertainty[["aleatoric_uncertainty", "epistemic_uncertainty"]].isna().all(axis=None)
    temperature = np.exp(stored.metadata.recalibration.parameters[0])
    assert f"temperature scaling with T = {temperature:.3g}" in " ".join(
        capsys.readouterr().err.split()
    )
    evaluate_records(run.folder, archive, Console(quiet=True), as_json=True)
    row = json.loads(capsys.readouterr().out)
    assert (row["predictor"], row["n"], row["epistemic"]) == ("recalibrated", 60, None)
    exact = exact_auroc(
        recalibrate(plain, stored.metadata.recalibration), records.labels[:60]
    ).value
    assert row["auroc"] == pytest.approx(exact, abs=1e-12)
    assert row["auroc_bounds"] == [row["auroc"]] * 2
    costs = pandas.read_csv(run.folder / "privacy.csv")
    rows = costs[costs["purpose"] == "recalibration"]
    assert list(rows["site"]) == ["north", "south", "east", "west"]
    assert rows["round"].isna().all()
    assert list(rows["epsilon"]) == [
        row["recalibration_epsilon"] for row in run.summary()["privacy"]
    ]
    assert set(costs["purpose"]) == {"training", "recalibration"}


def test_only_training_sites_are_asked_and_each_round_starts_from_the_average(federation) -> None:
    run = federation("recalibration={fraction=0.2, steps=12, rounds=3}").run()
    assert {run.site_of(message) for message in run.requests("train.recalibrate")} == {
        "north",
        "south",
        "east",
        "west",
    }
    records = run.asked("train.recalibrate")
    assert [record["first_step"] for record in records] == [0] * 4 + [4] * 4 + [8] * 4
    starts = [record["start"] for record in records]
    assert starts[:4] == [[0.0]] * 4
    assert (
        len({tuple(start) for start in starts[4:8]})
        == len({tuple(start) for start in starts[8:]})
        == 1
    )
    assert starts[0] != starts[4] != starts[8]


def test_site_without_budget_for_it_runs_a_prefix_and_the_run_goes_on(federation) -> None:
    run = federation(*RECALIBRATED, "recalibration.epsilon=4.0", "sites.north.epsilon=2.0").run()
    summary = run.summary()
    paid = {row["site"]: row["recalibration_epsilon"] for row in summary["privacy"]}
    assert 0 < paid["north"] <= 2.0 < paid["south"]


def test_refusing_site_is_left_out_of_the_average_with_a_warning(federation) -> None:
    run = federation(*RECALIBRATED, "recalibration.epsilon=3.0", "recalibration.clip_norm=9.0")
    path = sorted((run.folder / "sites").glob("*.toml"))[0]
    path.write_text(path.read_text().replace("max_clip_norm = 1000000.0", "max_clip_norm = 5.0"))
    run.run()
    summary = run.summary()
    assert any(
        "north did not recalibrate: POLICY_DENIED plan.clip_norm" in text
        for text in summary["warnings"]
    )
    assert set(summary["recalibration"]["sites"]) == {"south", "east", "west"}


def test_silent_sites_leave_a_run_without_recalibration(federation) -> None:
    run = federation(*RECALIBRATED, "resources.round_timeout=0.2")
    run.spoil(lambda reply: None, ("train.recalibrate",), run.scenario.sites)
    run.run()
    summary = run.summary()
    assert (
        "north did not recalibrate: no reply in time (the same at south, east, west)."
        in summary["warnings"]
    )
    assert summary["recalibration"] is None
    assert {row["predictor"] for row in summary["calibration"]} == {"last", "posterior"}


def test_map_that_is_mostly_noise_is_called_so_and_not_used(
    federation, tmp_path, capsys: pytest.CaptureFixture
) -> None:
    run = federation(
        'recalibration={ scope = "site", epsilon = 0.1, steps = 20, fraction = 0.2 }', name="noisy"
    ).run()
    summary = run.summary()
    assert sum("recalibration is mostly noise" in text for text in summary["warnings"]) == 1
    assert "mostly noise" in summary["recalibration"]["noise"]
    records = load_unscaled(BuiltIn(kind="digits"), "train").scaled()
    np.savez(tmp_path / "digits.npz", features=records.features[:9], labels=records.labels[:9])
    evaluate_records(run.folder, tmp_path / "digits.npz", Console(quiet=True), as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["predictor"] == "posterior"
    assert "mostly noise" in printed.err


TRAINED, ELSEWHERE = [0.5, 0.5], [0.85, 0.15]
ISOTONIC = "recalibration={fraction=0.3, method='isotonic'}"


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> list[str]:
    """Two hospitals and one elsewhere, which has fewer sick; also one that never trains."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 1600)
    x = generator.normal(1.6 * labels[:, None], 1.0, (1600, 2))
    table = tmp_path_factory.mktemp("table") / "patients.csv"
    pandas.DataFrame({"x": x[:, 0], "y": x[:, 1], "sick": labels}).to_csv(table, index=False)
    source = (
        f'{{kind="table", path="{table}", label="sick", classes=2, features=["x","y"], '
        f"centers=[0.8,0.8]}}"
    )
    sites = (
        "{a={role='train'}, b={role='train'}, held={role='held_out', records=200}, "
        "elsewhere={role='shifted', records=400, shift={kind='prevalence', severity=5}}}"
    )
    return [
        f"data={{source={source}, test_fraction=0.2}}",
        "partition={kind='iid'}",
        f"sites={sites}",
    ]


@pytest.fixture
def hospitals(federation, keys):
    return lambda *overrides, **more: federation(*keys, *overrides, **more)


@pytest.fixture(scope="module")
def isotonic(federations, keys):
    """A run with a map of counts, and the replies that hold these, by site."""
    run, kept = federations(*keys, ISOTONIC, name="isotonic"), {}

    def keep(request, reply):
        if request.metadata.message_type == "train.recalibrate":
            kept[run.site_of(request)] = reply
        return reply

    run.grid.change = keep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.federation.write_report", write_report)
        run.run()
    return run, kept


def rows_of(run) -> dict:
    return {(row["site"], row["predictor"]): row for row in run.summary()["calibration"]}


def counts_of(run, site: str, stored) -> np.ndarray:
    part = load_site(run.site_file(site)).recalibration
    module = build_model(stored.metadata.model, stored.metadata.task, seed=0)
    thinned = stored.samples.thinned(run.scenario.evaluation.max_samples)
    predicted = predict(module, thinned.arrays, thinned.weights, part.features).probabilities
    return count(predicted, part.labels).sums


@pytest.mark.parametrize("scope", ["federated", "site"])
def test_isotonic_map_of_exact_counts_is_the_median_of_the_sites(hospitals, scope: str) -> None:
    # A cohort without a budget, as a run without privacy asks for none.
    run = hospitals(
        f"recalibration={{fraction=0.3, method='isotonic', scope='{scope}'}}",
        "privacy={sampling_rate=1.0, delta=1e-3}",
        "sampler={kind='sgld', step_size={kind='constant', initial=2.0}, "
        "prior={kind='gaussian', scale=1.0}}",
    ).run()
    summary, stored = run.summary(), load_posterior(run.folder / "posterior.safetensors")
    counted = {site: counts_of(run, site, stored) for site in ("a", "b")}
    maps = [fit(NoisedTable(table, 0.0), sites=2).parameters for table in counted.values()]
    median = np.median(maps, axis=0)
    assert summary["recalibration"]["average"] == pytest.approx(list(median))
    assert stored.metadata.recalibration.parameters == pytest.approx(tuple(median))
    for site in run.scenario.sites:
        parameters = run.asked("evaluate", site)[0]["recalibration"]["parameters"]
        own = scope == "site" and site in counted
        expected = fit(NoisedTable(counted[site], 0.0)).parameters if own else median
        assert parameters == pytest.approx(list(expected))
    assert ("pooled:train", "recalibrated") in rows_of(run)
    assert summary["recalibration"]["noise"] == ""


def test_isotonic_counts_are_one_paid_event_and_their_map_is_used(isotonic) -> None:
    run, _ = isotonic
    summary, rows = run.summary(), rows_of(run)
    sigma = solve_multiplier(4.0, 1e-3, 1.0, 1)
    cost = account((GaussianEvent(sigma, 1.0, 1),), 1e-3).epsilon_pld
    for site in ("a", "b"):
        with run.ledger(site) as ledger:
            spent = ledger.spent("recalibration")
            assert (spent.steps, ledger.verify()) == (1, [])
            assert spent.history == (GaussianEvent(sigma, 1.0, 1),)
            assert spent.epsilon == pytest.approx(cost, rel=1e-6)
            assert ledger.spent("train").epsilon <= 4
    assert [row["recalibration_epsilon"] for row in summary["privacy"]] == pytest.approx(
        [cost] * 2, rel=1e-6
    )
    assert {"item": "counts of bins for recalibration", "how": "paid in ledger"} in summary[
        "releases"
    ]
    assert rows["elsewhere", "recalibrated"]["nll"] != rows["elsewhere", "posterior"]["nll"]
    assert rows["held", "recalibrated"]["epistemic"] is None
    page = (run.folder / "report.html").read_text()
    assert "recalibrated posterior" in page
    assert "isotonic, one map over all sites" in page
    assert "on units kept from training, 15 merged bins" in page


def test_counts_carry_the_noise_that_they_state(isotonic) -> None:
    run, kept = isotonic
    stored = load_posterior(run.folder / "posterior.safetensors")
    noise = []
    for site, reply in kept.items():
        stated = record_of(reply)["noise_std"]
        assert stated == pytest.approx(solve_multiplier(4.0, 1e-3, 1.0, 1) * sensitivity())
        noise.append(
            (reply.content["arrays"]["noised"].numpy() - counts_of(run, site, stored)).ravel()
            / stated
        )
    values = np.concatenate(noise)
    assert len(values) == 90
    assert abs(values.mean()) < 4 / np.sqrt(90)
    assert abs(values.std() - 1) < 4 / np.sqrt(180)


HOSTILE = {
    "a sum is": lambda record, table: table.__imul__(1e7),
    "it states noise of": lambda record, table: record.update(noise_std=record["noise_std"] / 2),
    "it states noise": lambda record, table: record.update(noise_std=record["noise_std"] * 999),
    "its parameters do not fit": lambda record, table: record.update(
        noise_std=None, parameters=[0.0]
    ),
}


@pytest.mark.parametrize("said", HOSTILE)
def test_hostile_counts_are_rejected_and_the_other_site_answers_alone(hospitals, said: str) -> None:
    run = hospitals(ISOTONIC)

    def hostile(reply):
        record, table = record_of(reply), reply.content["arrays"]["noised"].numpy().copy()
        HOSTILE[said](record, table)
        reply.content["config"]["record"] = json.dumps(record)
        reply.content["arrays"]["noised"] = Array(table)
        return reply

    run.spoil(hostile, ("train.recalibrate",), ("b",))
    run.run()
    summary = run.summary()
    assert [
        text for text in summary["warnings"] if f"b did not recalibrate: rejected: {said}" in text
    ]
    assert "recalibration_epsilon" not in next(
        row for row in summary["privacy"] if row["site"] == "b"
    )


def test_counts_that_are_mostly_noise_change_nothing_and_are_said_so(hospitals) -> None:
    run = hospitals("recalibration={fraction=0.1, method='isotonic', epsilon=0.05}").run()
    summary, rows = run.summary(), rows_of(run)
    assert sum(
        "recalibration is mostly noise: in the counts of a, b," in w for w in summary["warnings"]
    )
    assert "isotonic map changes nothing" in summary["recalibration"]["noise"]
    assert rows["held", "recalibrated"]["nll"] == pytest.approx(
        rows["held", "posterior"]["nll"], abs=1e-9
    )


DECLARED = [f"data.prevalence={TRAINED}"]


@pytest.mark.parametrize("prevalence", [str(ELSEWHERE), "estimated"])
def test_prediction_is_corrected_where_prevalence_is_known_or_estimated(
    hospitals, prevalence: str
) -> None:
    run = hospitals(
        *DECLARED, f"sites.elsewhere.prevalence={prevalence}", "evaluation.max_samples=5"
    )
    labels = load_site(run.site_file("elsewhere")).test.labels
    # The shift leaves about this share, so the declaration is right.
    assert abs(labels.mean() - ELSEWHERE[1]) < 0.08
    run.run()
    summary, rows = run.summary(), rows_of(run)
    assert {site for site, predictor in rows if predictor == "prior_corrected"} == {
        "elsewhere",
        "pooled:shifted",
    }
    before, after = rows["elsewhere", "posterior"], rows["elsewhere", "prior_corrected"]
    assert after["n"] == before["n"]
    assert after["nll"] < before["nll"]
    assert after["epistemic"] is None
    items = {row["item"]: row["how"] for row in summary["releases"]}
    if prevalence == "estimated":
        assert (
            items["prevalence of the classes: the training population"] == "public by declaration"
        )
        assert items["estimated prevalence of the classes: elsewhere"] == "not sent"
    else:
        assert (
            items["prevalence of the classes: the training population, elsewhere"]
            == "public by declaration"
        )


def test_corrected_table_is_paid_for_where_results_are_noised(hospitals) -> None:
    noised = ["evaluation={release='noised', noise_multiplier=5.0}", *DECLARED]
    run = hospitals(*noised, f"sites.elsewhere.prevalence={ELSEWHERE}").run()
    tables = {}
    for site in ("held", "elsewhere"):
        with run.ledger(site) as ledger:
            tables[site] = ledger.spent("test").steps
    assert tables == {"held": 2, "elsewhere": 3}


def test_site_without_a_prevalence_refuses_to_correct_for_one(hospitals) -> None:
    run = hospitals().run()
    request = changed(run.requests("evaluate")[0], trained_prevalence=TRAINED)
    assert refusal_of(ask(request)) == ("BAD_REQUEST", "trained_prevalence")


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "data.prevalence=[0.5,0.5]",
            r"data\.prevalence has 2 shares, the records have 10 classes",
        ),
        (
            "recalibration={method='platt'}",
            "method 'platt' is for two classes, here are 10: .*'vector'",
        ),
    ],
)
def test_what_does_not_fit_the_classes_is_refused_before_anything_runs(
    federation, override: str, problem: str
) -> None:
    refused(problem, federation, override)


LIES = {
    "hottest": ("temperature", [10.0]),
    "coldest": ("temperature", [-10.0]),
    "steep and biased": ("vector", [10.0] * 10 + [10.0, -10.0] * 5),
}


@pytest.mark.parametrize(("method", "parameters"), LIES.values(), ids=LIES)
@pytest.mark.parametrize("rounds", [1, 3])
def test_one_map_of_four_stays_within_the_others_and_names_its_sender(
    federation, method, parameters, rounds
) -> None:
    section = (
        f"recalibration={{method='{method}', fraction=0.2, steps=12, rounds={rounds}, epsilon=50}}"
    )
    run = federation(section, "privacy.epsilon=50")
    run.spoil_record(lambda record: record.update(parameters=parameters), ("train.recalibrate",))
    run.run()
    summary = run.summary()
    own = summary["recalibration"]["sites"]
    honest = np.array([own[site] for site in ("north", "east", "west")])
    found = np.array(summary["recalibration"]["average"])
    assert (found >= honest.min(axis=0) - 1e-12).all()
    assert (found <= honest.max(axis=0) + 1e-12).all()
    (said,) = (text for text in summary["warnings"] if "recalibration map is far off" in text)
    assert said.startswith("south's")
    assert "(" not in said


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -11.0, "hot"])
def test_map_that_is_no_map_is_rejected_with_its_sender(federation, value) -> None:
    run = federation(*RECALIBRATED)
    run.spoil_record(lambda record: record.update(parameters=[value]), ("train.recalibrate",))
    run.run()
    summary = run.summary()
    assert any(
        text.startswith("south did not recalibrate: rejected: ") for text in summary["warnings"]
    )
    assert set(summary["recalibration"]["sites"]) == {"north", "east", "west"}


def test_counts_of_one_site_of_four_that_turn_outcomes_round_do_not_decide(federation) -> None:
    settings = ("recalibration={fraction=0.3, method='isotonic', epsilon=50}", "privacy.epsilon=50")

    def turned(reply):
        table = 3 * reply.content["arrays"]["noised"].numpy()
        table[:, 2] = np.maximum(table[:, 0], 0) - table[:, 2]
        reply.content["arrays"]["noised"] = Array(table)
        return reply

    lied = federation(*settings, name="lied")
    lied.spoil(turned, ("train.recalibrate",))
    lied.run()
    honest = federation(*settings, name="honest").run()
    nll = [rows_of(run)["held-out", "recalibrated"]["nll"] for run in (lied, honest)]
    assert nll[0] < 1.1 * nll[1]


def test_site_without_a_good_last_reply_is_not_held_against_later_rounds(federation) -> None:
    run = federation(
        "recalibration={fraction=0.2, steps=12, rounds=2, epsilon=50}", "privacy.epsilon=50"
    )

    def change(request, reply):
        later = (
            request.metadata.message_type == "train.recalibrate"
            and record_of(request)["first_step"] > 0
        )
        if not later:
            return reply
        # The others go on far beyond the first round's map, and a reply without a map is rejected.
        parameters = [] if run.site_of(request) == "north" else [3.0]
        record = json.loads(reply.content["config"]["record"])
        reply.content["config"]["record"] = json.dumps(record | {"parameters": parameters})
        return reply

    run.grid.change = change
    run.run()
    summary = run.summary()
    assert summary["recalibration"]["average"] == [3.0]
    assert not [text for text in summary["warnings"] if "recalibration map is far off" in text]
    assert any(text.startswith("north did not recalibrate") for text in summary["warnings"])
