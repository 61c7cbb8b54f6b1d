"""What a history cost, by every method side by side."""

from dataclasses import dataclass
from typing import Literal

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.gdp import gdp_epsilon, gdp_mu
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.rdp import rdp_epsilon

# A delta of 1e-3 allows one record in a thousand to be disclosed outright, so epsilon at this one
# is shown too.
SMALL_DELTA = 1e-5


@dataclass(frozen=True)
class Account:
    """The cost of a history: every epsilon holds for delta.

    Attributes:
        delta: In (0, 1).
        adjacency: For which the values hold.
        mu: Of Gaussian differential privacy, >= 0.
        mu_kind: `exact`, or `clt`: a limit, not an upper bound, and then neither is `epsilon_gdp`.
        epsilon_pld: By the privacy-loss distribution.
        epsilon_rdp: By Renyi differential privacy.
        epsilon_gdp: By mu.
        epsilon_small_delta: `epsilon_pld` at `SMALL_DELTA`; None where delta is as small.
    """

    delta: float
    adjacency: Adjacency
    mu: float
    mu_kind: Literal["exact", "clt"]
    epsilon_pld: float
    epsilon_rdp: float
    epsilon_gdp: float
    epsilon_small_delta: float | None = None


def account(history: History, delta: float, adjacency: Adjacency = "add_or_remove_one") -> Account:
    """Account for a history by every method.

    Args:
        history: What was done to the records.
        delta: In (0, 1).
        adjacency: For which epsilon shall hold.

    Returns:
        Its cost: 0 for an empty history, infinite where a step had no noise.

    Raises:
        ValueError: If delta lies outside (0, 1).
    """
    mu = gdp_mu(history, adjacency)
    epsilon_pld = pld_epsilon(history, delta, adjacency)
    epsilon_small_delta = None
    if delta > SMALL_DELTA:
        epsilon_small_delta = pld_epsilon(history, SMALL_DELTA, adjacency)
    return Account(
        delta=delta,
        adjacency=adjacency,
        mu=mu.mu,
        mu_kind=mu.kind,
        epsilon_pld=epsilon_pld,
        epsilon_rdp=rdp_epsilon(history, delta, adjacency),
        epsilon_gdp=gdp_epsilon(mu.mu, delta),
        epsilon_small_delta=epsilon_small_delta,
    )
