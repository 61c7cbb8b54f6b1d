"""How often a product of the sites' posteriors counts the prior."""


def prior_share_warnings(sites: int, prior_share: float) -> tuple[str, ...]:
    """Warn where a rule that cannot divide by the prior counts it more or less than once.

    J sites that each target p(w)^s p(D_k | w) have the product p(w)^(J s) p(D | w).

    Args:
        sites: how many sites take part, J.
        prior_share: share of the prior that each targets, s in [0, 1].

    Returns:
        One warning, or none if J s = 1.
    """
    counted = sites * prior_share
    if abs(counted - 1) <= 1e-9:
        return ()
    return (
        f"{sites} sites with a prior share of {prior_share:g} count the prior {counted:g} times: let each target the "
        f"share 1/{sites}, or use a rule that divides by the prior",
    )
