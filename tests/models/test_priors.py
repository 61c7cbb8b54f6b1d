import pytest
import torch
from scipy.stats import laplace, norm

from fl_dpbayes.config.sampler import FlatPrior, GaussianPrior, LaplacePrior
from fl_dpbayes.models.priors import Cavity, log_prior, prior_gradient

PRIORS = pytest.mark.parametrize(
    "prior", [GaussianPrior(scale=0.7), LaplacePrior(scale=0.7), FlatPrior()], ids=lambda prior: prior.kind
)


@pytest.mark.parametrize(("prior", "distribution"), [(GaussianPrior, norm), (LaplacePrior, laplace)])
def test_log_density_is_that_of_scipy(prior, distribution):
    vector = torch.tensor([0.3, -2.0, 1.0])
    assert log_prior(prior(scale=0.7), vector).item() == pytest.approx(
        distribution.logpdf(vector.numpy(), scale=0.7).sum(), rel=1e-6
    )


@PRIORS
def test_gradient_is_the_derivative_of_the_log_density_and_owns_its_memory(prior):
    vector = torch.tensor([0.3, -2.0, 1.0], requires_grad=True)
    expected = torch.autograd.grad(log_prior(prior, vector) + 0 * vector.sum(), vector)[0]
    torch.testing.assert_close(prior_gradient(prior, vector.detach()), expected)
    origin = torch.zeros(3)
    gradient = prior_gradient(prior, origin)
    assert torch.equal(gradient, torch.zeros(3))
    gradient += 1
    assert torch.equal(origin, torch.zeros(3))


def test_cavity_is_a_gaussian_of_its_own_mean_and_precision_in_each_direction():
    mean, precision = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([0.2, 3.0, 1e4])
    vector = torch.tensor([0.3, -2.0, 0.51], requires_grad=True)
    density = log_prior(Cavity(mean, precision), vector)
    expected = norm.logpdf(vector.detach().numpy(), mean.numpy(), precision.numpy() ** -0.5).sum()
    assert density.item() == pytest.approx(expected, rel=1e-5)
    slope = torch.autograd.grad(density, vector)[0]
    torch.testing.assert_close(prior_gradient(Cavity(mean, precision), vector.detach()), slope)
