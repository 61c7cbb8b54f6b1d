"""Federations in which sites train the last layer alone: what travels, what is refused, what comes out."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from flwr.app import Array, ArrayRecord
from rich.console import Console

from clients.messages import RefusedError
from clients.model_inputs import model_inputs
from fl_dpbayes.config.aggregation import Product
from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize, GaussianPrior
from fl_dpbayes.config.site_file import Policy, SiteFile, Split
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.config.task import CNNModel, FrozenBody, MLPModel, Task
from fl_dpbayes.data.load import load_source
from fl_dpbayes.data.simulation import plan_sites
from fl_dpbayes.data.site import load_site
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.models.frozen_body import frozen_body
from fl_dpbayes.models.parameters import vector_to_arrays
from fl_dpbayes.posterior.predictive import predictive_probabilities
from fl_dpbayes.posterior.rules.combine import Released, combine_sites
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.posterior.store import load_posterior
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.run.audit.membership import attack_membership
from fl_dpbayes.run.stored_posterior import predict_records
from fl_dpbayes.samplers.minibatch import TrainingRecords
from fl_dpbayes.samplers.noise import NoiseScale
from tests import chains

FOUR = ["sites.held-out=", "sites.noisy-scanner=", "sites.rotated="]
MLP = "model={kind='mlp', hidden=[16], frozen_body={seed=2}}"
SCATTERED = "model={kind='mlp', hidden=[16], features={kind='scattering'}, frozen_body={seed=2}}"
CNN = "model={kind='cnn', channels=[4], hidden=12, frozen_body={seed=2}}"


def array_names(message) -> set[str]:
    return {name.rpartition("/")[2] for name in message.content["arrays"]}


@pytest.mark.slow
@pytest.mark.parametrize("model", [MLP, SCATTERED, CNN], ids=["mlp", "mlp on features", "cnn"])
def test_only_the_last_layer_travels_and_predictions_are_those_of_the_whole_network(
    federation, model: str, tmp_path: Path
) -> None:
    run = federation(model, *FOUR)
    seen: set[str] = set()

    def watch(request, reply):
        nonlocal seen
        if "arrays" in reply.content and request.metadata.message_type == "train":
            seen |= array_names(request) | array_names(reply)
        return reply

    run.grid.change = watch
    run.run()
    stored = load_posterior(run.folder / "posterior.safetensors")
    assert seen == set(stored.samples.arrays)
    assert len(seen) == 2
    records = load_source(BuiltIn(kind="digits"), "train")
    whole = build_model(stored.metadata.model.model_copy(update={"frozen_body": None}), records.task, seed=2)
    values = {name: array[None] for name, array in whole.state_dict().items()}
    everything = {
        name: stored.samples.arrays.get(name, np.repeat(np.asarray(value), len(stored.samples), 0))
        for name, value in values.items()
    }
    inputs = records.features
    if stored.metadata.model.features is not None:
        inputs = feature_map(stored.metadata.model.features, (1, 8, 8))(inputs)
    expected = predictive_probabilities(whole, everything, stored.samples.weights, inputs)
    np.savez(tmp_path / "digits.npz", features=records.features)
    predict_records(run.folder, tmp_path / "digits.npz", tmp_path / "predictions.csv", Console(quiet=True))
    table = pandas.read_csv(tmp_path / "predictions.csv")
    found = table[[f"probability_{number}" for number in range(10)]].to_numpy()
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_site_that_sends_a_body_is_rejected(federation) -> None:
    run = federation(MLP, *FOUR)

    def change(request, reply):
        if request.metadata.message_type == "train" and run.site_of(request) == "east":
            moved = {name: array.numpy() for name, array in reply.content["arrays"].items()}
            moved["last/parameters/1.weight"] = np.ones((16, 64), np.float32)
            reply.content["arrays"] = ArrayRecord({name: Array(array) for name, array in moved.items()})
        return reply

    run.grid.change = change
    run.run()
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    statuses = {(event["site"], event["status"]) for event in events if event["event"] == "site"}
    assert statuses == {("east", "REJECTED"), ("north", "OK"), ("south", "OK"), ("west", "OK")}


@pytest.mark.slow
def test_several_chains_on_one_body_are_aligned(federation) -> None:
    chains = ["training={rounds=1, steps_per_round=4, burn_in=2, thinning=2, chains=2}", "aggregation.rule=fedavg"]
    warned = {}
    for name, model in {"last": MLP, "all": "model={kind='mlp', hidden=[16]}"}.items():
        run = federation(model, *FOUR, *chains, name=name)
        run.run()
        warned[name] = any("start from different weights" in text for text in run.warnings())
    assert warned == {"last": False, "all": True}


@pytest.mark.slow
def test_full_covariances_need_samples_of_the_last_layer_only_and_its_file_is_a_later_runs_body(
    federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 2, 900)
    rows = generator.normal(size=(900, 2)) + np.where(labels == 1, 1, -1)[:, None] * [1.2, -0.6]
    patients = tmp_path / "patients.csv"
    pandas.DataFrame({"x": rows[:, 0], "y": rows[:, 1], "sick": labels}).to_csv(patients, index=False)
    table = [
        *FOUR,
        "partition={kind='iid'}",
        f"data.source={{kind='table', path='{patients}', label='sick', classes=2, features=['x','y']}}",
        "training={rounds=2, steps_per_round=150, burn_in=100, thinning=4}",
        "sampler.step_size.initial=0.5",
        "privacy.epsilon=20",
    ]
    first = federation("model={kind='mlp', hidden=[8]}", "aggregation.rule=fedavg", *table, name="first")
    first.run()
    folder = tmp_path / "data" / "backbones"
    folder.mkdir(parents=True)
    body = (first.folder / "posterior.safetensors").read_bytes()
    (folder / "body.safetensors").write_bytes(body)
    monkeypatch.setenv("FL_DPBAYES_DATA", str(folder.parent))
    # 18 of the 42 parameters are trained: product-full needs 22 samples of the 50 kept, and would need 46 for all.
    run = federation(
        f"model={{kind='mlp', hidden=[8], frozen_body={{weights='{hashlib.sha256(body).hexdigest()}'}}}}",
        "aggregation.rule=product-full",
        *table,
        name="second",
    )
    run.run()
    assert run.posterior().arrays["3.weight"].shape == (100, 2, 8)
    predict_records(run.folder, patients, tmp_path / "predictions.csv", Console(quiet=True))
    assert (pandas.read_csv(tmp_path / "predictions.csv")["predicted"] == labels).mean() > 0.85


CHAINS, STEP_SIZE, WIDTH = 1000, 0.2, 2
REGRESSION = MLPModel(hidden=(WIDTH,), frozen_body=FrozenBody(seed=3))
REGRESSION_TASK = Task(input_shape=(3,), classes=CHAINS)
SITES = {"a": (20, 0.5), "b": (30, 1.0), "c": (45, 2.0)}
SAMPLER = SGLD(step_size=ConstantStepSize(initial=STEP_SIZE), prior=GaussianPrior(scale=0.7))


def squared_error(outputs, targets):
    return (outputs - targets[:, None]).square().sum() / 2


def chain_states(inputs, targets, temperature, seed):
    """States (CHAINS, WIDTH + 1) of as many chains, one per output of the last layer, its bias last."""
    units, steps = len(inputs), 120
    noise = NoiseScale(1e6, units, units).langevin_noise(np.full(steps, STEP_SIZE), temperature)
    privacy = PrivacyPlan(
        epsilon=1.0, delta=1e-3, coupling="langevin", temperature=temperature, clip_norm=1e6, sampling_rate=1.0
    )
    plan = TrainingPlan(
        rounds=1, steps_per_round=steps, burn_in=0, thinning=steps, sampler=SAMPLER, prior_share=1 / len(SITES),
        chain_start="own_last", privacy=privacy,
    )  # fmt: skip
    head = build_model(REGRESSION, REGRESSION_TASK, seed=0)
    records = TrainingRecords(inputs, targets, np.arange(units), squared_error)
    streams = chains.streams_of(*([seed, number] for number in range(4)))
    result = chains.run(head, records, plan, noise, start=torch.zeros(CHAINS * (WIDTH + 1)), streams=streams)
    arrays = vector_to_arrays(torch.from_numpy(result.samples[0]), head)
    return np.concatenate([arrays["3.weight"], arrays["3.bias"][:, None]], axis=1)


def test_product_of_last_layers_lands_on_the_posterior_given_the_body():
    """Chain k of temperature T has the law N(m_k, T (P_k (I - a P_k / (2 n_k)))^-1), P_k = Z'Z + s I / scale^2."""
    generator = np.random.default_rng(11)
    samples, precision, weighted = {}, np.zeros((WIDTH + 1,) * 2), np.zeros(WIDTH + 1)
    for seed, (site, (units, temperature)) in enumerate(SITES.items()):
        records = generator.normal(size=(units, 3)).astype(np.float32)
        inputs = frozen_body(REGRESSION, REGRESSION.frozen_body, (3,))(records)
        targets = (inputs @ [0.9, -0.6] + 0.3 + generator.normal(size=units)).astype(np.float32)
        states = chain_states(inputs, targets, temperature, seed)
        samples[site] = PosteriorSamples({"w": states}, np.ones(CHAINS), np.full(CHAINS, temperature))
        design = np.column_stack([inputs, np.ones(units)]).astype(np.float64)
        energy = design.T @ design + np.eye(WIDTH + 1) / len(SITES) / SAMPLER.prior.scale**2
        law = energy @ (np.eye(WIDTH + 1) - STEP_SIZE * energy / (2 * units))
        precision += law
        weighted += law @ np.linalg.solve(energy, design.T @ targets)
    released = Released(samples, dict.fromkeys(SITES, 1 / 3), SAMPLER, len(SITES), np.random.default_rng(0))
    aggregate = combine_sites(Product(rule="product-full", draws=10_000), released)
    draws = aggregate.samples.arrays["w"].astype(np.float64)
    whitened = (draws - np.linalg.solve(precision, weighted)) @ np.linalg.cholesky(precision)
    # The chains' own number bounds what the product can know.
    error = 1 / np.sqrt(CHAINS)
    assert np.abs(whitened.mean(axis=0)).max() < 4 * error
    assert np.abs(np.cov(whitened.T) - np.eye(WIDTH + 1)).max() < 4 * np.sqrt(2) * error


@pytest.fixture
def site_file(tmp_path: Path) -> SiteFile:
    return SiteFile(
        name="north", role="train", source=BuiltIn(kind="digits"), units=1400,
        split=Split(test_fraction=0.2, key="0" * 32), policy=Policy(max_run_epsilon=1.0, max_parameters=2000),
        cache_folder=tmp_path / "cache", device="cpu",
    )  # fmt: skip


def test_site_computes_a_body_once_and_keeps_others_apart(site_file, monkeypatch) -> None:
    part = load_site(site_file).train
    model = MLPModel(hidden=(20,), frozen_body=FrozenBody(seed=1))
    found = model_inputs(site_file, model, part).features
    assert found.shape == (len(part.labels), 20)
    other = MLPModel(hidden=(20,), frozen_body=FrozenBody(seed=2))
    assert not np.array_equal(found, model_inputs(site_file, other, part).features)
    monkeypatch.setattr("clients.model_inputs.frozen_body", lambda *_, **__: pytest.fail("computed again"))
    np.testing.assert_array_equal(found, model_inputs(site_file, model, part).features)


@pytest.mark.parametrize(
    ("model", "refusal"),
    [
        (MLPModel(hidden=(40,)), Refusal(code=RefusalCode.POLICY_DENIED, field="model.frozen_body")),
        (MLPModel(hidden=(8192,) * 8), Refusal(code=RefusalCode.POLICY_DENIED, field="model.frozen_body")),
        (CNNModel(channels=(4, 4, 4, 4)), Refusal(code=RefusalCode.BAD_REQUEST, field="model")),
    ],
)
def test_site_refuses_a_body_that_is_too_large_or_does_not_fit(site_file, model, refusal) -> None:
    frozen = model.model_copy(update={"frozen_body": FrozenBody()})
    with pytest.raises(RefusedError) as refused:
        model_inputs(site_file, frozen, load_site(site_file).train)
    assert refused.value.refusal == refusal


def test_membership_attack_predicts_on_what_the_last_layer_reads(federation, tmp_path: Path) -> None:
    run = federation(MLP, *FOUR)
    score = attack_membership(run.scenario, plan_sites(run.scenario, None), tmp_path / "attack", lambda: None)
    assert 0 < score.area < 1
