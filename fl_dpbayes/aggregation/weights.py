"""How much each site counts: from public constants only."""

from collections.abc import Mapping


def unit_weights(units: Mapping[str, int]) -> dict[str, float]:
    """Weigh each site by its declared size, w_k = n_k / N.

    Args:
        units: site -> declared number of privacy units n_k, >= 0.

    Returns:
        Site -> weight; the weights sum to 1.

    Raises:
        ValueError: if no site has a unit.
    """
    total = sum(units.values())
    if total <= 0:
        raise ValueError("no site declares a unit, so there is nothing to weigh")
    return {site: count / total for site, count in units.items()}


def uniform_weights(units: Mapping[str, int]) -> dict[str, float]:
    """Weigh every site alike, w_k = 1 / K.

    Args:
        units: site -> declared number of privacy units; only the names are used.

    Returns:
        Site -> weight; the weights sum to 1.

    Raises:
        ValueError: if there is no site.
    """
    if not units:
        raise ValueError("there is no site to weigh")
    return {site: 1 / len(units) for site in units}
