import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.privacy.events import GaussianEvent, History
from fl_dpbayes.privacy.filter import filter_orders
from fl_dpbayes.privacy.rdp import ORDERS, rdp_epsilon, renyi_divergences

EVENTS = st.builds(GaussianEvent, st.floats(0.3, 20), st.sampled_from([1e-4, 0.01, 0.3, 0.9, 1.0]), st.integers(0, 500))
HISTORIES = st.lists(EVENTS, max_size=5).map(tuple)


def of_dp_accounting(history: tuple[GaussianEvent, ...], orders: list[float]) -> np.ndarray:
    accountant = RdpAccountant(orders)
    for event in history:
        noise = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(event.sampling_rate, noise), event.steps)
    return accountant.rdp


@given(history=HISTORIES)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_divergences_property_equal_dp_accounting_at_whole_orders(history: tuple[GaussianEvent, ...]) -> None:
    of_filters = {order for limits in ((0.5, 1e-6), (3.0, 1e-5), (8.0, 1e-3)) for order in filter_orders(*limits)}
    orders = sorted({2.0, 3.0, 8.0, 33.0} | of_filters)
    expected = of_dp_accounting(tuple(event for event in history if event.steps), orders)
    assert renyi_divergences(history, orders) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_divergences_between_whole_orders_lie_above_the_exact_ones() -> None:
    history = (GaussianEvent(1.0, 0.05, 100),)
    orders = [1.1, 1.5, 2.5, 3.75, 7.3]
    exact, ours = of_dp_accounting(history, orders), renyi_divergences(history, orders)
    assert np.all(ours >= exact * (1 - 1e-9))
    assert np.all(ours <= of_dp_accounting(history, [2.0, 2.0, 3.0, 4.0, 8.0]) * (1 + 1e-9))


@given(first=HISTORIES, second=HISTORIES, adjacency=st.sampled_from(["add_or_remove_one", "replace_one"]))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_divergences_property_add_over_events(first: History, second: History, adjacency: str) -> None:
    parts = [renyi_divergences(part, adjacency=adjacency) for part in (first, second)]  # type: ignore[arg-type]
    whole = renyi_divergences(first + second, adjacency=adjacency)  # type: ignore[arg-type]
    assert whole == pytest.approx(sum(parts), rel=1e-9, abs=1e-15)
    assert np.array_equal(whole, renyi_divergences(second + first, adjacency=adjacency))  # type: ignore[arg-type]


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.01), (2.0, 0.3), (0.7, 0.1), (5.0, 0.9)])
def test_replacing_lies_above_the_divergence_by_quadrature(sigma: float, rate: float) -> None:
    x = np.linspace(-40 * sigma - 30, 40 * sigma + 30, 200_001)
    centre = np.log1p(-rate) - np.square(x / sigma) / 2
    log_p = np.logaddexp(centre, math.log(rate) - np.square((x - 1) / sigma) / 2)
    log_q = np.logaddexp(centre, math.log(rate) - np.square((x + 1) / sigma) / 2)
    scale = (x[1] - x[0]) / (sigma * math.sqrt(2 * math.pi))
    for order in (2.0, 4.0, 10.0):
        exact = math.log(np.exp(order * log_p + (1 - order) * log_q).sum() * scale) / (order - 1)
        bound = renyi_divergences((GaussianEvent(sigma, rate, 1),), [order], "replace_one")[0]
        assert bound >= exact * (1 - 1e-9)
        assert bound <= max(30 * exact, 4 * order / (2 * sigma**2))


def test_full_batch_limit_is_the_gaussian_divergence() -> None:
    history = (GaussianEvent(2.0, 1.0, 8),)
    assert renyi_divergences(history, [3.0])[0] == pytest.approx(3.0, rel=1e-12)
    assert renyi_divergences(history, [3.0], "replace_one")[0] == pytest.approx(12.0, rel=1e-12)
    almost = (GaussianEvent(2.0, 1 - 1e-12, 8),)
    assert renyi_divergences(almost, [3.0])[0] == pytest.approx(3.0, rel=1e-9)


def test_epsilon_equals_that_of_dp_accounting_and_an_order_of_one_is_refused() -> None:
    history = (GaussianEvent(1.0, 0.01, 1000),)
    expected = dp_accounting.rdp.compute_epsilon(list(ORDERS), renyi_divergences(history), 1e-5)[0]
    assert rdp_epsilon(history, 1e-5) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="above 1"):
        renyi_divergences((), [1.0])
