"""The comparison of aggregation rules: shared chains, one cell's rows, hospitals dealt as a simulation deals them."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt
import pytest

from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.models.priors import Cavity
from fl_dpbayes.posterior.rules.predbayes import between, product_and_mixture
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.protocol.arrays import Arrays
from fl_dpbayes.report.numbers import UNDEFINED
from fl_dpbayes.run.reproduce import aggregation as experiment
from fl_dpbayes.run.reproduce import aggregation_chains as chains
from fl_dpbayes.run.reproduce import aggregation_predictors as predictors
from fl_dpbayes.run.reproduce.aggregation_distillation import DistillationSettings
from fl_dpbayes.run.reproduce.aggregation_figures import aggregation_figures
from fl_dpbayes.run.reproduce.aggregation_further import FurtherSettings, further_predictors
from fl_dpbayes.run.reproduce.aggregation_pvi import PVISettings, refined_posterior
from fl_dpbayes.run.reproduce.aggregation_settings import DIRICHLET, PNEUMONIA, scenario_of
from fl_dpbayes.run.reproduce.aggregation_sites import Hospitals, hospitals
from fl_dpbayes.run.reproduce.cell_file import cell_path
from fl_dpbayes.run.reproduce.closer_recalibration_sites import Labelled
from fl_dpbayes.run.reproduce.experiment import CellResult, StoredRow
from fl_dpbayes.run.reproduce.summarise import summarise
from fl_dpbayes.run.reproduce.table import markdown_table

NEEDS_DATA = pytest.mark.skipif("FL_DPBAYES_DATA" not in os.environ, reason="FL_DPBAYES_DATA names no data folder")
BUDGET = chains.Budget(epsilon=2.0, delta=1e-4)
SETTINGS = chains.ChainSettings(step_size=1.0, clip_norm=1.0)
SITES = ("north", "south", "west")
FURTHER = FurtherSettings(
    (predictors.PVI, predictors.DISTILLED_NOISE),
    PVISettings(step_size=1.0, clip_norm=1.0, damping=1 / 3),
    SETTINGS,
    DistillationSettings(inputs=500, iterations=200),
)


def labelled(count: int, seed: int, classes: int = 3) -> Labelled:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    features = generator.normal(size=(count, 5)) + 2 * np.eye(5)[labels]
    return Labelled(features.astype(np.float32), labels)


def synthetic(sizes: Mapping[str, int] = dict.fromkeys(SITES, 80)) -> Hospitals:
    names = sorted(sizes)
    test = labelled(60 * len(names) + 120, 99)
    owners = [name for name in names for _ in range(60)] + [""] * 120
    roles = ["train"] * 60 * len(names) + ["held_out"] * 60 + ["shifted"] * 60
    return Hospitals(
        Task(input_shape=(5,), classes=3),
        LogisticModel(kind="logistic"),
        {name: labelled(sizes[name], seed) for seed, name in enumerate(names)},
        test,
        np.array(owners),
        np.array(roles),
        0.0,
    )


@pytest.fixture(scope="module")
def found() -> dict[str, predictors.Predictor]:
    chosen = dict.fromkeys(predictors.SHARING, SETTINGS)
    return {one.method: one for one in predictors.predictors(synthetic(), chosen, BUDGET, seed=1)}


def test_every_method_on_shared_chains_predicts_every_test_record(found: dict[str, predictors.Predictor]) -> None:
    assert tuple(found) == predictors.SHARING
    for method, one in found.items():
        assert one.probabilities.shape == (3 if method == predictors.ALONE else 1, 300, 3)
        np.testing.assert_allclose(one.probabilities.sum(axis=2), 1, atol=1e-9)
        assert pld_epsilon(one.history, BUDGET.delta) <= BUDGET.epsilon


def test_methods_with_equal_settings_share_their_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    original = predictors.independent_chains

    def counted(sites: Hospitals, *arguments: object) -> chains.Chains:
        shares.append(arguments[2])
        return original(sites, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(predictors, "independent_chains", counted)
    methods = [*predictors.RULES, predictors.HALFWAY, predictors.PREDICTIONS, predictors.ALONE]
    list(predictors.predictors(synthetic(), dict.fromkeys(methods, SETTINGS), BUDGET, seed=1))
    assert sorted(shares) == [1 / 3, 1.0]


def test_mixture_and_predbayes_follow_from_each_hospital_alone(found: dict[str, predictors.Predictor]) -> None:
    alone = found[predictors.ALONE].probabilities
    # Three sites of equal size: the mixture is the plain mean.
    np.testing.assert_allclose(found["mixture"].probabilities[0], alone.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(found[predictors.PREDICTIONS].probabilities[0], between(product_and_mixture(alone), 1.0))
    assert np.abs(found[predictors.PREDICTIONS].probabilities[0] - alone.mean(axis=0)).max() > 0.01


def test_one_site_makes_its_own_chain_the_averaged_one_and_the_central_one() -> None:
    alone = synthetic({"north": 80})
    own = chains.independent_chains(alone, SETTINGS, BUDGET, 1.0, seed=3)
    averaged = chains.averaged_chain(alone, SETTINGS, BUDGET, chains.STEPS, seed=3)
    assert_equal_samples(own.samples["north"], averaged.samples["averaged chain"])
    # 6 rounds of 10 steps keep the last state of each round after the burn-in.
    few = chains.averaged_chain(alone, SETTINGS, BUDGET, 6, seed=3).samples["averaged chain"]
    assert_equal_samples(own.samples["north"], few, every=5)
    central = chains.central_chain(alone, SETTINGS, BUDGET, seed=3)
    assert central.history == own.history


def test_averaged_chain_starts_each_round_at_the_weighted_average() -> None:
    exact = chains.ChainSettings(step_size=0.5, clip_norm=8.0)
    sites = synthetic({"north": 60, "south": 180})
    budget = chains.Budget(epsilon=1e6, delta=1e-4)
    averaged = chains.averaged_chain(sites, exact, budget, chains.STEPS, seed=1).samples["averaged chain"]
    central = chains.central_chain(sites, exact, budget, seed=1).samples["central"]
    # Without noise to speak of, averaging every step by n_k is gradient descent on all records.
    np.testing.assert_allclose(averaged.arrays["1.weight"], central.arrays["1.weight"], atol=0.01)


def test_fedpa_moves_away_from_the_average_of_states() -> None:
    sites = synthetic()
    point = chains.fedpa_point(sites, SETTINGS, BUDGET, 10, seed=1).samples["server state"]
    assert len(point) == 1
    assert point.temperatures[0] == 0
    averaged = chains.averaged_chain(sites, SETTINGS, BUDGET, 10, seed=1).samples["averaged chain"]
    assert np.abs(point.arrays["1.weight"] - averaged.arrays["1.weight"][-1]).max() > 1e-3


def test_each_hospital_alone_is_measured_at_its_own_records_and_by_the_mean_elsewhere() -> None:
    sites = synthetic()
    labels, owners = sites.test.labels, sites.owners
    each = np.stack([one_hot(labels)] * 3)
    # South errs at its own records, north at the sites that did not train.
    each[1, owners == "south"] = wrong(labels[owners == "south"])
    each[0, owners == ""] = wrong(labels[owners == ""])
    values = experiment.measured(sites, predictors.Predictor("alone", each, ()), seed=0)
    assert values["training_accuracy"] == pytest.approx(2 / 3)
    assert values["held-out_accuracy"] == values["shifted_accuracy"] == pytest.approx(fmean([0, 1, 1]))


def test_cell_has_a_row_per_method_and_an_empty_one_for_full_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "hospitals", lambda *_: synthetic())
    first = experiment.aggregation_cells(0, False)[0]
    same = dict.fromkeys(predictors.SHARING, asdict(SETTINGS))
    cell = replace(first, settings={**first.settings, "chosen": same})
    measurement = experiment.measure_aggregation(cell, None)
    assert [row.method for row in measurement.rows] == [*predictors.SHARING, predictors.PRODUCTS]
    assert all(value is None for value in measurement.rows[-1].values.values())
    assert {metric.name for metric in experiment.EXPERIMENT.metrics} <= set(measurement.rows[0].values)
    stored = [StoredRow(row.method, row.setting, row.values, None) for row in measurement.rows]
    result = CellResult(cell, tuple(stored), 1, measurement.details, 1.0, {})
    figures = aggregation_figures([result])
    assert sorted(figures) == ["aggregation-ece-pneumoniamnist", "aggregation-nll-pneumoniamnist"]
    assert len(figures["aggregation-nll-pneumoniamnist"]().axes) == 2
    record = summarise(experiment.EXPERIMENT, [result], [], full=True, seeds=1)
    page = markdown_table(experiment.EXPERIMENT, record)
    assert "the paper's" not in page
    empty = next(line for line in page.splitlines() if line.startswith(f"| {predictors.PRODUCTS} |"))
    assert empty.endswith(" |" + f" {UNDEFINED} |" * 9)


def test_all_methods_have_settings_in_every_setting() -> None:
    strokes = predictors.DISTILLED_STROKES
    measured: dict[str, set[str]] = {}
    for cell in experiment.aggregation_cells(0, True):
        further = cell.settings.get("further", {}).get("methods", [])
        measured.setdefault(experiment.setting_of(cell.settings), set()).update(
            further, cell.settings.get("chosen", [])
        )
    assert len(measured) == 12
    for setting, methods in measured.items():
        # Radiographs are not distilled on pen strokes.
        assert methods == set(predictors.METHODS) - (set() if setting.startswith("MNIST") else {strokes})


def test_a_cell_keeps_its_file_when_methods_are_added() -> None:
    names = [cell_path(Path(), "aggregation", cell).name for cell in experiment.aggregation_cells(0, True)]
    assert len(set(names)) == 24
    # Hours of finished work lie in files of these names.
    assert "MNIST_IID_eps_2-0-24cc4a1578ae7083.json" in names
    assert "PneumoniaMNIST_Dirichlet_0.3_eps_8-0-28e8ba6b59857d93.json" in names


@pytest.fixture(scope="module")
def further() -> dict[str, predictors.Predictor]:
    return {one.method: one for one in further_predictors(synthetic(), FURTHER, BUDGET, seed=1)}


def test_further_methods_predict_every_test_record_within_the_budget(further: dict[str, predictors.Predictor]) -> None:
    assert tuple(further) == FURTHER.methods
    for one in further.values():
        assert one.probabilities.shape == (1, 300, 3)
        np.testing.assert_allclose(one.probabilities.sum(axis=2), 1, atol=1e-9)
        assert 0.9 * BUDGET.epsilon < pld_epsilon(one.history, BUDGET.delta) <= BUDGET.epsilon
        # All rounds together take as many steps as any other method's chain.
        assert sum(event.steps for event in one.history) == chains.STEPS


def test_distilled_network_follows_the_mixture_of_the_shared_chains(
    found: dict[str, predictors.Predictor], further: dict[str, predictors.Predictor]
) -> None:
    teacher, student = found["mixture"].probabilities[0], further[predictors.DISTILLED_NOISE].probabilities[0]
    assert np.abs(student - teacher).sum(axis=1).mean() / 2 < 0.05
    other = further[predictors.PVI].probabilities[0]
    assert np.abs(student - other).sum(axis=1).mean() > np.abs(student - teacher).sum(axis=1).mean()


def test_one_sites_cavity_is_the_prior_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    cavities = []
    original = chains.SiteChain.stretch

    def recorded(self: chains.SiteChain, first: int, steps: int, start: Arrays, cavity: Cavity) -> chains.Stretch:
        cavities.append((first, cavity))
        return original(self, first, steps, start, cavity)

    monkeypatch.setattr(chains.SiteChain, "stretch", recorded)
    refined_posterior(synthetic({"north": 80}), FURTHER.pvi, BUDGET, 50, seed=1)
    assert [first for first, _ in cavities] == list(range(0, 60, 6))
    for _, cavity in cavities:
        assert (cavity.mean == 0).all()
        np.testing.assert_allclose(cavity.precision, chains.PRIOR_SCALE**-2, rtol=1e-5)


def test_partitioned_inference_sees_every_site() -> None:
    sites = synthetic()
    blank = replace(sites, training={**sites.training, "west": labelled(80, 2, classes=1)})
    found = [
        refined_posterior(one, FURTHER.pvi, BUDGET, 50, seed=1).samples.arrays["1.bias"].mean(axis=0)
        for one in (sites, blank)
    ]
    assert found[1][0] > found[0][0]


def test_settings_of_further_methods_survive_a_cells_file() -> None:
    stored = json.loads(json.dumps(FURTHER.as_json()))
    assert FurtherSettings.from_json(stored) == FURTHER


def test_further_cell_has_rows_of_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "hospitals", lambda *_: synthetic())
    sharing, cell = experiment.aggregation_cells(0, False)[:2]
    cell = replace(cell, settings={**cell.settings, "further": FURTHER.as_json()})
    measurement = experiment.measure_aggregation(cell, None)
    assert [(row.method, row.setting) for row in measurement.rows] == [
        (method, sharing.label) for method in FURTHER.methods
    ]
    assert all(value is not None for row in measurement.rows for value in row.values.values())


@NEEDS_DATA
@pytest.mark.slow
def test_hospitals_hold_what_the_simulation_deals() -> None:
    found = hospitals(scenario_of(PNEUMONIA, DIRICHLET, 0), Path(os.environ["FL_DPBAYES_DATA"]))
    assert list(found.training) == ["hospital-1", "hospital-2", "hospital-3"]
    assert set(found.roles) == {"train", "held_out", "shifted"}
    assert found.rows("held_out").sum() == 524
    assert found.rows("shifted").sum() == 1624
    assert sum(len(site.labels) for site in found.training.values()) + found.rows("train").sum() == 4708 - 1000
    assert found.test.features.shape == (len(found.roles), 549)
    assert found.label_total_variation > 0.1


def assert_equal_samples(one: PosteriorSamples, other: PosteriorSamples, every: int = 1) -> None:
    assert len(one) // every == len(other)
    for name, array in one.arrays.items():
        np.testing.assert_allclose(other.arrays[name], array[every - 1 :: every], atol=1e-6)
    np.testing.assert_allclose(other.temperatures, one.temperatures[every - 1 :: every])


def one_hot(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.eye(3)[labels]


def wrong(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.eye(3)[(labels + 1) % 3]
