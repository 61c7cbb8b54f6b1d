import pytest
import torch
from scipy.stats import laplace, norm

from fl_dpbayes.config.sampler import FlatPrior, GaussianPrior, LaplacePrior
from fl_dpbayes.models.priors import log_prior, prior_gradient

PRIORS = pytest.mark.parametrize(
    "prior",
    [GaussianPrior(scale=0.7), LaplacePrior(scale=0.7), FlatPrior()],
    ids=lambda prior: prior.kind,
)


@pytest.mark.parametrize(
    ("prior", "distribution"), [(GaussianPrior, norm), (LaplacePrior, laplace)]
)
def test_log_density_is_that_of_scipy(prior, distribution):
    vector = torch.tensor([0.3, -2.0, 1.0])
    expected = distribution.logpdf(vector.numpy(), scale=0.7).sum()
    assert log_prior(prior(scale=0.7), vector).item() == pytest.approx(expected, rel=1e-6)


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
