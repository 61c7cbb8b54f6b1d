"""FedAvg of posterior means: one point, the baseline that every rule is compared with.

No convention: it reads no precision, so any prior share will do.
"""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.config import FedAvg, RunWarning
from fl_dpbayes.posterior.averages import average_of_states
from fl_dpbayes.posterior.chains import chains, sample_shapes, state_of
from fl_dpbayes.posterior.rules.combine import Aggregate, Released, posterior_aggregate
from fl_dpbayes.posterior.samples import AnySamples, point_of
from fl_dpbayes.protocol import Arrays, prefixed


def combine(rule: FedAvg, released: Released) -> Aggregate:
    """Average the sites' posterior means, m = sum_k w_k m_k / sum_k w_k, unless the rule asks for a robust average.

    It is the mean of the global posterior only where all sites have the same precision; its width
    is not told. Source: McMahan et al. 2017, "Communication-efficient learning of deep networks
    from decentralized data", Algorithm 1.

    Returns one sample at temperature 0. Raises ValueError if no site sent a sample.
    """
    if (rule.robust, rule.move_bound) != ("none", "none"):
        # Moves count from the mean of the chains' starts.
        stacks = {
            name: np.stack([start[name] for start in released.starts])
            for name in released.starts[0]
        }
        start = {name: stack.mean(axis=0, dtype=np.float32) for name, stack in stacks.items()}
        found = average_of_states(posterior_means(released.samples), start, rule, released.weights)
        return Aggregate(point_of(prefixed("parameters", found.state)), found.warnings)
    shapes = sample_shapes(released.samples)
    total, weight, warnings = np.zeros(()), 0.0, list[RunWarning]()
    for chain in chains(released.samples):
        total = total + released.weights[chain.site] * chain.mean
        weight += released.weights[chain.site]
        warnings += chain.warnings
    return posterior_aggregate((total / weight)[np.newaxis], shapes, warnings, 0.0)


def posterior_means(site_samples: Mapping[str, AnySamples]) -> dict[str, Arrays]:
    """Return each site's posterior mean m_k = sum_t v_t w_t as a state of float32 arrays."""
    shapes = sample_shapes(site_samples)
    return {chain.site: state_of(chain.mean, shapes) for chain in chains(site_samples)}
