"""The largest epsilon of a run is stated at a small delta as well."""

import pytest

from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.pld import pld_epsilon
from server.small_delta import largest_at_small_delta


def _row(site: str, sigma: float, delta: float = 1e-3, method: str = "pld") -> dict:
    epsilon = pld_epsilon((GaussianEvent(sigma, 0.1, 50),), delta)
    return {"site": site, "delta": delta, "epsilon": epsilon, "epsilon_method": method, "history": [[sigma, 0.1, 50]]}


def test_costliest_site_is_accounted_at_the_small_delta() -> None:
    rows = [_row("north", 1.5), _row("south", 1.0), _row("east", 0.7, method="rdp filter"), {"site": "west"}]
    found = largest_at_small_delta(rows, "add_or_remove_one")
    assert found == {"site": "south", "delta": 1e-5, "epsilon": pld_epsilon((GaussianEvent(1.0, 0.1, 50),), 1e-5)}
    assert found["epsilon"] > rows[1]["epsilon"]


@pytest.mark.parametrize("rows", [[], [{"site": "west"}], [_row("north", 1.0, delta=1e-5)]])
def test_nothing_is_said_where_nothing_is_larger(rows) -> None:
    assert largest_at_small_delta(rows, "add_or_remove_one") is None
