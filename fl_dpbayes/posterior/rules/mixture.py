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
from fl_dpbayes.posterior.samples import AnySamples, StoredSamples


def combine(rule: Mixture, released: Released) -> Aggregate:
    """Join the sites' samples by `joined`."""
    return Aggregate(joined(released.samples, released.weights), ())


def joined(
    site_samples: Mapping[str, AnySamples], site_weights: Mapping[str, float]
) -> StoredSamples:
    """Join the sites' samples into one weighted set; those on disk are not read.

    p(y|x) = sum_k w_k sum_t (a_kt / sum_u a_ku) p(y|x, w_kt). Source: Tresp 2000.

    Samples have step sizes a_kt as weights; `site_weights` w_k are renormalised over the sites that
    sent some. Raises ValueError if no site sent a sample, or all weights are 0.
    """
    present = {site: samples for site in site_samples if len(samples := site_samples[site])}
    total = sum(site_weights[site] for site in present)
    if not total > 0:
        raise ValueError("no site with a positive weight sent a sample")
    return StoredSamples(
        tuple(
            replace(
                piece, weights=site_weights[site] / total * piece.weights / samples.weights.sum()
            )
            for site, samples in present.items()
            for piece in samples.pieces
        )
    )
