"""FedBE: a Gaussian over the sites' models, sampled into an ensemble.

No convention: the Gaussian describes how the sites' models differ, not a posterior given the records, so its spread is
a setting and not a result. It consumes the released samples and the site weights (its distillation step is
`distillation`, which needs public inputs).
"""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.config.warning import RunWarning
from fl_dpbayes.posterior.rules.aggregate import Aggregate, point_aggregate
from fl_dpbayes.posterior.rules.chains import chains, sample_shapes
from fl_dpbayes.posterior.samples import PosteriorSamples


def combine(
    site_samples: Mapping[str, PosteriorSamples],
    site_weights: Mapping[str, float],
    *,
    draws: int,
    spread: float,
    generator: np.random.Generator,
) -> Aggregate:
    """Return the ensemble of the sites' means, their average, and draws around it.

    m = sum_k w_k m_k, v = sum_k w_k (m_k - m)^2 (elementwise), draws ~ N(m, spread^2 diag v).

    Args:
        site_samples: site -> samples.
        site_weights: site -> w_k >= 0; renormalised over the sites that sent samples.
        draws: how many draws to add, >= 0; the paper uses 10.
        spread: factor on the standard deviation, >= 0; 1 in the paper, 0.1 in its authors' code.
        generator: source of the draws.

    Returns:
        K + 1 + draws samples at temperature 0: the sites' means in the order of names, the average, the draws.

    Raises:
        ValueError: if no site sent a sample, or all weights are 0.

    References:
        Chen and Chao 2021, "FedBE: making Bayesian model ensemble applicable to federated learning", its Gaussian
        variant.
    """
    shapes = sample_shapes(site_samples)
    means, shares, warnings = [], [], list[RunWarning]()
    for chain in chains(site_samples):
        means.append(chain.mean)
        shares.append(site_weights[chain.site])
        warnings += chain.warnings
    if not sum(shares) > 0:
        raise ValueError("no site with a positive weight sent a sample")
    members, weights = np.stack(means), np.asarray(shares) / sum(shares)
    centre = weights @ members
    scatter = weights @ np.square(members - centre)
    around = centre + spread * np.sqrt(scatter) * generator.standard_normal((draws, len(centre)))
    return point_aggregate(np.concatenate([members, centre[np.newaxis], around]), shapes, warnings)
