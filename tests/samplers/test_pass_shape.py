"""Every pass has one public number of rows, padding counts for nothing, rounding is below eta."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.config.plan import PrivacyPlan
from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.kept import Kept
from fl_dpbayes.models import rows as row_check
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.dropout import DropoutModule
from fl_dpbayes.models.parameters import to_vector, vector_loader
from fl_dpbayes.models.products import computing
from fl_dpbayes.models.rows import padded
from fl_dpbayes.models.variational import VariationalModule
from fl_dpbayes.samplers import minibatch
from fl_dpbayes.samplers.gradients import (
    book_keeping,
    dense_chain,
    layer_gradients,
    vmap,
)
from fl_dpbayes.samplers.gradients.loss import mean_over_draws, summed_cross_entropy
from fl_dpbayes.samplers.gradients.pass_shape import (
    Workload,
    checked_gradient_shape,
    fitted_rows,
    rounding_eta,
    wanted_rows,
)
from fl_dpbayes.samplers.gradients.stochastic import resampled
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords
from tests.chains import streams_of
from tests.models.test_products import Planted
from tests.samplers.gradients import one_by_one

SHAPE = (1, 8, 8)


def drawn(model, seed=0):
    module = build_model(model, Task(input_shape=SHAPE, classes=3), seed=0)
    vector_loader(module)(
        torch.randn(len(to_vector(module)), generator=torch.Generator().manual_seed(seed))
    )
    return module


def normalised():
    layers = (
        nn.Conv2d(1, 4, 3, stride=2),
        nn.GroupNorm(2, 4),
        nn.Flatten(2),
        nn.Linear(9, 6),
        nn.LayerNorm(6),
    )
    layers = *layers, nn.ReLU()
    return one_by_one.randomise(
        nn.Sequential(*layers, nn.Conv1d(4, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    )


def words():
    layers = (
        nn.Flatten(),
        one_by_one.Whole(),
        nn.Embedding(5, 4),
        nn.Linear(4, 30),
        nn.Tanh(),
        nn.Flatten(),
    )
    return one_by_one.randomise(nn.Sequential(*layers, nn.Linear(64 * 30, 3)))


class Scaled(nn.Module):
    """A parameter of its own and no layer: every gradient is mapped over records."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.layer = nn.Linear(64, 3)

    def forward(self, images):
        return self.layer(images.flatten(1) * self.weight)


def gradient_of(module, count, *, each=1, units=90, loss=summed_cross_entropy, pre_noise=0.0):
    generator = np.random.default_rng(0)
    features = generator.standard_normal((count * each, *SHAPE)).astype(np.float32)
    features.flags.writeable = False
    labels = generator.integers(0, 3, count * each)
    records = TrainingRecords(features, labels, np.repeat(np.arange(count), each), loss)
    privacy = PrivacyPlan(
        epsilon=1.0, delta=1e-5, sampling_rate=1.0, clip_norm=0.5, pre_noise=pre_noise
    )
    return BatchGradient(module, records, privacy, units, streams_of(1, 4, 2, 3))


# What trains, its settings, and how many rows a pass shall have at 90 declared units.
ENGINES = {
    "logistic": (lambda: drawn(LogisticModel()), {}, 128),
    "mlp": (lambda: drawn(MLPModel(hidden=(5,))), {}, 128),
    "cnn": (lambda: drawn(CNNModel(channels=(2, 3), hidden=4)), {}, 112),
    "normalised": (normalised, {}, 112),
    "words": (words, {}, 128),
    "vmap": (Scaled, {}, 112),
    "patients": (lambda: drawn(MLPModel(hidden=(5,))), {"each": 3}, 112),
    "pre-noise": (lambda: drawn(MLPModel(hidden=(5,))), {"pre_noise": 0.1}, 112),
    "masks": (lambda: DropoutModule(drawn(MLPModel(hidden=(5,))), 0.3), {}, 128),
    "weight draws": (
        lambda: VariationalModule(drawn(MLPModel(hidden=(5,))), 2),
        {"loss": mean_over_draws(summed_cross_entropy)},
        16,
    ),
}


def chosen_of(wanted):
    """How many rows a pass may have where so many are wanted."""
    return {wanted, 2 * wanted, 4 * wanted, 1}


def counted(original, seen):
    def watched(model, features, *arguments, **keywords):
        seen.append(len(features))
        return original(model, features, *arguments, **keywords)

    return watched


@pytest.fixture
def passes(monkeypatch):
    """Numbers of rows of all passes over records."""
    seen = []
    owners = (
        (book_keeping, "layer_passes"),
        (book_keeping, "drawn_gradients"),
        (vmap, "per_example_blocks"),
        (dense_chain.DenseChain, "gradients"),
    )
    for owner, name in owners:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name), seen))
    return seen


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("count", [1, 15, 16, 91, 200])
def test_every_pass_has_the_public_number_of_rows(passes, name, count) -> None:
    build, settings, rows = ENGINES[name]
    gradient = gradient_of(build(), count, **settings)
    del passes[:]
    found = gradient()
    assert found.units == count
    assert gradient.passes.wanted == rows
    # Where rows depend on each other here, of another public number.
    assert gradient.passes.rows in chosen_of(rows)
    assert set(passes) == {gradient.passes.rows}
    assert 0 < float(found.total.norm()) <= 0.5 * count


@pytest.mark.parametrize("bias", [True, False])
def test_what_is_known_of_records_beforehand_changes_no_bit(bias) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias), nn.ReLU(), nn.Linear(5, 3))
    gradient = gradient_of(module, 200)
    features = gradient._features
    labels = gradient._targets
    rows = gradient.passes.rows
    with computing(gradient.passes.products):
        expected = book_keeping.clipped_sum(
            module, features, labels, clip_norm=gradient._clip_norm, rows=rows
        )
    assert torch.equal(gradient().total, expected.total)
    gradient._input_lengths *= 1.001  # of every record: one that is not clipped would not show it
    assert not torch.equal(gradient().total, expected.total)


def layers_of(name, part, labels):
    build, settings, _ = ENGINES[name]
    if name == "weight draws":
        return book_keeping.per_layer_gradients(
            resampled(build(), part, np.random.default_rng(0))[0], part, labels, **settings
        )
    return book_keeping.per_layer_gradients(build(), part, labels, summed_cross_entropy)


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", "normalised", "words", "weight draws"])
@pytest.mark.parametrize("wanted", [64, 112])
def test_a_record_has_the_same_bits_at_every_place_beside_every_neighbour(name, wanted) -> None:
    build, settings, _ = ENGINES[name]
    loss = settings.get("loss", summed_cross_entropy)
    workload = Workload(build(), "book_keeping", SHAPE, torch.int64, loss)
    shape = checked_gradient_shape(workload, wanted)
    rows = shape.rows
    assert rows in chosen_of(wanted)
    features = torch.randn((rows, *SHAPE), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(rows) % 3
    results = {}
    for count in {1, min(15, rows), min(16, rows), rows}:
        for place in {0, count // 2, count - 1}:
            mine = torch.arange(count)
            mine[place] = 0
            part, part_labels, _ = padded(rows, features[mine], labels[mine])
            part[[other for other in range(count) if other != place][: count // 3]] = float("nan")
            with computing(shape.products):
                layers = layers_of(name, part, part_labels)
            results[count, place] = [values[place] for layer in layers for values in layer.rows]
    alone = results[1, 0]
    assert all(
        torch.equal(*pair) for found in results.values() for pair in zip(found, alone, strict=True)
    )


class UnitLength(nn.Module):
    """Divides by a row's length, whose gradient is NaN at a row of zeros."""

    def forward(self, features):
        return features / features.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("engine", [book_keeping, vmap])
def test_padding_with_gradients_that_are_nan_contributes_nothing_and_is_not_counted(engine) -> None:
    module = nn.Sequential(nn.Linear(4, 5, bias=False), UnitLength(), nn.Linear(5, 3))
    features = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(7) % 3
    loss = torch.nn.functional.cross_entropy(module(torch.zeros(1, 4)), labels[:1])
    assert not torch.autograd.grad(loss, module[0].weight)[0].isfinite().all()
    found = engine.clipped_sum(module, features, labels, clip_norm=0.3)
    assert found.total.isfinite().all()
    assert found.units == 7
    without = engine.clipped_sum(module, features, labels, clip_norm=0.3, rows=7)
    torch.testing.assert_close(found.total, without.total, rtol=1e-5, atol=1e-7)
    assert found.clipped == without.clipped > 0


def test_rows_follow_from_declared_numbers_alone() -> None:
    module = drawn(MLPModel(hidden=(5,)))
    for count in (1, 80, 99):
        assert gradient_of(module, count).passes.wanted == 128
    assert [wanted_rows(module, "book_keeping", size) for size in (0.5, 30, 60, 900, 1e6)] == [
        64,
        64,
        96,
        992,
        1280,
    ]
    wide = nn.Linear(2**20, 1)
    assert wanted_rows(wide, "vmap", 500) == 1
    mapped = nn.Sequential(nn.Conv1d(64, 512, 9), nn.Flatten(), nn.Linear(512 * 24, 3))
    workload = Workload(mapped, "book_keeping", (64, 32), torch.int64, summed_cross_entropy)
    assert [fitted_rows(workload, rows) for rows in (64, 1088)] == [64, 128]


@pytest.mark.parametrize(
    "first", [[], [nn.Conv2d(1, 16, 7)]], ids=["dense", "positions that cancel"]
)
def test_rounding_of_a_sum_is_far_below_eta_and_eta_is_tiny(first) -> None:
    """The sum over records beside the sum of their contributions in extended precision."""
    module = nn.Sequential(*first, nn.Flatten(), nn.Linear(64, 3))
    features = torch.randn((300, *SHAPE), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(300) % 3
    found = (
        book_keeping.clipped_sum(module, features, labels, clip_norm=0.5)
        .total.numpy()
        .astype(np.longdouble)
    )
    exact = np.zeros(len(found), np.longdouble)
    for record, label in zip(features, labels, strict=True):
        exact += book_keeping.clipped_sum(
            module, record[None], label[None], clip_norm=0.5
        ).total.numpy()
    workload = Workload(module, "book_keeping", SHAPE, torch.int64, summed_cross_entropy)
    eta = rounding_eta(workload, rows=64, units=300)
    assert float(np.linalg.norm((found - exact).astype(np.float64))) <= eta * 0.5 / 100
    assert eta <= 2e-5


def test_units_too_many_for_the_rounding_are_refused() -> None:
    module = nn.Sequential(nn.Conv2d(1, 16, 7), nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(
        UserError, match=r"20000000 units by .* of the clip norm, allowed is 0\.001"
    ):
        gradient_of(module, 5, units=10_000_000)


class Leaky(nn.Module):
    """Leaves finite rows alone; one row that is not finite spoils all."""

    def forward(self, features):
        return features + 0 * features.sum()


def forget(monkeypatch):
    monkeypatch.setattr(row_check, "_known", {})
    monkeypatch.setattr(minibatch, "KEPT", Kept())


def test_model_whose_rows_mix_is_computed_apart_in_passes_of_many(monkeypatch) -> None:
    forget(monkeypatch)
    mixing = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), Leaky(), nn.Linear(5, 3))
    mixed = gradient_of(mixing, 5)
    assert mixed().units == 5
    # Under vmap nothing is left that could mix: it has as many rows as any other, if this processor
    # allows them.
    assert mixed.passes.wanted == 128
    assert mixed.passes.rows in chosen_of(128)


def test_model_whose_rows_depend_in_every_product_is_computed_row_by_row(
    caplog, monkeypatch
) -> None:
    forget(monkeypatch)
    with Planted("batches"), caplog.at_level(logging.WARNING, logger="fl_dpbayes.site"):
        gradient = gradient_of(drawn(MLPModel(hidden=(5,))), 5)
    assert "one by one" in caplog.text
    assert gradient.passes.rows == 1
    assert gradient.passes.one_by_one
    assert gradient().units == 5


@pytest.mark.parametrize(
    ("name", "holder", "function", "place"),
    [
        ("mlp", dense_chain.DenseChain, "gradients", 1),
        ("normalised", layer_gradients, "_normalisation", 2),
        ("normalised", book_keeping, "mapped_gradients", 2),
        ("words", layer_gradients, "_embedding", 2),
        ("words", layer_gradients, "_gram_norm", 1),
        ("cnn", layer_gradients, "_patches", 1),
    ],
)
def test_self_check_runs_on_the_path_that_trains(
    monkeypatch, name, holder, function, place
) -> None:
    """On each, the first row is given a little of the last."""
    original = getattr(holder, function)

    def leaking(*arguments, **keywords):
        leaky = arguments[place].clone()
        leaky[0] += leaky[-1] * 1e-3 if len(leaky) > 1 else 0
        return original(*arguments[:place], leaky, *arguments[place + 1 :], **keywords)

    if gradient_of(ENGINES[name][0](), 5).passes.rows == 1:
        pytest.skip("rows depend on each other here without a fault")
    forget(monkeypatch)
    monkeypatch.setattr(holder, function, leaking)
    assert gradient_of(ENGINES[name][0](), 5).passes.rows == 1
