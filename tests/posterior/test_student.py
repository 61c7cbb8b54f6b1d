import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch.func import functional_call

from fl_dpbayes.config.task import LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector, vector_to_arrays
from fl_dpbayes.posterior.predictive import predictive_probabilities
from fl_dpbayes.posterior.student import distil


def student_of(module, features):
    inputs = torch.tensor(features)

    def student(parameters):
        values = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}
        logits = functional_call(module, values, (inputs,))

        def gradients(cotangent):
            found = torch.autograd.grad(logits, list(values.values()), torch.tensor(cotangent, dtype=logits.dtype))
            return {name: value.numpy() for name, value in zip(values, found, strict=True)}

        return logits.detach().numpy(), gradients

    return student


def start_of(module):
    return vector_to_arrays(to_vector(module), module)


def one_sample(found):
    return {name: array[np.newaxis] for name, array in found.parameters.items()}


@pytest.fixture
def features():
    return np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)


def test_teacher_in_the_students_class_is_met(features):
    module = build_model(LogisticModel(), Task(input_shape=(4,), classes=3), seed=0)
    generator = np.random.default_rng(1)
    teacher = softmax(features @ generator.normal(size=(4, 3)) + generator.normal(size=3), axis=1)
    found = distil(student_of(module, features), start_of(module), teacher, max_iterations=500)
    assert found.divergence < 1e-4
    assert found.converged
    predicted = predictive_probabilities(module, one_sample(found), np.ones(1), features)
    np.testing.assert_allclose(predicted, teacher, atol=0.02)


def test_divergence_is_that_of_the_returned_student(features):
    module = build_model(MLPModel(hidden=(8,)), Task(input_shape=(4,), classes=3), seed=0)
    teacher = np.random.default_rng(2).dirichlet(np.ones(3), size=300)
    found = distil(student_of(module, features), start_of(module), teacher, max_iterations=20)
    predicted = predictive_probabilities(module, one_sample(found), np.ones(1), features)
    divergence = (teacher * np.log(teacher / predicted)).sum(axis=1).mean()
    assert found.divergence == pytest.approx(divergence, rel=1e-5)
    assert not found.converged
    untrained = (teacher * np.log(teacher * 3)).sum(axis=1).mean()
    assert found.divergence < untrained


def test_certain_teacher_is_met(features):
    module = build_model(LogisticModel(), Task(input_shape=(4,), classes=2), seed=0)
    teacher = np.eye(2)[(features[:, 0] > 0).astype(int)]
    found = distil(student_of(module, features), start_of(module), teacher, max_iterations=30)
    assert 0 <= found.divergence < 0.1
