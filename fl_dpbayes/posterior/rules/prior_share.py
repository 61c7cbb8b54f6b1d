"""How often a product of the sites' posteriors counts the prior."""

from fl_dpbayes.config.warning import RunWarning, warning


def prior_share_warnings(sites: int, prior_share: float) -> tuple[RunWarning, ...]:
    """Warn where a rule that cannot divide by the prior counts it more or less than once.

    J sites that each target p(w)^s p(D_k | w) have the product p(w)^(J s) p(D | w).

    Args:
        sites: how many sites take part, J.
        prior_share: share of the prior that each targets, s in [0, 1].

    Returns:
        One warning, or none if J s = 1.
    """
    counted = sites * prior_share
    return () if abs(counted - 1) <= 1e-9 else (warning("prior-share", sites=sites, share=prior_share, times=counted),)
