"""On a pretended GPU no operator meets tensors of two devices.

Tried are steps, predictions, features, noise and the row check.


Nothing here runs on a GPU. Values are those of the host, so that results can be compared with the
host's own.
"""

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.plan import FLAT, AutomaticClipping, GlobalClipping, PerLayerClipping
from fl_dpbayes.config.sampler import (
    SGD,
    SGHMC,
    SGLD,
    Adam,
    BayesByBackprop,
    GaussianPrior,
    LaplacePrior,
    MCDropout,
)
from fl_dpbayes.config.task import ScatteringFeatures, StandardFeatures
from fl_dpbayes.models import on_device as on_devices
from fl_dpbayes.models import rows as passes
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.models.gaussian import normal_vectors, on_device
from fl_dpbayes.models.on_device import uploaded
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.samplers.local_trace import LocalTrace, log_likelihood_estimate
from fl_dpbayes.samplers.minibatch import TrainingRecords
from tests.asking import ROWS, evaluate, refusal_of
from tests.chains import plan_of, run
from tests.devices.pretended import CUDA, HOST, pretended

RECORDS = 40
WORDS = 5


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3))


def convolution() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3, padding=1, groups=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.AvgPool2d(2)
    return nn.Sequential(*layers, nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


def plain_convolution() -> nn.Module:
    layers = (
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 8, 1),
        nn.ReLU(),
    )
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 3))


def sequence() -> nn.Module:
    words = (
        nn.Flatten(2),
        nn.Unflatten(1, (1, 1)),
        nn.Flatten(1, 2),
        nn.Unflatten(2, (4, 4)),
        nn.Flatten(1, 2),
    )
    return nn.Sequential(
        *words, nn.LayerNorm(4), nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)
    )


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        numbers = features.flatten(1).nan_to_num(0, 0, 0).clamp(0, WORDS - 1).long()
        return self.last(self.embedding(numbers).mean(dim=1))


class Mapped(nn.Module):
    """A layer without a shortcut, beside one with it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.last = nn.Linear(16, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.last(features.flatten(1) * self.scale)


MODULES = {
    "dense": dense,
    "convolution": convolution,
    "plain convolution": plain_convolution,
    "sequence": sequence,
    "words": Words,
    "mapped": Mapped,
    "conv1d": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(1, 3, 5), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)
    ),
}
SAMPLERS = {
    "sgld": SGLD(step_size=0.1, prior=GaussianPrior(scale=1.0)),
    "laplace": SGLD(step_size=0.1, prior=LaplacePrior(scale=1.0)),
    "sgd": SGD(step_size=0.1, momentum=0.5),
    "adam": Adam(step_size=0.1),
    "sghmc": SGHMC(step_size=0.1, friction=0.5),
    "bbp": BayesByBackprop(step_size=0.1),
    "mc-dropout": MCDropout(step_size=0.1),
}
RULES = {
    "flat": FLAT,
    "global": GlobalClipping(bound=3.0),
    "automatic": AutomaticClipping(stability=0.1),
    "per-layer": PerLayerClipping(),
}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch) -> None:
    # What was found out on the host is not what is found out there.
    monkeypatch.setattr(passes, "_known", {})
    monkeypatch.setattr(on_devices, "_UPLOADED", on_devices.Kept(2**20))


def records(units: int = RECORDS) -> TrainingRecords:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((RECORDS, 1, 4, 4)).astype(np.float32)
    index = np.arange(RECORDS) * units // RECORDS
    return TrainingRecords(features, np.arange(RECORDS) % 3, index)


def stepped(build, sampler, device: str, units: int = RECORDS, **privacy):
    torch.manual_seed(3)
    module = build()
    plan = plan_of(sampler, privacy | {"clip_norm": 1.0}, steps_per_round=3)
    own = records(units)
    trace = LocalTrace(plan, log_likelihood_estimate(module, own, 10, np.random.default_rng(0)))
    return run(
        module.to(device),
        own,
        plan,
        units=units,
        on_step=trace if sampler.kind != "dp-bbp" else None,
    )


def assert_alike_on_both(build, sampler, **settings) -> None:
    expected = stepped(build, sampler, "cpu", **settings)
    with pretended() as log:
        found = stepped(build, sampler, "cuda", **settings)
        assert log.places
    # Noise differs by a rounding of sine and cosine.
    np.testing.assert_allclose(found.samples, expected.samples, rtol=1e-3, atol=1e-4)


# A step knows its parameters as one vector; draws and masks are made in every layer.
OF_LAYERS = ("bbp", "mc-dropout")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "build"),
    [*((name, dense) for name in SAMPLERS), *((name, plain_convolution) for name in OF_LAYERS)],
)
def test_a_step_of_every_sampler_stays_on_one_device(name: str, build) -> None:
    assert_alike_on_both(build, SAMPLERS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODULES if name != "dense"])
def test_a_step_of_every_engine_and_layer_stays_on_one_device(name: str) -> None:
    assert_alike_on_both(MODULES[name], SAMPLERS["sgld"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "settings"),
    [(dense, {"pre_noise": 0.1}), (Words, {"units": 20})],
    ids=["pre-noise", "patients"],
)
def test_gradients_that_are_materialised_stay_on_one_device(build, settings: dict) -> None:
    assert_alike_on_both(build, SAMPLERS["sgld"], **settings)


class Raises(nn.Module):
    """A module that raises an error on some records: its table of words ends at 60."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(60, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        values = features.flatten(1)[:, 0].nan_to_num(0, 0, 0).clamp(min=0)
        return self.table(torch.where(values > 1e6, 0, values).long())


def test_records_on_which_a_module_raises_are_left_out_on_one_device() -> None:
    features = records().features.copy()
    module = Raises()
    features[3] = 100.0
    samples = {name: value.detach().numpy()[None] for name, value in module.named_parameters()}
    expected = predict(module, samples, np.ones(1), features)
    with pretended():
        found = predict(module, samples, np.ones(1), features, device="cuda")
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("build", [dense, plain_convolution, sequence, Words])
@pytest.mark.parametrize("count", [1, 3])
def test_a_prediction_stays_on_one_device_and_asks_for_its_results_alone(build, count: int) -> None:
    torch.manual_seed(1)
    module = build()
    features = records().features
    features.flags.writeable = False
    samples = {
        name: np.stack([value.detach().numpy() * (1 + number) for number in range(count)])
        for name, value in module.named_parameters()
    }
    weights = np.arange(1.0, count + 1)
    expected = predict(module, samples, weights, features)
    with pretended() as log:
        predict(module, samples, weights, features, device="cuda")
        # The row check is over: what is asked for now is asked for at every prediction.
        log.moves.clear()
        log.waits.clear()
        found = predict(module, samples, weights, features, device="cuda")
        to_host = [size for way, size in log.moves if way == "to cpu"]
    assert sorted(to_host)[-2:] == [len(features), 3 * len(features)]
    assert sum(to_host) <= 5 * len(features)
    for name in ("probabilities", "total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-6)


def test_a_chain_waits_for_no_step_and_copies_its_samples_alone_to_the_host() -> None:
    stepped(dense, SAMPLERS["sgld"], "cpu")
    module = dense().to("cpu")
    own = records()
    with pretended() as log:
        module.to("cuda")
        plan = plan_of(SAMPLERS["sgld"], {"clip_norm": 1.0}, steps_per_round=3)
        run(module, own, plan)
        log.moves.clear()
        log.waits.clear()
        result = run(module, own, plan)
    to_host = [size for way, size in log.moves if way == "to cpu"]
    size = result.samples.shape[1]
    # Three samples and the last state.
    assert to_host == [size] * 4
    assert not log.waits


def test_noise_is_made_on_the_device_from_the_numbers_of_the_host() -> None:
    expected = next(normal_vectors(np.random.default_rng(2), 40_001, 1))
    with pretended() as log:
        found = next(normal_vectors(np.random.default_rng(2), 40_001, 1, torch.device("cuda")))
        assert found.device == CUDA
        assert on_device(bytes(32), torch.device("cuda"), firsts=[0], numbers=5).device == CUDA
        # Eight numbers of the key and four of the cipher, for the vector and for the five.
        assert [each for each in log.moves if each[1] > 12] == []
        found = found.cpu()
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-5)


def test_records_are_copied_to_the_device_once() -> None:
    features = records().features
    features.flags.writeable = False
    with pretended() as log:
        first = uploaded(features, torch.device("cuda"))
        assert uploaded(features, torch.device("cuda")) is first
        assert (first.device, uploaded(features, torch.device("cpu")).device) == (CUDA, HOST)
    assert len(log.moves) == 1


GEOMETRY = StandardFeatures(centers=(0.0, 1.0), scales=(1.0, 2.0), source="made up for this test")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "shape"), [(ScatteringFeatures(), (1, 16, 16)), (GEOMETRY, (2,))]
)
def test_features_are_computed_on_one_device(features, shape: tuple[int, ...]) -> None:
    own = np.random.default_rng(0).random((3, *shape)).astype(np.float32)
    expected = feature_map(features, shape)(own)
    with pretended():
        found = feature_map(features, shape, device="cuda")(own)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_what_a_site_answers_is_computed_on_one_device(table_site, monkeypatch, kind: str) -> None:
    # What a site sets for a GPU would stay set for other tests.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda wanted: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "pretended")
    answers = []
    for device in ("cpu", "cuda"):
        site = table_site(device)
        site.write(ROWS, device=device)
        with pretended() as log:
            reply = site.train() if kind == "train" else evaluate(site, weight=0.3)
        assert refusal_of(reply) is None
        assert bool(log.places) == (device == "cuda")
        answers.append({name: array.numpy() for name, array in reply.content["arrays"].items()})
    for name, expected in answers[0].items():
        np.testing.assert_allclose(answers[1][name], expected, rtol=1e-4, atol=1e-5)
