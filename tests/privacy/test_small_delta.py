"""The largest epsilon of a run is stated at a small delta as well."""

import pytest

from fl_dpbayes.privacy.check_statement import MOST_KINDS, largest_at_small_delta
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon


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


def test_history_of_a_thousand_kinds_of_step_is_accounted_in_bounded_time(monkeypatch) -> None:
    kinds = []

    def counted(history, delta, adjacency):
        kinds.append(len(history))
        return pld_epsilon(history, delta, adjacency)

    for module in ("fl_dpbayes.privacy.check_statement",):
        monkeypatch.setattr(f"{module}.pld_epsilon", counted, raising=False)
    history = [[1.0 + number / 25, 0.05 - number / 25_000, 1] for number in range(1000)]
    row = _row("south", 1.0) | {"epsilon": 4.0, "history": history}
    found = largest_at_small_delta([row], "add_or_remove_one")
    assert found is not None
    assert max(kinds) <= MOST_KINDS
    exact = 1.4454  # of all thousand kinds, by `pld_epsilon`
    assert exact <= found["epsilon"] < 3 * exact
