"""A Gaussian over the parameters of any module, mean field: what Bayes by backprop trains.

    q(w) = N(mean, diag(scale^2)),    scale = log(1 + exp(spread))

Its parameters are one flat vector (mean, spread) of length 2 d, with d the number of parameters of
the plain module. Source: Blundell et al. 2015, section 3.2.
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

    The draws w_s = mean + scale * noise_s are shared by the records of a batch. Trainable
    parameters are those of `mean`, then those of `spread`.

    Args:
        module: Features (N, *shape) -> outputs (N, K). It becomes `mean`, its parameters the means.
        draws: S >= 1, over which each loss is averaged.
        initial_scale: Each deviation at the start.
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
        """Draw fresh weight noise, the same for all records.

        Args:
            generator: The module's own stream.
            records: Not needed: `DropoutModule` is resampled by the same call.
        """
        size = sum(math.prod(shape) for shape in self.shapes.values())
        device = next(self.mean.parameters()).device
        self.noise = standard_normals(generator, shape=(self.draws, size), device=device)

    def noise_views(self) -> dict[str, torch.Tensor]:
        """Return the noise by parameter name, shape (draws, *shape) each.

        Raises:
            ValueError: `resample` was not called.
        """
        if self.noise is None:
            raise ValueError(
                "the module has no weight draws yet: call resample before the forward pass"
            )
        return vector_views(self.noise, self.shapes)

    def weight_draws(self) -> dict[str, torch.Tensor]:
        """Return mean + scale * noise by parameter name, shape (draws, *shape) each."""
        means = dict(self.mean.named_parameters())
        spreads = dict(self.spread.named_parameters())
        noise = self.noise_views()
        scales = {name: functional.softplus(spreads[name]) for name in self.shapes}
        # A half-precision module stays one.
        return {
            name: (means[name] + scales[name] * noise[name]).to(means[name].dtype)
            for name in self.shapes
        }

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the plain module's outputs under every draw, shape (N, draws, K)."""

        def outputs_of(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            return called(self.mean, weights, features)

        return vmap(outputs_of, out_dims=1)(self.weight_draws())


def draw(vector: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    """Draw one parameter vector of the plain module, w ~ N(mean, scale^2).

    Args:
        vector: (mean, spread), shape (2 d,).
        generator: Draws the noise.

    Returns:
        w, shape (d,).
    """
    mean, spread = vector.chunk(2)
    noise = standard_normals(generator, shape=mean.shape, device=vector.device)
    return torch.addcmul(mean, functional.softplus(spread), noise)


def divergence_gradient(
    prior: Prior, vector: torch.Tensor, prior_share: float = 1.0
) -> torch.Tensor:
    """Return the gradient of KL(q || p^s) by mean and spread.

        KL = s E_q[-log p(w)] - H(q), up to a constant

    With m the mean, v the scale and H(q) = sum log v + constant, E_q[-log p] is, up to a constant
    and per parameter, with b the prior's scale:

        Gaussian    (m^2 + v^2) / (2 b^2)
        Laplace     [m erf(m / (v sqrt 2)) + v sqrt(2 / pi) exp(-m^2 / (2 v^2))] / b
        flat        0

    (of a Laplace prior it is the mean of a folded normal). It reads no record, so it stays outside
    the clip; over n it belongs to the gradient of the mean energy. The entropy is not shared out
    among sites: q approximates the site's target p(w)^s p(D|w), whose width the share hardly
    changes.

    Args:
        prior: p.
        vector: (mean, spread), shape (2 d,).
        prior_share: s in (0, 1], the site's share of the prior.

    Returns:
        Shape (2 d,).
    """
    m, spread = vector.chunk(2)
    v = functional.softplus(spread)
    slope = torch.sigmoid(spread)
    match prior:
        case GaussianPrior(scale=b):
            by_mean = m / b**2
            by_scale = v / b**2
        case LaplacePrior(scale=b):
            # Where the scale has underflowed the ratio is signed infinity, or at a mean of 0
            # nothing.
            ratio = torch.where(m == 0, 0.0, m / v)
            by_mean = torch.erf(ratio / math.sqrt(2)) / b
            by_scale = math.sqrt(2 / math.pi) * torch.exp(-ratio.square() / 2) / b
        case FlatPrior():
            by_mean = torch.zeros_like(m)
            by_scale = torch.zeros_like(v)
    entropy = torch.where(spread < _LINEAR_SPREAD, 1.0, slope / v)
    return torch.cat([prior_share * by_mean, prior_share * by_scale * slope - entropy])
