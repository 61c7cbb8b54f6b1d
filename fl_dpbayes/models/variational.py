"""A Gaussian over the parameters of any module, mean field: what Bayes by backprop trains.

q(w) = N(mean, diag(scale^2)), scale = log(1 + exp(spread)) (Blundell et al. 2015, section 3.2). Its
parameters are one flat vector (mean, spread) of length 2 d, with d the number of parameters of the
plain module.
"""

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional

from fl_dpbayes.config import FlatPrior, GaussianPrior, LaplacePrior, Prior, spread_of
from fl_dpbayes.models.gaussian import standard_normals
from fl_dpbayes.models.parameters import called, parameter_shapes, vector_views

# Below it, in float32, log(1 + exp(spread)) is exp(spread), which underflows further down.
_LINEAR_SPREAD = -20.0


class VariationalModule(nn.Module):
    """A module whose parameters are Gaussian: its output has one entry per weight draw.

    Features (N, *shape) -> outputs (N, draws, K). The draws w_s = mean + scale * noise_s are shared
    by the records of a batch. Trainable parameters: those of `mean`, then those of `spread`.
    `module` becomes `mean`, its parameters the means. `draws`: S >= 1, over which each loss is
    averaged. `initial_scale`: each deviation at the start.
    """

    def __init__(self, module: nn.Module, draws: int, initial_scale: float = 0.05) -> None:
        super().__init__()
        self.mean = module
        self.spread = copy.deepcopy(module)
        self.draws = draws
        self.shapes = parameter_shapes(module)
        self.noise: torch.Tensor | None = None
        for name in self.shapes:
            self.spread.get_parameter(name).data.fill_(spread_of(initial_scale))

    def resample(self, generator: np.random.Generator, records: int) -> None:
        """Draw fresh weight noise, shape (draws, d).

        It is the same for all records, whatever their number.
        """
        size = sum(math.prod(shape) for shape in self.shapes.values())
        self.noise = standard_normals(
            generator, (self.draws, size), next(self.mean.parameters()).device
        )

    def noise_views(self) -> dict[str, torch.Tensor]:
        """Return the noise by parameter name, (draws, *shape).

        ValueError if `resample` was not called.
        """
        if self.noise is None:
            raise ValueError(
                "the module has no weight draws yet: call resample before the forward pass"
            )
        return vector_views(self.noise, self.shapes)

    def weight_draws(self) -> dict[str, torch.Tensor]:
        """Return mean + scale * noise by parameter name, shape (draws, *shape)."""
        means, spreads = dict(self.mean.named_parameters()), dict(self.spread.named_parameters())
        noise = self.noise_views()
        scales = {name: functional.softplus(spreads[name]) for name in self.shapes}
        # A half-precision module stays one.
        return {
            name: (means[name] + scales[name] * noise[name]).to(means[name].dtype)
            for name in self.shapes
        }

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the plain module's outputs under every draw, shape (N, draws, K)."""
        return vmap(lambda weights: called(self.mean, weights, features), out_dims=1)(
            self.weight_draws()
        )


def draw(vector: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    """Draw one parameter vector (d,) of the plain module, w ~ N(mean, scale^2), from (mean, spread), (2 d,)."""
    mean, spread = vector.chunk(2)
    return torch.addcmul(
        mean, functional.softplus(spread), standard_normals(generator, mean.shape, vector.device)
    )


def divergence_gradient(
    prior: Prior, vector: torch.Tensor, prior_share: float = 1.0
) -> torch.Tensor:
    """Return the gradient of KL(q || p^s) by (mean, spread): s E_q[-log p(w)] - H(q), up to a constant.

    With m the mean, v the scale and H(q) = sum log v + constant, E_q[-log p] is, up to a constant
    and per parameter, (m^2 + v^2) / (2 b^2) for a Gaussian prior, [m erf(m / (v sqrt 2)) + v sqrt(2
    / pi) exp(-m^2 / (2 v^2))] / b for a Laplace prior (the mean of a folded normal), b the prior's
    scale, and 0 for a flat prior.

    It reads no record, so it stays outside the clip; over n it belongs to the gradient of the mean
    energy. The entropy is not shared out among sites: q approximates the site's target p(w)^s
    p(D|w), whose width the share hardly changes. `vector` is (mean, spread), shape (2 d,), and s in
    (0, 1] the site's share of the prior.
    """
    m, spread = vector.chunk(2)
    v = functional.softplus(spread)
    slope = torch.sigmoid(spread)
    match prior:
        case GaussianPrior(scale=b):
            by_mean, by_scale = m / b**2, v / b**2
        case LaplacePrior(scale=b):
            # Where the scale has underflowed the ratio is signed infinity, or at a mean of 0
            # nothing.
            ratio = torch.where(m == 0, 0.0, m / v)
            by_mean = torch.erf(ratio / math.sqrt(2)) / b
            by_scale = math.sqrt(2 / math.pi) * torch.exp(-ratio.square() / 2) / b
        case FlatPrior():
            by_mean, by_scale = torch.zeros_like(m), torch.zeros_like(v)
    entropy = torch.where(spread < _LINEAR_SPREAD, 1.0, slope / v)
    return torch.cat([prior_share * by_mean, prior_share * by_scale * slope - entropy])
