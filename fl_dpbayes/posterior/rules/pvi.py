"""Partitioned variational inference: q(w) = p(w) prod_k t_k(w), refined one site factor at a time or all at once.

Convention A in effect: each site samples p(D_k|w) times the cavity q(w) / t_k(w), so that its factor t_k is its
likelihood alone and precisions add. The factors are functions of released samples, so the server keeps them and the
sites stay stateless. That is better than factors at the sites: none can present one that its released samples do not
have, and they survive a restart. Draws are brought to temperature 1 by the sites' public temperatures.

q_new has the means and variances of a site's samples, the projection of expectation propagation; with likelihoods that
are diagonal Gaussians this is the site's optimum. Its precision is uncertain by sqrt(2 / M) for M effective samples, of
the whole q and not of the site's part of it, so a factor that is small beside q is mostly noise unless it is damped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fl_dpbayes.config.errors import RunWarning, warning
from fl_dpbayes.posterior.chains import at_unit_temperature, chains
from fl_dpbayes.posterior.natural import Array, NaturalGaussian, positive_part
from fl_dpbayes.posterior.precision import diagonal_gaussian
from fl_dpbayes.posterior.samples import AnySamples


@dataclass(frozen=True)
class PVIState:
    """What the server keeps between rounds.

    `prior`: p(w). `factors`: site -> t_k(w); a site that is absent has t_k = 1. `warnings`: what was wrong with the
    samples of the last update. `negative`: site -> number of directions in which its factor came out with a
    negative precision there.
    """

    prior: NaturalGaussian
    factors: Mapping[str, NaturalGaussian] = field(default_factory=dict)
    warnings: tuple[RunWarning, ...] = ()
    negative: Mapping[str, int] = field(default_factory=dict)

    @property
    def posterior(self) -> NaturalGaussian:
        """The global approximation q(w) = p(w) prod_k t_k(w)."""
        total = self.prior
        for site in sorted(self.factors):
            total = total + self.factors[site]
        return total

    @property
    def noisy_factors(self) -> tuple[RunWarning, ...]:
        """A warning of each site whose factor the last update had to correct."""
        directions = len(self.prior.precision_mean)
        return tuple(
            warning("noisy-factor", site, raised=raised, directions=directions)
            for site, raised in self.negative.items()
        )

    def cavity(self, site: str) -> NaturalGaussian:
        """Return q(w) / t_k(w), the prior that the site's next chain must use."""
        total = self.prior
        for other in sorted(self.factors):
            if other != site:
                total = total + self.factors[other]
        return total


def update(state: PVIState, new_posteriors: Mapping[str, NaturalGaussian], *, damping: float) -> PVIState:
    """Update the factors of the sites that answered, t_k <- t_k (q_new / q)^rho; all answers refer to the same q.

    In natural parameters a factor moves by rho (new - old). With conjugate sites the precision after R rounds is
    L_0 + (1 - (1 - rho)^R) sum_k H_k: two rounds at rho = 0.4 have used 64 % of the evidence.

    References:
        Ashman et al. 2022, "Partitioned variational inference: a framework for probabilistic federated learning";
        Heikkila et al. 2023, "Differentially private partitioned variational inference".

    `new_posteriors`: site -> q_new, its cavity times its likelihood; a site that is absent keeps its factor.
    `damping`: rho in (0, 1]; 1 replaces a factor at once, 1/K is safe where all sites update together. Returns the
    new state. A factor with a negative precision could make a cavity improper: in those directions it gets
    precision 0, is counted in `negative`, and moves the site's mean as far as it did.
    """
    posterior = state.posterior
    factors, negative = dict(state.factors), dict[str, int]()
    for site in sorted(new_posteriors):
        nothing = state.prior.power(0)
        changed = state.factors.get(site, nothing) + (new_posteriors[site] - posterior).power(damping)
        # By its definition positive, where cavity times factor may round to 0.
        damped = posterior.power(1 - damping) + new_posteriors[site].power(damping)
        factors[site], raised = _sharpening(changed, state.cavity(site), damped.mean)
        if raised:
            negative[site] = raised
    return PVIState(state.prior, factors, negative=negative)


def _sharpening(factor: NaturalGaussian, cavity: NaturalGaussian, mean: Array) -> tuple[NaturalGaussian, int]:
    """Give a factor the positive part T+ of its precision, and keep the mean m of cavity times factor.

    h+ = (L + T+) m - h, (L, h) the cavity in natural parameters.
    """
    kept, raised = positive_part(factor)
    if not raised:
        return factor, 0
    precision = cavity.precision + kept.precision
    target = precision * mean if precision.ndim == 1 else precision @ mean
    return NaturalGaussian(kept.precision, target - cavity.precision_mean), raised


def update_from_samples(state: PVIState, site_samples: Mapping[str, AnySamples], *, damping: float) -> PVIState:
    """Update the factors by diagonal Gaussians fitted to the sites' samples of p(D_k|w) times their cavities.

    Raises ValueError if a site has fewer than 5 samples.
    """
    new_posteriors, warnings = {}, list[RunWarning]()
    for chain in map(at_unit_temperature, chains(site_samples)):
        new_posteriors[chain.site], found = diagonal_gaussian(chain)
        warnings += [*chain.warnings, *found]
    updated = update(state, new_posteriors, damping=damping)
    return PVIState(updated.prior, updated.factors, tuple(warnings), updated.negative)
