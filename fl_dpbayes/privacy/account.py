"""What a history cost, by every method side by side."""

from dataclasses import dataclass
from typing import Literal

from fl_dpbayes.config import Adjacency
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.gdp import gdp_epsilon, gdp_mu
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.rdp import rdp_epsilon

# A delta of 1e-3 allows one record in a thousand to be disclosed outright; this one is shown beside
# it.
SMALL_DELTA = 1e-5


@dataclass(frozen=True)
class Account:
    """The cost of a history: every epsilon holds for delta.

    mu_kind is `exact`, or `clt`: a limit, not an upper bound, and then neither is epsilon_gdp.
    epsilon_small_delta is epsilon_pld at `SMALL_DELTA`; None where delta is as small.
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
    """Account for a history at delta in (0, 1), else ValueError: 0 for an empty history, infinite without noise."""
    mu, pld = gdp_mu(history, adjacency), pld_epsilon(history, delta, adjacency)
    rdp, gdp = rdp_epsilon(history, delta, adjacency), gdp_epsilon(mu.mu, delta)
    small = pld_epsilon(history, SMALL_DELTA, adjacency) if delta > SMALL_DELTA else None
    return Account(delta, adjacency, mu.mu, mu.kind, pld, rdp, gdp, small)
