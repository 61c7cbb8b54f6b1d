import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Laplace, Normal, kl_divergence
from torch.func import functional_call
from torch.nn import functional

from fl_dpbayes.config.sampler import FlatPrior, GaussianPrior, LaplacePrior, spread_of
from fl_dpbayes.models.parameters import vector_loader
from fl_dpbayes.models.variational import VariationalModule, divergence_gradient, draw
from fl_dpbayes.samplers.gradients.book_keeping import clipped_sum
from fl_dpbayes.samplers.gradients.loss import mean_over_draws


def generator(seed=0):
    return np.random.default_rng(seed)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 0.5, 3.0, 100.0])
def test_initial_spread_is_the_inverse_of_softplus(scale):
    spread = torch.tensor(spread_of(scale), dtype=torch.float64)
    assert functional.softplus(spread, threshold=1000).item() == pytest.approx(scale, rel=1e-7)


def test_each_draw_is_the_plain_module_with_its_own_weights():
    module = VariationalModule(network(), draws=3, initial_scale=0.3)
    features = torch.randn(4, 1, 5, 5, generator=torch.Generator().manual_seed(1))
    module.resample(generator(), 4)
    outputs = module(features)
    assert outputs.shape == (4, 3, 3)
    for index in range(3):
        weights = {name: value[index] for name, value in module.weight_draws().items()}
        torch.testing.assert_close(
            outputs[:, index], functional_call(module.mean, weights, (features,))
        )


def test_noise_must_be_drawn_and_does_not_depend_on_the_number_of_records():
    module = VariationalModule(network(), draws=2)
    with pytest.raises(ValueError, match="resample"):
        module(torch.zeros(1, 1, 5, 5))
    noises = []
    for seed, records in ((0, 1), (0, 100), (1, 100)):
        module.resample(generator(seed), records)
        noises.append(module.noise)
    assert torch.equal(noises[0], noises[1])
    assert not torch.equal(noises[1], noises[2])


def test_draws_have_the_mean_and_scale_of_the_approximation():
    mean = torch.tensor([1.0, -2.0, 0.0])
    scale = torch.tensor([0.1, 1.0, 3.0])
    vector = torch.cat([mean, torch.tensor([spread_of(value) for value in scale.tolist()])])
    source = generator()
    count = 4000
    draws = torch.stack([draw(vector, source) for _ in range(count)]).double()
    standard_error = scale.double() / math.sqrt(count)
    assert ((draws.mean(0) - mean).abs() <= 4 * standard_error).all()
    assert ((draws.std(0) - scale).abs() <= 4 * standard_error / math.sqrt(2)).all()


def divergence(prior, vector, share):
    mean, spread = vector.chunk(2)
    approximation = Normal(mean, functional.softplus(spread))
    entropy = approximation.entropy().sum()
    match prior:
        case GaussianPrior(scale=scale):
            target = Normal(torch.zeros_like(mean), torch.full_like(mean, scale))
        case LaplacePrior(scale=scale):
            target = Laplace(torch.zeros_like(mean), torch.full_like(mean, scale))
        case FlatPrior():
            return -entropy
    cross_entropy = kl_divergence(approximation, target).sum() + entropy
    return share * cross_entropy - entropy


@pytest.mark.parametrize(
    ("prior", "slope"),
    [(GaussianPrior(scale=0.7), 2.0), (LaplacePrior(scale=0.7), 1.0), (FlatPrior(), 0.0)],
)
def test_divergence_gradient_is_the_derivative_of_the_divergence(prior, slope):
    vector = torch.tensor(
        [0.3, -2.0, 0.01, 4.0, -3.0, 0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True
    )
    for share in (1.0, 0.25):
        expected = torch.autograd.grad(divergence(prior, vector, share), vector)[0]
        torch.testing.assert_close(divergence_gradient(prior, vector.detach(), share), expected)
    # At a vanishing spread, under a prior of scale 1.
    found = divergence_gradient(
        type(prior)(), torch.tensor([0.0, 2.0, -2.0, -300.0, -300.0, -300.0])
    )
    torch.testing.assert_close(found, torch.tensor([0.0, slope, -slope, -1.0, -1.0, -1.0]))


def squared_error(outputs, targets):
    return (outputs[:, 0] - targets).square().sum() / 2


def train(features, targets, prior, seed):
    count, size = features.shape
    module = VariationalModule(nn.Linear(size, 1, bias=False), draws=16)
    vector = torch.cat([torch.zeros(size), torch.full((size,), spread_of(0.5))])
    source = generator(seed)
    kept = []
    for step in range(500):
        vector_loader(module)(vector)
        module.resample(source, count)
        total = clipped_sum(
            module, features, targets, clip_norm=math.inf, loss=mean_over_draws(squared_error)
        ).total
        vector = (
            vector - 2.0 / (2 + step / 10) * (total + divergence_gradient(prior, vector)) / count
        )
        if step >= 200:
            mean, spread = vector.chunk(2)
            kept.append(torch.cat([mean, functional.softplus(spread)]))
    return torch.stack(kept).double().mean(0)


@pytest.mark.slow
def test_bayes_by_backprop_finds_the_mean_field_optimum_of_a_gaussian_posterior():
    # Mean of the posterior, and one over the root of the diagonal of its precision (not of its
    # covariance).
    source = generator()
    features = source.normal(size=(20, 3)) @ np.array(
        [[1.0, 0.6, 0.0], [0.0, 0.8, 0.3], [0.0, 0.0, 0.7]]
    )
    targets = features @ np.array([1.0, -0.5, 2.0]) + source.normal(size=20)
    precision = features.T @ features + np.eye(3) / 0.8**2
    expected = np.concatenate(
        [np.linalg.solve(precision, features.T @ targets), np.diag(precision) ** -0.5]
    )
    data = [torch.from_numpy(values.astype(np.float32)) for values in (features, targets)]
    runs = torch.stack([train(*data, GaussianPrior(scale=0.8), seed) for seed in range(5)]).numpy()
    standard_error = runs.std(axis=0, ddof=1) / math.sqrt(len(runs))
    assert (np.abs(runs.mean(axis=0) - expected) <= 4 * standard_error).all()
    assert (standard_error < 0.01 * np.tile(expected[3:], 2)).all()
    covariance_scale = np.diag(np.linalg.inv(precision)) ** 0.5
    assert (np.abs(covariance_scale - expected[3:]) > 8 * standard_error[3:]).any()
