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

        m = sum_k w_k m_k,  v = sum_k w_k (m_k - m)^2 (elementwise),  draws ~ N(m, spread^2 diag v)

    The paper draws 10 with spread 1, its authors' code with .1.

    Args:
        rule: The scenario's section.
        released: What the sites released.

    Returns:
        K + 1 + draws samples at temperature 0: the sites' means in the order of names, the
        average, the draws.

    Raises:
        ValueError: If no site sent a sample.

    Source: Chen and Chao 2021, "FedBE: making Bayesian model ensemble applicable to federated
    learning" (Gaussian).
    """
    shapes = sample_shapes(released.samples)
    means = []
    site_weights = []
    warnings: list[RunWarning] = []
    for chain in chains(released.samples):
        means.append(chain.mean)
        site_weights.append(released.weights[chain.site])
        warnings += chain.warnings
    members = np.stack(means)
    shares = np.asarray(site_weights) / sum(site_weights)
    centre = shares @ members
    variance = shares @ np.square(members - centre)
    noise = released.generator.standard_normal((rule.draws, len(centre)))
    draws = centre + rule.spread * np.sqrt(variance) * noise
    return posterior_aggregate(
        draws=np.concatenate([members, centre[np.newaxis], draws]),
        shapes=shapes,
        warnings=warnings,
        temperature=0.0,
    )
