"""From the samples of independent chains to one posterior, by the rule that a scenario names."""

from collections.abc import Mapping

import numpy as np

from fl_dpbayes.config.aggregation import (
    Aggregation,
    Consensus,
    FedAvg,
    FedBE,
    Mixture,
    Product,
    prior_scale,
    prior_share,
)
from fl_dpbayes.config.sampler import Sampler
from fl_dpbayes.posterior.robust_average import average_of_states
from fl_dpbayes.posterior.rules import consensus, fedavg, fedbe, mixture, product
from fl_dpbayes.posterior.rules.aggregate import Aggregate
from fl_dpbayes.posterior.rules.robust import posterior_means
from fl_dpbayes.posterior.samples import PosteriorSamples, point_of
from fl_dpbayes.protocol.arrays import Arrays, prefixed

CONSENSUS = {
    "consensus-full": consensus.combine_full,
    "consensus-diagonal": consensus.combine_diagonal,
    "consensus-uniform": consensus.combine_uniform,
}
PRODUCT = {
    "product-full": product.combine_full,
    "product-diagonal": product.combine_diagonal,
}


def combine_sites(
    rule: Aggregation,
    site_samples: Mapping[str, PosteriorSamples],
    site_weights: Mapping[str, float],
    *,
    sampler: Sampler,
    sites: int,
    start: Arrays,
    generator: np.random.Generator,
) -> Aggregate:
    """Combine the sites' samples, one site in memory at a time where the rule allows it.

    Args:
        rule: a rule on independent chains.
        site_samples: site -> samples, at least one site, each with as many samples as the rule needs.
        site_weights: site -> w_k.
        sampler: the sites' algorithm, for its prior.
        sites: number of training sites K that the prior was shared between.
        start: mean parameters of the chains' starts, which moves count from.
        generator: source of the draws.

    Returns:
        The global posterior, with the rule's warnings.

    Raises:
        ValueError: if the rule cannot use the samples.
    """
    match rule:
        case Mixture():
            return Aggregate(mixture.combine(site_samples, site_weights), ())
        case FedAvg(robust="none", move_bound="none"):
            return fedavg.combine(site_samples, site_weights)
        case FedAvg():
            state, warnings, _ = average_of_states(posterior_means(site_samples), start, rule, site_weights)
            return Aggregate(point_of(prefixed("parameters", state)), warnings)
        case FedBE():
            return fedbe.combine(site_samples, site_weights, draws=rule.draws, spread=rule.spread, generator=generator)
        case Consensus():
            return CONSENSUS[rule.rule](
                site_samples, prior_share=prior_share(rule, sites), draws=rule.draws, generator=generator
            )
        case Product():
            return PRODUCT[rule.rule](
                site_samples,
                prior_scale=prior_scale(sampler),
                prior_share=prior_share(rule, sites),
                draws=rule.draws,
                generator=generator,
            )
        case _:
            raise ValueError(f"rule {rule.rule!r} does not combine independent chains")
