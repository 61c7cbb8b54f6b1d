"""Whether what a store holds of hospitals can be what a run of the scenario has kept."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import Scenario
from fl_dpbayes.files import check_values
from fl_dpbayes.posterior.hierarchical.effects import FACTS, PooledRounds, site_means

MOST_UNITS = 10**9
MOST_ROUNDS = 10**6
# Of a mean over sites: who happened to be a patient alone makes it larger.
SMALLEST_NOISE = 1e-9
SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)


def check_sums(sums: Mapping[str, npt.NDArray], scenario: Scenario, parameters: int) -> None:
    """Check the sums over rounds of every site.

    Args:
        sums: Site -> its rounds' sums, added up.
        scenario: The run's scenario.
        parameters: How many the softmax model has.

    Raises:
        ValueError: If a run of the scenario cannot have kept them.
    """
    table = np.array(list(sums.values()), np.float64)
    are_sites = sums.keys() <= scenario.sites.keys()
    if not (sums and are_sites and table.shape == (len(sums), FACTS + 2 * parameters)):
        raise ValueError("they are not those of its sites")
    units, rounds, weights, squares = table[:, :FACTS].T
    valid_rounds = (rounds >= 1) & (rounds <= MOST_ROUNDS) & (rounds == np.floor(rounds))
    valid_units = (units >= rounds) & (units <= MOST_UNITS * rounds)
    valid_weights = (weights >= SMALLEST_WEIGHT) & (squares >= 0)
    if not (valid_rounds & valid_units & valid_weights).all():
        raise ValueError("they are not those of its sites' rounds")
    # Sums divided by weights are what the sites sent, in float32.
    means = site_means(sums)
    check_values("states", means.states)
    check_values("gradients", means.gradients)


def checked_rounds(
    pooled: Mapping[str, npt.NDArray], counts: range, parameters: int
) -> PooledRounds:
    """Check the pooled scores of rounds.

    Args:
        pooled: As they are stored, by name.
        counts: How many rounds there may be.
        parameters: How many the softmax model has.

    Returns:
        The rounds.

    Raises:
        ValueError: If a run cannot have kept them.
    """
    if pooled.keys() != {"states", "scores", "noises"}:
        raise ValueError("the pooled sums of its rounds are missing")
    count = len(pooled["noises"]) if pooled["noises"].ndim == 1 else 0
    shapes = {array.shape for array in (pooled["states"], pooled["scores"])}
    if shapes != {(count, parameters // 2)} or count not in counts:
        raise ValueError("the pooled sums are not those of its rounds")
    for name, values in pooled.items():
        check_values(name, values)
    if not (pooled["noises"] >= SMALLEST_NOISE).all():
        raise ValueError("the pooled sums have no noise")
    return PooledRounds.of_arrays(pooled)
