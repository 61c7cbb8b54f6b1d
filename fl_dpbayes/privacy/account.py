"""What a history cost, by every method side by side."""

from dataclasses import dataclass
from typing import Literal

from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.gdp import gdp_epsilon, gdp_mu
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.rdp import rdp_epsilon

# A delta of 1e-3 allows one record in a thousand to be disclosed outright; this one is shown beside it.
SMALL_DELTA = 1e-5


@dataclass(frozen=True)
class Account:
    """The cost of a history.

    Attributes:
        delta: for which every epsilon holds.
        adjacency: which data sets count as neighbours.
        mu: parameter of Gaussian differential privacy.
        mu_kind: `exact`, or `clt`: a limit, not an upper bound.
        epsilon_pld: from the privacy-loss distribution, the tightest upper bound.
        epsilon_rdp: from Renyi divergences, an upper bound.
        epsilon_gdp: from mu, an upper bound only where mu_kind is `exact`.
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
        history: what was done.
        delta: in (0, 1).
        adjacency: which data sets count as neighbours.

    Returns:
        The account; values are 0 for an empty history and infinite where a step had no noise.

    Raises:
        ValueError: if delta lies outside (0, 1).
    """
    mu = gdp_mu(history, adjacency)
    return Account(
        delta=delta,
        adjacency=adjacency,
        mu=mu.mu,
        mu_kind=mu.kind,
        epsilon_pld=pld_epsilon(history, delta, adjacency),
        epsilon_rdp=rdp_epsilon(history, delta, adjacency),
        epsilon_gdp=gdp_epsilon(mu.mu, delta),
        epsilon_small_delta=pld_epsilon(history, SMALL_DELTA, adjacency) if delta > SMALL_DELTA else None,
    )
