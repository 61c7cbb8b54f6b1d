"""FedBE: a Gaussian over the sites' models, sampled into an ensemble.

No convention: the Gaussian describes how the sites' models differ, not a posterior given the
records, so its spread is a setting and not a result. Its distillation step is the rule
`distillation`.
"""

import numpy as np

from fl_dpbayes.config import FedBE, RunWarning
from fl_dpbayes.posterior.chains import chains, sample_shapes
from fl_dpbayes.posterior.rules.combine import Aggregate, Released, posterior_aggregate


def combine(rule: FedBE, released: Released) -> Aggregate:
    """Return the ensemble of the sites' means, their average, and draws around it.

    m = sum_k w_k m_k, v = sum_k w_k (m_k - m)^2 (elementwise), draws ~ N(m, spread^2 diag v). The
    paper draws 10 with spread 1, its authors' code with .1. Source: Chen and Chao 2021, "FedBE:
    making Bayesian model ensemble applicable to federated learning" (Gaussian).

    Returns K + 1 + draws samples at temperature 0: the sites' means in the order of names, the
    average, the draws. Raises ValueError if no site sent a sample.
    """
    shapes = sample_shapes(released.samples)
    means, shares, warnings = [], [], list[RunWarning]()
    for chain in chains(released.samples):
        means.append(chain.mean)
        shares.append(released.weights[chain.site])
        warnings += chain.warnings
    members, weights = np.stack(means), np.asarray(shares) / sum(shares)
    centre = weights @ members
    scatter = weights @ np.square(members - centre)
    around = centre + rule.spread * np.sqrt(scatter) * released.generator.standard_normal(
        (rule.draws, len(centre))
    )
    return posterior_aggregate(
        np.concatenate([members, centre[np.newaxis], around]), shapes, warnings, 0.0
    )
