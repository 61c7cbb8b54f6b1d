import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.samplers.gradients.clipping import sum_clipped, with_pre_noise
from fl_dpbayes.samplers.gradients.vmap import per_unit_gradients
from tests.samplers.gradients import one_by_one


@pytest.fixture(scope="module")
def module():
    return one_by_one.randomise(
        build_model(MLPModel(hidden=(4,)), Task(input_shape=(5,), classes=3), seed=0)
    )


def features_of(count):
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(1)), torch.arange(
        count
    ) % 3


@given(unit_index=st.lists(st.integers(0, 3), min_size=0, max_size=9))
def test_unit_gradient_is_that_of_its_records_together_property(module, unit_index):
    features, labels = features_of(len(unit_index))
    index = torch.tensor(unit_index, dtype=torch.int64)
    found = per_unit_gradients(module, features, labels, index, 4)
    for unit in range(4):
        own = index == unit
        expected = one_by_one.gradient_of(module, features[own], labels[own]).float()
        torch.testing.assert_close(found[unit], expected, rtol=1e-4, atol=1e-5)


def test_patient_with_one_bad_record_contributes_zero(module):
    features, labels = features_of(6)
    features[1, 0] = math.nan
    gradients = per_unit_gradients(module, features, labels, torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    torch.testing.assert_close(
        sum_clipped(gradients, 0.5).total, sum_clipped(gradients[1:], 0.5).total
    )
    assert sum_clipped(gradients, 0.5).total.any()


def test_pre_noise_has_the_asked_deviation_and_is_independent_over_units():
    noise = with_pre_noise(torch.zeros(400, 500), 0.5, np.random.default_rng(0)).double()
    assert noise.std().item() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(2 * noise.numel()))
    products = (noise[1:] * noise[:-1]).mean().item() / 0.25
    assert abs(products) <= 4 / math.sqrt(noise[1:].numel())
