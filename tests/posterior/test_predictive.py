import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fl_dpbayes.config.task import CNNModel, LogisticModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import called, to_vector
from fl_dpbayes.models.rows import noted_shapes
from fl_dpbayes.posterior import predictive
from fl_dpbayes.posterior.predictive import predict

TASK = Task(input_shape=(2,), classes=2)
# One feature (2 ln 3 for the first record) and two opposite samples: probabilities 0.9 and 0.1.
FIRST = np.array([[[1, 0], [0, 0]], [[-1, 0], [0, 0]]], np.float32)
OPPOSITE = {"1.weight": FIRST, "1.bias": np.zeros((2, 2), np.float32)}
FEATURES = np.array([[2 * math.log(3), 0], [0, 5]], np.float32)


@pytest.fixture
def module():
    return build_model(LogisticModel(), TASK, seed=0)


def entropy(*probabilities):
    return -sum(p * math.log(p) for p in probabilities)


def test_average_and_entropies_by_hand(module):
    found = predict(module, OPPOSITE, np.array([3.0, 1.0]), FEATURES)
    # Probabilities are averaged, and not logits.
    np.testing.assert_allclose(
        found.probabilities, [[0.75 * 0.9 + 0.25 * 0.1, 0.3], [0.5, 0.5]], rtol=1e-6
    )
    np.testing.assert_allclose(found.aleatoric, [entropy(0.9, 0.1), math.log(2)], rtol=1e-6)
    np.testing.assert_allclose(found.total, [entropy(0.7, 0.3), math.log(2)], rtol=1e-6)
    np.testing.assert_allclose(found.epistemic, found.total - found.aleatoric, atol=1e-15)


def test_each_record_is_predicted_by_itself_whoever_is_with_it(module):
    features = np.random.default_rng(0).standard_normal((300, 2)).astype(np.float32)
    whole = predict(module, OPPOSITE, np.array([3.0, 1.0]), features)
    for rows in (slice(0, 1), slice(5, 21), slice(255, 300)):
        part = predict(module, OPPOSITE, np.array([3.0, 1.0]), features[rows])
        np.testing.assert_array_equal(part.probabilities, whole.probabilities[rows])
        np.testing.assert_array_equal(part.epistemic, whole.epistemic[rows])


@pytest.mark.parametrize(
    ("model", "rows"), [(LogisticModel(), 256), (CNNModel(channels=(2,), hidden=3), 64)]
)
@pytest.mark.parametrize("count", [0, 1, 15, 16, 300])
def test_every_pass_has_one_number_of_rows(monkeypatch, model, rows, count):
    module = build_model(model, Task(input_shape=(1, 4, 4), classes=3), seed=0)
    samples = {name: value.detach().numpy()[None] for name, value in module.named_parameters()}
    features = np.random.default_rng(0).random((count, 1, 4, 4), dtype=np.float32)
    with noted_shapes() as shapes:
        predict(module, samples, np.ones(1), features)
    (shape,) = shapes
    assert shape.wanted == rows
    # Trials on made-up records are not counted.
    monkeypatch.setattr(
        predictive, "_sample_pass", lambda **_: predictive._SamplePass(shape, samples=1)
    )
    seen = []

    def watched(module, values, rows):
        seen.append(len(rows))
        return called(module, values, rows)

    monkeypatch.setattr("fl_dpbayes.models.row_wise.called", watched)
    assert predict(module, samples, np.ones(1), features).probabilities.shape == (count, 3)
    assert set(seen) == {shape.rows}


@settings(deadline=None, derandomize=True, max_examples=40)
@given(samples=st.integers(1, 5), records=st.integers(0, 4), scale=st.sampled_from([0.1, 1.0, 1e4]))
def test_probabilities_sum_to_one_and_entropies_are_ordered_property(samples, records, scale):
    task = Task(input_shape=(1, 4, 4), classes=3)
    module = build_model(CNNModel(channels=(2,), hidden=3), task, seed=0)
    generator = np.random.default_rng(samples)
    named = ((name, (samples, *value.shape)) for name, value in module.named_parameters())
    arrays = {
        name: (scale * generator.standard_normal(shape)).astype(np.float32) for name, shape in named
    }
    features = generator.standard_normal((records, 1, 4, 4)).astype(np.float32)
    found = predict(module, arrays, generator.random(samples) + 0.1, features)
    assert found.probabilities.shape == (records, 3)
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-12)
    assert (found.epistemic >= 0).all()
    assert (found.total <= math.log(3) + 1e-12).all()


class Mapped(nn.Linear):
    def forward(self, features):
        return super().forward(features) * (2.0 if float(self.weight.sum()) > 0 else 1.0)


@pytest.mark.parametrize("name", ["cnn", "logistic", "cannot be mapped"])
def test_samples_that_share_a_pass_are_predicted_as_one_by_one(monkeypatch, name):
    generator = np.random.default_rng(1)
    model = CNNModel(channels=(2,), hidden=3) if name == "cnn" else LogisticModel()
    module = build_model(model, Task(input_shape=(1, 4, 4), classes=3), seed=0)
    module = nn.Sequential(nn.Flatten(), Mapped(16, 3)) if name == "cannot be mapped" else module
    named = module.named_parameters()
    samples = {
        key: generator.standard_normal((7, *value.shape)).astype(np.float32) for key, value in named
    }
    # The third sample overflows.
    next(iter(samples.values()))[2] *= 1e38
    features = generator.standard_normal((100, 1, 4, 4)).astype(np.float32)
    weights = generator.random(7)
    features[3, 0, 1, 1] = math.nan
    features[70, 0, 0, 0] = math.inf
    expected = predict(module, samples, weights, features)
    monkeypatch.setattr(predictive, "_samples_together", lambda *_: 3)
    found, part = (
        predict(module, samples, weights, features[rows]) for rows in (slice(100), slice(60, 90))
    )
    for field in ("probabilities", "aleatoric", "epistemic", "total"):
        np.testing.assert_allclose(
            getattr(found, field), getattr(expected, field), rtol=0, atol=1e-6
        )
        assert np.array_equal(getattr(part, field), getattr(found, field)[60:90])


def test_module_keeps_its_parameters(module):
    before = to_vector(module)
    predict(module, OPPOSITE, np.ones(2), FEATURES)
    assert torch.equal(before, to_vector(module))


@pytest.mark.parametrize(
    "weights", [[1.0], [1.0, -1.0], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]]
)
def test_bad_weights_are_refused(module, weights):
    with pytest.raises(ValueError, match="weights"):
        predict(module, OPPOSITE, np.array(weights), FEATURES)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_sample_that_is_not_finite_for_a_record_predicts_every_class_alike(module, bad):
    features = np.array([[1.0, 0.0], [0.0, bad]], np.float32)
    single = {name: array[:1] for name, array in OPPOSITE.items()}
    single["1.weight"] = np.array([[[1, 1], [0, 0]]], np.float32)
    found = predict(module, single, np.ones(1), features)
    np.testing.assert_allclose(
        found.probabilities, [[math.e / (1 + math.e), 1 / (1 + math.e)], [0.5, 0.5]], rtol=1e-6
    )
    assert found.total[1] == pytest.approx(math.log(2))


@pytest.mark.parametrize("together", [1, 2])
def test_record_that_the_module_fails_on_is_predicted_alike_and_the_others_as_before(
    monkeypatch, together
) -> None:
    class Level(torch.nn.Embedding):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return super().forward(features[:, 0].long().clamp(min=0))

    monkeypatch.setattr(predictive, "_samples_together", lambda *_: together)
    module = Level(5, 2)
    features = np.arange(4, dtype=np.float32)[:, None]
    samples = {"weight": np.random.default_rng(0).random((3, 5, 2), np.float32)}
    before = predict(module, samples, np.ones(3), features).probabilities
    features[1] = 7
    after = predict(module, samples, np.ones(3), features).probabilities
    assert np.array_equal(after[[0, 2, 3]], before[[0, 2, 3]])
    assert after[1].tolist() == [0.5, 0.5]
