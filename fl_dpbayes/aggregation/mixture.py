"""Mixture of the sites' posteriors: an ensemble of all their samples.

No convention: no precision is added or averaged. Each site targets its own posterior p(w | D_k) with the whole prior
(s = 1); unequal temperatures are not corrected, which `predbayes.temperature_warnings` says. The mixture is not the
posterior given all records: it does not sharpen as sites are added. It needs no alignment of weights between sites, and
is calibrated where the sites agree.
"""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.posterior.samples import PosteriorSamples, concatenate


def combine(site_samples: Mapping[str, PosteriorSamples], site_weights: Mapping[str, float]) -> PosteriorSamples:
    """Join the sites' samples into one weighted set.

    p(y|x) = sum_k w_k sum_t (a_kt / sum_u a_ku) p(y|x, w_kt): site k counts w_k however many samples it sent.

    Args:
        site_samples: site -> samples with their step sizes a_kt as weights.
        site_weights: site -> w_k >= 0; renormalised over the sites that sent samples.

    Returns:
        All samples in the order of `site_samples`, weights summing to 1.

    Raises:
        ValueError: if no site sent a sample, or all weights are 0.

    References:
        Tresp 2000, "A Bayesian committee machine" (the mixture is its linear opinion pool).
    """
    present = {site: samples for site, samples in site_samples.items() if len(samples.weights)}
    total = sum(site_weights[site] for site in present)
    if not present or total <= 0:
        raise ValueError("no site with a positive weight sent a sample")
    parts = []
    for site, samples in present.items():
        weights = np.asarray(samples.weights, dtype=np.float64)
        share = site_weights[site] / total
        parts.append(
            PosteriorSamples(
                arrays=samples.arrays, weights=share * weights / weights.sum(), temperatures=samples.temperatures
            )
        )
    return concatenate(parts)
