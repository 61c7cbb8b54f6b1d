"""Mixture of the sites' posteriors: an ensemble of all their samples.

No convention: no precision is added or averaged. Each site targets its own posterior p(w | D_k) with the whole prior
(s = 1); unequal temperatures are not corrected, which `predbayes.temperature_warnings` says. The mixture is not the
posterior given all records: it does not sharpen as sites are added. It needs no alignment of weights between sites, and
is calibrated where the sites agree.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fl_dpbayes.posterior.samples import PosteriorSamples, concatenate
from fl_dpbayes.posterior.stored_samples import StoredSamples


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
    shares = _shares(present, site_weights)
    parts = [
        PosteriorSamples(
            arrays=samples.arrays,
            weights=shares[site] * samples.weights / samples.weights.sum(),
            temperatures=samples.temperatures,
        )
        for site, samples in present.items()
    ]
    return concatenate(parts)


def combine_stored(site_samples: Mapping[str, StoredSamples], site_weights: Mapping[str, float]) -> StoredSamples:
    """Join samples that stay on disk, as `combine` does those in memory; nothing is read.

    Args:
        site_samples: site -> samples with their step sizes a_kt as weights.
        site_weights: site -> w_k >= 0; renormalised over the sites that sent samples.

    Returns:
        All samples in the order of `site_samples`, weights summing to 1.

    Raises:
        ValueError: if no site sent a sample, or all weights are 0.

    References:
        As `combine`.
    """
    shares = _shares(site_samples, site_weights)
    return StoredSamples(
        tuple(
            replace(piece, weights=shares[site] * piece.weights / samples.weights.sum())
            for site, samples in site_samples.items()
            for piece in samples.pieces
        )
    )


def _shares(sites: Iterable[str], site_weights: Mapping[str, float]) -> dict[str, float]:
    """Renormalise w_k over the sites that sent samples."""
    weights = {site: site_weights[site] for site in sites}
    total = sum(weights.values())
    if not total > 0:
        raise ValueError("no site with a positive weight sent a sample")
    return {site: weight / total for site, weight in weights.items()}
