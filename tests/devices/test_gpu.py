"""A real GPU computes what the host does: chains, sums, predictions, noise, a federation; one unit moves a sum by C.

What a site sets for a GPU is set here too: full float32 and algorithms that torch calls
deterministic.
"""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import nn
from torch.nn import functional

from clients.own_site import compute_device
from fl_dpbayes.config.plan import FLAT, PrivacyPlan
from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, ScatteringFeatures, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.models.gaussian import chacha20, normal_vectors
from fl_dpbayes.models.products import computing
from fl_dpbayes.models.rows import (
    RowsDependError,
    drawn_modules,
    noted_shapes,
    rows_stand_alone,
)
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.samplers.gradients import book_keeping, vmap
from fl_dpbayes.samplers.gradients.contribution import row_norms
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from fl_dpbayes.samplers.gradients.loss import summed_cross_entropy
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords
from tests.asking import ROWS, evaluate, refusal_of
from tests.chains import plan_of, run, streams_of
from tests.devices.test_one_device import (
    GEOMETRY,
    MODULES,
    RULES,
    SAMPLERS,
    Words,
    convolution,
    dense,
    plain_convolution,
    records,
    stepped,
)
from tests.samplers.gradients import one_by_one

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # Attention in one kernel, under `vmap`.
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]

IMAGE = (1, 12, 12)
# Of float32 sums whose order differs, through a whole network.
TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def gpu() -> Iterator[torch.device]:
    # What was allocated can be asked of a device that was started alone.
    torch.cuda.init()
    yield compute_device(SimpleNamespace(device="cuda"))
    torch.use_deterministic_algorithms(False)
    torch.cuda.set_sync_debug_mode("default")


class Block(nn.Module):
    """A transformer block over 6 tokens of width 16."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.mix, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.between, self.wide, self.narrow = (
            nn.LayerNorm(16),
            nn.Linear(16, 32),
            nn.Linear(32, 16),
        )
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mixed = self.mix(self.before(tokens)).unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        tokens = tokens + self.out(self.attended(*mixed).transpose(1, 2).flatten(2))
        tokens = tokens + self.narrow(functional.gelu(self.wide(self.between(tokens))))
        return self.head(tokens.mean(dim=1))

    def attended(self, query, key, value) -> torch.Tensor:
        return (query @ key.mT / 8**0.5).softmax(dim=3) @ value


class FusedBlock(Block):
    """The same with attention in one kernel."""

    def attended(self, query, key, value) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value)


class Called(nn.Module):
    """Weights that are used outside of their layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(40, 8), nn.Linear(8, 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(features, self.first.weight, self.first.bias).relu()
        return functional.linear(hidden, self.last.weight, self.last.bias)


def group_norm_cnn() -> nn.Module:
    first = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.GroupNorm(4, 8), nn.ReLU()
    return nn.Sequential(*first, *second, nn.AvgPool2d(3), nn.Flatten(), nn.Linear(32, 2))


def odd_maps() -> nn.Module:
    """Normalised maps of 225 entries: their rows start where no vector of a GPU does."""
    first = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU()
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(900, 2))


def resnet() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=2, norm_layer=lambda width: nn.GroupNorm(32, width))


def shipped(model, shape):
    return lambda: build_model(model, Task(input_shape=shape, classes=2), seed=0)


MODELS = {
    "logistic": (shipped(LogisticModel(), (300,)), (300,)),
    "logistic of 13": (shipped(LogisticModel(), (13,)), (13,)),
    "mlp": (shipped(MLPModel(hidden=(64,)), (30,)), (30,)),
    "wide mlp": (shipped(MLPModel(hidden=(257, 5)), (784,)), (784,)),
    "cnn": (shipped(CNNModel(channels=(8, 16), hidden=8), IMAGE), IMAGE),
    "cnn 5x5": (shipped(CNNModel(channels=(4, 4), hidden=8, kernel_size=5), IMAGE), IMAGE),
    "group norm": (group_norm_cnn, IMAGE),
    "odd maps": (odd_maps, (1, 15, 15)),
    "transformer": (Block, (6, 16)),
    "fused attention": (FusedBlock, (6, 16)),
    "resnet-18": (resnet, (3, 32, 32)),
    "weights called": (Called, (40,)),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(50, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)),
        (50,),
    ),
    "slopes": (lambda: nn.Sequential(nn.Linear(20, 9), nn.PReLU(9), nn.Linear(9, 2)), (20,)),
}


def made_up(shape, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn((count, *shape), generator=generator)
    return features, torch.randint(2, (count,), generator=generator)


def assert_near(found, expected, clip_norm: float, count: int) -> None:
    scale = min(clip_norm * count, float(expected.norm()) + 1e-3)
    assert float((found.cpu() - expected.cpu()).norm()) <= TOLERANCE * scale


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("build", [dense, plain_convolution])
def test_a_chain_of_every_sampler_is_that_of_the_host(name: str, build) -> None:
    assert_alike(build, SAMPLERS[name])


@pytest.mark.parametrize("name", MODULES)
def test_a_chain_by_every_engine_is_that_of_the_host(name: str) -> None:
    assert_alike(MODULES[name], SAMPLERS["sgld"])


@pytest.mark.parametrize("build", [dense, Words])
@pytest.mark.parametrize(
    "settings", [{"pre_noise": 0.1}, {"units": 20}], ids=["pre-noise", "patients"]
)
def test_a_chain_of_materialised_gradients_is_that_of_the_host(build, settings: dict) -> None:
    assert_alike(build, SAMPLERS["sgld"], **settings)


def assert_alike(build, sampler, **settings) -> None:
    expected = stepped(build, sampler, "cpu", **settings)
    found = stepped(build, sampler, "cuda", **settings)
    np.testing.assert_allclose(found.samples, expected.samples, rtol=1e-3, atol=1e-4)
    again = stepped(build, sampler, "cuda", **settings)
    np.testing.assert_array_equal(again.samples, found.samples)


@pytest.mark.parametrize("name", MODELS)
def test_the_clipped_sum_is_that_of_single_records_on_the_host(name: str, gpu) -> None:
    build, shape = MODELS[name]
    module = next(iter(drawn_modules(build())))
    features, targets = made_up(shape, 21)
    # Some are clipped, and some are not.
    norms = [
        float(one_by_one.gradient_of(module, features[i : i + 1], targets[i : i + 1]).norm())
        for i in range(21)
    ]
    clip_norm = float(np.median(norms))
    expected = one_by_one.clipped_sum(module, features, targets, clip_norm)
    module = module.to(gpu)
    engines = {vmap, book_keeping if book_keeping.is_supported(module) else vmap}
    engines.discard(book_keeping if gradient_engine(module, shape).name == "vmap" else None)
    for engine in engines:
        found = engine.clipped_sum(
            module, features.to(gpu), targets.to(gpu), clip_norm=clip_norm, rows=32
        )
        assert (found.total.device.type, found.units) == ("cuda", 21)
        assert_near(found.total, expected, clip_norm, 21)
        assert 8 <= int(found.clipped) <= 12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "slopes"])
def test_every_clipping_rule_is_that_of_single_records_on_the_host(name: str, rule, gpu) -> None:
    build, shape = MODELS[name]
    module = next(iter(drawn_modules(build())))
    features, targets = made_up(shape, 21)
    expected = one_by_one.clipped_sum(module, features, targets, 1.0, RULES[rule])
    engine = gradient_engine(module.to(gpu), shape)
    found = engine.clipped_sum(
        module, features.to(gpu), targets.to(gpu), clip_norm=1.0, clipping=RULES[rule]
    )
    assert_near(found.total, expected, 1.0, 21)


@pytest.mark.parametrize("name", MODELS)
def test_one_more_unit_moves_the_sum_by_at_most_the_clip_norm(name: str, gpu) -> None:
    """Through what chains run, at sizes about the ends of passes, the newcomer first and last."""
    build, shape = MODELS[name]
    sizes = [1, 2, 15, 16, 17, 63, 64, 65]
    if np.prod(shape) < 1000:
        sizes += [255, 256, 257, 1023, 1024]
    features, targets = (each.numpy() for each in made_up(shape, max(sizes) + 1))
    privacy = PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=1.0, clip_norm=1.0)

    def clipped_sum(module: nn.Module, size: int, step: int) -> torch.Tensor:
        part = features[:size][::step].copy(), targets[:size][::step].copy()
        streams = streams_of(0, 3, 1, 2)
        some = TrainingRecords(*part, np.arange(size))
        return BatchGradient(module, some, privacy, max(sizes), streams)().total

    moves = []
    for drawn in drawn_modules(build()):
        module = drawn.to(gpu)
        for step in (1, -1):
            totals = {size: clipped_sum(module, size, step) for size in {*sizes, *after(sizes)}}
            moves += [float((totals[size + 1] - totals[size]).norm()) for size in sizes]
    assert 0.5 < max(moves) <= 1


def after(sizes: list[int]) -> list[int]:
    return [size + 1 for size in sizes]


@pytest.mark.parametrize("name", MODELS)
def test_a_row_stands_alone_whatever_is_beside_it(name: str, gpu) -> None:
    """More permutations and neighbours than the check of a process tries, at the shape that it chose."""
    build, shape = MODELS[name]
    features, targets = made_up(shape, 40)
    some = TrainingRecords(features.numpy(), targets.numpy(), np.arange(40))
    privacy = PrivacyPlan(epsilon=1.0, delta=1e-5, sampling_rate=0.5, clip_norm=1.0)
    with noted_shapes() as noted:
        BatchGradient(build().to(gpu), some, privacy, 512, streams_of(0, 1, 2, 3))
    chosen = next(each for each in noted if each.computation == "gradients")
    for number, drawn in enumerate(drawn_modules(build())):
        module = drawn.to(gpu)
        engine = gradient_engine(module, shape)

        def results(part, told, module=module, engine=engine):
            if engine.name == "vmap":
                return [vmap.per_example_gradients(module, part, told, summed_cross_entropy)]
            layers = book_keeping.per_layer_gradients(module, part, told, summed_cross_entropy)
            return [values for layer in layers for values in layer.rows]

        rows = [each.to(gpu) for each in made_up(shape, chosen.rows, number)]
        for seed in range(5):
            with computing(chosen.products):
                assert rows_stand_alone(results, *rows, np.random.default_rng(seed))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 3])
def test_predictions_are_those_of_the_host_and_each_record_s_own(name: str, count: int) -> None:
    build, shape = MODELS[name]
    module = next(iter(drawn_modules(build())))
    features = made_up(shape, 70)[0].numpy()
    samples = {
        name: np.stack([value.detach().numpy() * (1 + 0.1 * number) for number in range(count)])
        for name, value in module.named_parameters()
    }
    weights = np.arange(1.0, count + 1)
    expected = predict(module, samples, weights, features)
    found = predict(module, samples, weights, features, device="cuda")
    for part in ("probabilities", "total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), atol=2e-5)
    order = np.random.default_rng(0).permutation(70)
    for chosen in (order, order[:3], order[:1]):
        beside = predict(module, samples, weights, features[chosen], device="cuda")
        np.testing.assert_array_equal(beside.probabilities, found.probabilities[chosen])


def test_the_cipher_is_the_library_s_bit_for_bit(gpu) -> None:
    for key in (bytes(32), bytes([255] * 32), np.random.default_rng(1).bytes(32)):
        nonces = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]
        found = chacha20(key, torch.tensor(nonces, device=gpu), 131).cpu()
        for nonce, words in zip(nonces, found, strict=True):
            cipher = Cipher(algorithms.ChaCha20(key, bytes(8) + nonce.to_bytes(8, "little")), None)
            assert words.numpy().tobytes() == cipher.encryptor().update(bytes(131 * 64))


def test_noise_of_millions_of_numbers_is_that_of_the_host(gpu) -> None:
    size = 5_000_000
    expected = next(normal_vectors(np.random.default_rng(2), size, 1))
    found = next(normal_vectors(np.random.default_rng(2), size, 1, gpu)).cpu()
    assert float((found - expected).abs().max()) <= 2e-6


@pytest.mark.parametrize(
    ("features", "shape"), [(ScatteringFeatures(), (1, 16, 16)), (GEOMETRY, (2,))]
)
def test_features_are_those_of_the_host_and_each_record_s_own(features, shape) -> None:
    own = np.random.default_rng(0).random((9, *shape)).astype(np.float32)
    computed = feature_map(features, shape, device="cuda")
    found = computed(own)
    np.testing.assert_allclose(found, feature_map(features, shape)(own), atol=2e-5)
    np.testing.assert_array_equal(computed(own[3:5]), found[3:5])


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_site_answers_as_on_the_host(table_site, kind: str) -> None:
    answers = []
    for device in ("cpu", "cuda"):
        site = table_site(device)
        site.write(ROWS, device=device)
        reply = site.train() if kind == "train" else evaluate(site, weight=0.3)
        assert refusal_of(reply) is None
        answers.append({name: array.numpy() for name, array in reply.content["arrays"].items()})
    for name, expected in answers[0].items():
        np.testing.assert_allclose(answers[1][name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ['{kind="logistic"}', '{kind="cnn", channels=[4, 4], hidden=8}'])
def test_a_federation_leaves_the_posterior_and_the_predictions_of_the_host(
    federation, monkeypatch, model: str
) -> None:
    # One scenario, since a run's streams follow from its scenario too.
    present = torch.cuda.is_available
    features = made_up((1, 8, 8), 30)[0].numpy()
    posteriors, predicted = [], []
    for device in ("cpu", "cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.max_memory_allocated()
        monkeypatch.setattr(
            torch.cuda, "is_available", present if device == "cuda" else lambda: False
        )
        made = federation(f"model={model}", name=device).run()
        assert (torch.cuda.max_memory_allocated() > before) == (device == "cuda")
        assert "refused" not in str(made.statuses())
        posterior = made.posterior()
        posteriors.append(posterior)
        module = build_model(made.scenario.model, made.scenario.data.source.task, seed=0)
        predicted.append(
            predict(module, posterior.arrays, posterior.weights, features, device=device)
        )
    for name, expected in posteriors[0].arrays.items():
        np.testing.assert_allclose(posteriors[1].arrays[name], expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        predicted[1].probabilities, predicted[0].probabilities, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("width", [3, 127, 129, 147, 785, 1023, 9408])
def test_a_norm_does_not_depend_on_a_row_s_place(width: int, gpu) -> None:
    for rows in (16, 144):
        values = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(gpu)
        found, order = row_norms(values), torch.randperm(rows, device=gpu)
        assert torch.equal(row_norms(values[order]), found[order])


def test_an_operation_that_may_differ_when_it_runs_again_is_refused_by_name(gpu) -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )
    with pytest.raises(RowsDependError, match=r"adaptive_avg_pool2d.*: use another device"):
        run(module.to(gpu), records(), plan_of(SAMPLERS["sgld"]))


def test_records_that_are_extreme_contribute_nothing_not_finite(gpu) -> None:
    module = next(iter(drawn_modules(convolution()))).to(gpu)
    own = records()
    features = torch.from_numpy(own.features).to(gpu)
    features[0], features[1], features[2] = torch.nan, torch.inf, 1e30
    targets = torch.from_numpy(own.targets).to(gpu)
    found = book_keeping.clipped_sum(module, features, targets, clip_norm=1.0, clipping=FLAT)
    assert bool(found.total.isfinite().all())
    alone = book_keeping.clipped_sum(module, features[3:], targets[3:], clip_norm=1.0)
    assert float((found.total - alone.total).norm()) <= 1
    assert_near(
        book_keeping.clipped_sum(module, features[:2], targets[:2], clip_norm=1.0).total,
        torch.zeros(len(found.total)),
        1.0,
        2,
    )


def test_a_chain_copies_to_the_host_its_samples_alone(gpu) -> None:
    """No step of a convolution or of materialised gradients waits for the GPU either."""
    modes = {0: "error", 5: "default"}
    for build, privacy in ((plain_convolution, {}), (dense, {"pre_noise": 0.1})):
        plan = plan_of(SAMPLERS["sgld"], {"clip_norm": 1.0} | privacy, steps_per_round=8)
        run(
            build().to(gpu),
            records(),
            plan,
            on_step=lambda step, *_: (
                torch.cuda.set_sync_debug_mode(modes[step]) if step in modes else None
            ),
        )
