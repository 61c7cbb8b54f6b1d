"""Mixture of the sites' posteriors: an ensemble of all their samples.

No convention: no precision is added or averaged. Each site targets its own posterior p(w | D_k)
with the whole prior; unequal temperatures are not corrected, which `predbayes.temperature_warnings`
says. The mixture is not the posterior given all records: it does not sharpen as sites are added. It
needs no alignment, and is calibrated where sites agree.
"""

from collections.abc import Mapping
from dataclasses import replace

from fl_dpbayes.config import Mixture
from fl_dpbayes.posterior.rules.combine import Aggregate, Released
from fl_dpbayes.posterior.samples import AnySamples, SamplePiece, StoredSamples


def combine(rule: Mixture, released: Released) -> Aggregate:
    """Join the sites' samples by `joined`."""
    return Aggregate(joined(released.samples, released.weights), ())


def joined(
    site_samples: Mapping[str, AnySamples], site_weights: Mapping[str, float]
) -> StoredSamples:
    """Join the sites' samples into one weighted set; those on disk are not read.

        p(y|x) = sum_k w_k sum_t (a_kt / sum_u a_ku) p(y|x, w_kt)

    Args:
        site_samples: Site -> its samples, whose weights are the step sizes a_kt.
        site_weights: Site -> w_k >= 0; renormalised over the sites that sent samples.

    Returns:
        All samples, in the order of the sites.

    Raises:
        ValueError: If no site sent a sample, or all weights are 0.

    Source: Tresp 2000, "A Bayesian committee machine".
    """
    by_site = {site: site_samples[site] for site in site_samples}
    present = {site: samples for site, samples in by_site.items() if len(samples)}
    total_weight = sum(site_weights[site] for site in present)
    if not total_weight > 0:
        raise ValueError("no site with a positive weight sent a sample")
    pieces: list[SamplePiece] = []
    for site, samples in present.items():
        share = site_weights[site] / total_weight
        step_sizes = samples.weights.sum()
        pieces += [
            replace(piece, weights=share * piece.weights / step_sizes) for piece in samples.pieces
        ]
    return StoredSamples(tuple(pieces))
