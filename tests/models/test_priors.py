import pytest
import torch
from scipy.stats import norm

from fl_dpbayes.models.priors import log_prior, prior_gradient
from fl_dpbayes.protocol.plan import FlatPrior, GaussianPrior


def test_gaussian_log_density_is_that_of_scipy():
    vector = torch.tensor([0.3, -2.0, 1.0])
    assert log_prior(GaussianPrior(scale=0.7), vector).item() == pytest.approx(
        norm.logpdf(vector.numpy(), scale=0.7).sum(), rel=1e-6
    )


@pytest.mark.parametrize("prior", [GaussianPrior(scale=0.7), FlatPrior()], ids=lambda prior: prior.kind)
def test_gradient_is_the_derivative_of_the_log_density(prior):
    vector = torch.tensor([0.3, -2.0, 1.0], requires_grad=True)
    expected = torch.autograd.grad(log_prior(prior, vector) + 0 * vector.sum(), vector)[0]
    torch.testing.assert_close(prior_gradient(prior, vector.detach()), expected)
