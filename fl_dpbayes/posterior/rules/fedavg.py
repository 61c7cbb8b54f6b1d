"""FedAvg of posterior means: one point, the baseline that every rule is compared with.

No convention: it reads no precision, so any prior share will do. It consumes the released samples and the site weights.
"""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.config.warning import RunWarning
from fl_dpbayes.posterior.rules.aggregate import Aggregate, point_aggregate
from fl_dpbayes.posterior.rules.chains import chains, sample_shapes
from fl_dpbayes.posterior.samples import PosteriorSamples


def combine(site_samples: Mapping[str, PosteriorSamples], site_weights: Mapping[str, float]) -> Aggregate:
    """Average the sites' posterior means, m = sum_k w_k m_k / sum_k w_k.

    It is the mean of the global posterior only where all sites have the same precision; it says nothing of its width.

    Args:
        site_samples: site -> samples.
        site_weights: site -> w_k >= 0; renormalised over the sites that sent samples.

    Returns:
        One sample at temperature 0.

    Raises:
        ValueError: if no site sent a sample, or all weights are 0.

    References:
        McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data", Algorithm 1.
    """
    shapes = sample_shapes(site_samples)
    total, weight, warnings = np.zeros(()), 0.0, list[RunWarning]()
    for chain in chains(site_samples):
        total = total + site_weights[chain.site] * chain.mean
        weight += site_weights[chain.site]
        warnings += chain.warnings
    if not weight > 0:
        raise ValueError("no site with a positive weight sent a sample")
    return point_aggregate((total / weight)[np.newaxis], shapes, warnings)
