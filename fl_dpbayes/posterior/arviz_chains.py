"""Chains of posterior samples as ArviZ takes them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_dpbayes.errors import UserError
from fl_dpbayes.posterior.samples import PosteriorSamples


def chains_to_arviz(chains: Mapping[str, PosteriorSamples]) -> Any:
    """Give chains to ArviZ.

    Chains of unequal length lose their first draws. ArviZ counts draws alike:
    `sample_stats.weights` says where their weights differ.

    Args:
        chains: Name of a chain -> its samples, of the same parameters in all.

    Returns:
        `arviz.InferenceData`, or the `xarray.DataTree` that it is from ArviZ 1.0 on: variables
        (chain, draw, *shape), weights and temperatures.

    Raises:
        UserError: If ArviZ is not installed.
    """
    try:
        import arviz
    except ImportError:
        raise UserError("to_arviz needs ArviZ: pip install 'fl-dpbayes[arviz]'") from None
    draws = min(map(len, chains.values()))
    first = next(iter(chains.values()))
    groups: dict[str, Any] = {
        "posterior": {
            name: np.stack([chain.arrays[name][-draws:] for chain in chains.values()])
            for name in first.arrays
        },
        "sample_stats": {
            "weights": np.stack([chain.weights[-draws:] for chain in chains.values()]),
            "temperatures": np.stack([chain.temperatures[-draws:] for chain in chains.values()]),
        },
    }
    coords = {"chain": list(chains)}
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict(groups, coords=coords)
    return arviz.from_dict(**groups, coords=coords)
