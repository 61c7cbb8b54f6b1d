"""The law of total variance over posterior samples."""

import numpy as np
import pytest
import torch
from torch import nn

from fl_dpbayes.posterior.regression import predict_regression


def linear(means: list[float], log_variances: list[float]) -> tuple[nn.Module, dict[str, np.ndarray]]:
    """Networks that give mean m_k x and log variance l_k whatever x."""
    module = nn.Linear(1, 2)
    weight = np.array([[[m], [0.0]] for m in means], np.float32)
    bias = np.array([[0.0, log_variance] for log_variance in log_variances], np.float32)
    return module, {"weight": weight, "bias": bias}


def test_hand_computed_mean_and_variances() -> None:
    module, samples = linear([1.0, 3.0], [0.0, np.log(5.0)])
    found = predict_regression(module, samples, np.array([1.0, 3.0]), np.array([[2.0]], np.float32))
    assert found.mean[0] == pytest.approx(0.25 * 2 + 0.75 * 6)
    assert found.aleatoric[0] == pytest.approx(0.25 * 1 + 0.75 * 5)
    assert found.epistemic[0] == pytest.approx(0.25 * (2 - 5) ** 2 + 0.75 * (6 - 5) ** 2)
    assert found.total[0] == pytest.approx(found.aleatoric[0] + found.epistemic[0])


def test_total_variance_is_that_of_draws_from_the_mixture() -> None:
    generator = np.random.default_rng(1)
    module, samples = linear(list(generator.normal(size=7)), list(generator.normal(size=7)))
    weights = generator.uniform(size=7)
    x = np.array([[1.5]], np.float32)
    found = predict_regression(module, samples, weights, x)
    count = 400_000
    which = generator.choice(7, count, p=weights / weights.sum())
    scale = np.exp(samples["bias"][which, 1] / 2)
    draws = 1.5 * samples["weight"][which, 0, 0] + scale * generator.standard_normal(count)
    assert abs(draws.mean() - found.mean[0]) < 4 * draws.std() / np.sqrt(count)
    fourth = np.mean((draws - draws.mean()) ** 4)
    assert abs(draws.var() - found.total[0]) < 4 * np.sqrt((fourth - draws.var() ** 2) / count)


def test_one_sample_limit_has_no_epistemic_variance() -> None:
    module, samples = linear([2.0], [np.log(0.25)])
    found = predict_regression(module, samples, np.ones(1), np.array([[1.0], [-3.0]], np.float32))
    assert found.epistemic == pytest.approx([0, 0], abs=1e-12)
    assert found.aleatoric == pytest.approx([0.25, 0.25])
    assert found.mean == pytest.approx([2.0, -6.0])


def test_parameters_of_the_module_are_left_alone() -> None:
    module, samples = linear([1.0, 2.0], [0.0, 0.0])
    before = [parameter.detach().clone() for parameter in module.parameters()]
    predict_regression(module, samples, np.ones(2), np.zeros((3, 1), np.float32))
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [-1.0, 2.0], [np.inf, 1.0], [np.nan, 1.0]])
def test_wrong_weights_are_refused(weights: list[float]) -> None:
    module, samples = linear([1.0, 2.0], [0.0, 0.0])
    with pytest.raises(ValueError, match="weights"):
        predict_regression(module, samples, np.array(weights), np.zeros((1, 1), np.float32))
