import numpy as np
import pytest
from scipy.special import softmax

from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector, vector_to_arrays
from fl_dpbayes.posterior import student
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.posterior.student import distil, logits_at


def distilled(module, features, teacher, most):
    """Return what was found, and what it predicts."""
    start = vector_to_arrays(to_vector(module), module)
    found = distil(logits_at(module, features), start, teacher, max_iterations=most)
    sample = {name: array[np.newaxis] for name, array in found.parameters.items()}
    return found, predict(module, sample, np.ones(1), features).probabilities


@pytest.fixture
def features():
    return np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)


def test_teacher_in_the_students_class_is_met(features):
    module = build_model(LogisticModel(), Task(input_shape=(4,), classes=3), seed=0)
    generator = np.random.default_rng(1)
    teacher = softmax(features @ generator.normal(size=(4, 3)) + generator.normal(size=3), axis=1)
    found, predicted = distilled(module, features, teacher, 500)
    assert found.divergence < 1e-4
    assert found.converged
    np.testing.assert_allclose(predicted, teacher, atol=0.02)


def test_divergence_is_that_of_the_returned_student(features):
    module = build_model(MLPModel(hidden=(8,)), Task(input_shape=(4,), classes=3), seed=0)
    teacher = np.random.default_rng(2).dirichlet(np.ones(3), size=300)
    found, predicted = distilled(module, features, teacher, 20)
    divergence = (teacher * np.log(teacher / predicted)).sum(axis=1).mean()
    assert found.divergence == pytest.approx(divergence, rel=1e-5)
    assert not found.converged
    untrained = (teacher * np.log(teacher * 3)).sum(axis=1).mean()
    assert found.divergence < untrained


def test_certain_teacher_is_met(features):
    module = build_model(LogisticModel(), Task(input_shape=(4,), classes=2), seed=0)
    teacher = np.eye(2)[(features[:, 0] > 0).astype(int)]
    assert 0 <= distilled(module, features, teacher, 30)[0].divergence < 0.1


PICTURES = Task(input_shape=(1, 4, 4), classes=3)


@pytest.mark.parametrize(
    "model",
    [LogisticModel(), MLPModel(hidden=(5,)), CNNModel(channels=(2,), hidden=3)],
    ids=lambda model: model.kind,
)
def test_gradient_is_that_of_finite_differences(model, monkeypatch):
    generator = np.random.default_rng(0)
    module = build_model(model, PICTURES, 0)
    inputs = generator.uniform(size=(7, 1, 4, 4)).astype(np.float32)
    plain = vector_to_arrays(to_vector(module), module).items()
    start = {name: array + generator.normal(scale=0.3, size=array.shape) for name, array in plain}
    cotangent = generator.normal(size=(7, 3))
    function = student.logits_at(module, inputs)
    logits, gradients_of = function(start)
    gradients = gradients_of(cotangent)
    step = 1e-6
    direction = {name: generator.normal(size=array.shape) for name, array in start.items()}
    moved = (
        {name: array + by * direction[name] for name, array in start.items()}
        for by in (step, -step)
    )
    ahead, behind = (function(point)[0] for point in moved)
    numeric = (cotangent * (ahead - behind)).sum() / (2 * step)
    assert sum((gradients[name] * direction[name]).sum() for name in start) == pytest.approx(
        numeric, rel=1e-6
    )
    monkeypatch.setattr(student, "INPUTS_PER_PASS", 3)
    again, gradients_again = student.logits_at(module, inputs)(start)
    np.testing.assert_allclose(again, logits, atol=1e-12)
    for name, gradient in gradients_again(cotangent).items():
        np.testing.assert_allclose(gradient, gradients[name], atol=1e-12)
