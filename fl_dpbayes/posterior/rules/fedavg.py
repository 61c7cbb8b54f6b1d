"""FedAvg of posterior means: one point, the baseline that every rule is compared with.

No convention: it reads no precision, so any prior share will do.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fl_dpbayes.config import FedAvg, RunWarning
from fl_dpbayes.posterior.averages import average_of_states
from fl_dpbayes.posterior.chains import chains, sample_shapes, state_of
from fl_dpbayes.posterior.rules.combine import Aggregate, Released, posterior_aggregate
from fl_dpbayes.posterior.samples import AnySamples, point_of
from fl_dpbayes.protocol import Arrays, prefixed


def combine(rule: FedAvg, released: Released) -> Aggregate:
    """Average the sites' posterior means, unless the rule asks for a robust average of them.

        m = sum_k w_k m_k / sum_k w_k

    It is the mean of the global posterior only where all sites have the same precision. Its width
    is not told.

    Args:
        rule: The scenario's section.
        released: What the sites released.

    Returns:
        One sample at temperature 0.

    Raises:
        ValueError: If no site sent a sample.

    Source: McMahan et al. 2017, "Communication-efficient learning of deep networks from
    decentralized data", Algorithm 1.
    """
    if rule.robust != "none" or rule.move_bound != "none":
        return _robust(rule, released)
    shapes = sample_shapes(released.samples)
    weighted_sum = np.zeros(())
    total_weight = 0.0
    warnings: list[RunWarning] = []
    for chain in chains(released.samples):
        weight = released.weights[chain.site]
        weighted_sum = weighted_sum + weight * chain.mean
        total_weight += weight
        warnings += chain.warnings
    mean = weighted_sum / total_weight
    return posterior_aggregate(
        draws=mean[np.newaxis], shapes=shapes, warnings=warnings, temperature=0.0
    )


def posterior_means(site_samples: Mapping[str, AnySamples]) -> dict[str, Arrays]:
    """Return each site's posterior mean m_k = sum_t v_t w_t as a state of float32 arrays."""
    shapes = sample_shapes(site_samples)
    return {chain.site: state_of(chain.mean, shapes) for chain in chains(site_samples)}


def _robust(rule: FedAvg, released: Released) -> Aggregate:
    average = average_of_states(
        states=posterior_means(released.samples),
        start=_mean_start(released.starts),
        rule=rule,
        site_weights=released.weights,
    )
    return Aggregate(point_of(prefixed("parameters", average.state)), average.warnings)


def _mean_start(starts: Sequence[Arrays]) -> Arrays:
    """Return the mean of the chains' starts, from which moves count."""
    return {
        name: np.stack([start[name] for start in starts]).mean(axis=0, dtype=np.float32)
        for name in starts[0]
    }
