import math

import pytest

from fl_dpbayes.privacy.account import account
from fl_dpbayes.privacy.events import GaussianEvent


def test_upper_bounds_are_ordered_and_the_limit_is_named() -> None:
    result = account((GaussianEvent(1.0, 0.01, 1000),), 1e-5)
    assert result.mu_kind == "clt"
    assert result.epsilon_gdp < result.epsilon_pld < result.epsilon_rdp
    exact = account((GaussianEvent(5.0, 1.0, 50),), 1e-5)
    assert exact.mu_kind == "exact"
    assert exact.epsilon_gdp == pytest.approx(exact.epsilon_pld, rel=1e-12)


@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "replace_one"])
def test_edges_of_every_method(adjacency: str) -> None:
    nothing = account((), 1e-5, adjacency)  # type: ignore[arg-type]
    assert (nothing.mu, nothing.epsilon_pld, nothing.epsilon_rdp, nothing.epsilon_gdp) == (0, 0, 0, 0)
    bare = account((GaussianEvent(0.0, 0.5, 1),), 1e-5, adjacency)  # type: ignore[arg-type]
    assert (bare.mu, bare.epsilon_pld, bare.epsilon_rdp, bare.epsilon_gdp) == (math.inf,) * 4
    assert bare.adjacency == adjacency
