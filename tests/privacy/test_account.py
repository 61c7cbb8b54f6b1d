"""What every method of accounting must do: fall with noise, rise with use, ignore the order."""

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.privacy.account import Account, account
from fl_dpbayes.privacy.events import GaussianEvent, History
from fl_dpbayes.privacy.filter import filter_orders
from fl_dpbayes.privacy.gdp import GdpMu, gdp_delta, gdp_epsilon, gdp_mu
from fl_dpbayes.privacy.rdp import ORDERS, rdp_epsilon, renyi_divergences

EVENTS = st.builds(
    GaussianEvent,
    st.floats(0.5, 10),
    st.sampled_from([1e-3, 0.01, 0.1, 0.5, 1.0]),
    st.integers(1, 20),
)
HISTORIES = st.lists(EVENTS, min_size=1, max_size=3).map(tuple)
ADJACENCIES = ["add_or_remove_one", "replace_one"]
# What discretisation may add to the privacy-loss distribution's epsilon.
OVERSHOOT = 1e-4
EXTREMES = [
    0.0,
    1e-300,
    1e-160,
    1e-10,
    *(pytest.param(sigma, marks=pytest.mark.slow) for sigma in (1e-3, 0.05)),
    1.0,
    1e6,
    1e300,
    math.inf,
]


def values_of(result: Account) -> dict[str, float]:
    return {
        "mu": result.mu,
        "pld": result.epsilon_pld,
        "rdp": result.epsilon_rdp,
        "gdp": result.epsilon_gdp if result.mu_kind == "exact" else 0.0,
    }


@given(
    history=HISTORIES,
    adjacency=st.sampled_from(ADJACENCIES),
    delta=st.sampled_from([1e-2, 1e-5, 1e-8]),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_every_method_property_rises_with_steps_rate_and_falls_with_noise(
    history, adjacency, delta
) -> None:
    first, *others = history
    base = values_of(account(history, delta, adjacency))  # type: ignore[arg-type]
    for worse in (
        replace(first, steps=first.steps + 1),
        replace(first, noise_multiplier=first.noise_multiplier * 0.99),
        replace(first, sampling_rate=min(1.0, first.sampling_rate * 1.01)),
    ):
        after = values_of(account((worse, *others), delta, adjacency))  # type: ignore[arg-type]
        for method, value in base.items():
            # Joining q = 1 turns the limit's mu into the exact one, which is another quantity.
            if method == "mu" and worse.sampling_rate == 1 > first.sampling_rate:
                continue
            allowed = OVERSHOOT * max(value, 0.1) if method == "pld" else 1e-9 * value
            assert after[method] >= value - allowed, method


@given(history=HISTORIES, adjacency=st.sampled_from(ADJACENCIES))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_no_method_property_cares_about_order_grouping_or_free_events(
    history: History, adjacency: str
) -> None:
    base = values_of(account(history, 1e-5, adjacency))  # type: ignore[arg-type]
    single = tuple(
        GaussianEvent(e.noise_multiplier, e.sampling_rate, 1)
        for e in history
        for _ in range(e.steps)
    )
    free = (GaussianEvent(0.0, 0.0, 3), GaussianEvent(0.0, 0.5, 0), GaussianEvent(math.inf, 0.5, 5))
    for same in (history[::-1], single, free + history):
        after = values_of(account(same, 1e-5, adjacency))  # type: ignore[arg-type]
        assert after == pytest.approx(base, rel=1e-9)
        assert after["pld"] == base["pld"]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("rate", [0.0, 1e-12, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("sigma", EXTREMES)
def test_no_history_raises_or_gives_nan(sigma: float, rate: float, adjacency: str) -> None:
    for steps in (0, 1, 10**6):
        result = account((GaussianEvent(sigma, rate, steps),), 1e-6, adjacency)  # type: ignore[arg-type]
        values = [result.mu, result.epsilon_pld, result.epsilon_rdp, result.epsilon_gdp]
        assert not np.isnan(values).any()
        assert min(values) >= 0
        assert result.epsilon_pld <= result.epsilon_rdp * (1 + 1e-9)
        assert result.adjacency == adjacency
        if steps == 0 or rate == 0:
            assert max(values) == 0
        elif sigma == 0:
            assert min(values) == math.inf
        elif sigma < 1e-15:
            assert result.epsilon_gdp > 1e15
            assert sigma > 1e-100 or result.epsilon_pld == math.inf
        elif sigma > 1e200 or (steps * rate < 1e-6 and sigma >= 1e-3):
            assert result.epsilon_pld == 0


@given(mu=st.floats(1e-3, 50), log_delta=st.floats(-50, -0.1))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_epsilon_property_equals_dp_accounting_and_inverts_delta(
    mu: float, log_delta: float
) -> None:
    delta = math.exp(log_delta)
    epsilon = gdp_epsilon(mu, delta)
    assert epsilon == pytest.approx(get_epsilon_gaussian(1 / mu, delta), rel=1e-9, abs=1e-9)
    if epsilon > 0:
        assert gdp_delta(mu, epsilon) == pytest.approx(delta, rel=1e-8)


def test_mu_by_hand_and_its_limit_for_replacement_is_twice_that_of_adding() -> None:
    history = (GaussianEvent(2.0, 1.0, 3), GaussianEvent(4.0, 1.0, 4), GaussianEvent(0.1, 0.0, 5))
    assert gdp_mu(history) == GdpMu(1.0, "exact")
    assert gdp_mu(history, "replace_one") == GdpMu(2.0, "exact")
    history = (GaussianEvent(1.0, 0.5, 4),)
    assert gdp_mu(history) == GdpMu(math.sqrt(math.e - 1), "clt")
    assert gdp_mu(history, "replace_one").mu == pytest.approx(
        math.sqrt(4 * math.sinh(1.0)), rel=1e-12
    )
    loud = (GaussianEvent(1000.0, 0.1, 4),)
    assert gdp_mu(loud, "replace_one").mu == pytest.approx(2 * gdp_mu(loud).mu, rel=1e-6)


def test_epsilon_edges() -> None:
    assert gdp_mu(()) == GdpMu(0.0, "exact")
    edges = [gdp_epsilon(*edge) for edge in ((0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0))]
    assert edges == [0, math.inf, math.inf, 0]
    assert [gdp_delta(*edge) for edge in ((math.inf, 3.0), (1.0, math.inf))] == [1, 0]


# Renyi differential privacy.

MANY_EVENTS = st.builds(
    GaussianEvent,
    st.floats(0.3, 20),
    st.sampled_from([1e-4, 0.01, 0.3, 0.9, 1.0]),
    st.integers(0, 500),
)
MANY_HISTORIES = st.lists(MANY_EVENTS, max_size=5).map(tuple)


def of_dp_accounting(history: tuple[GaussianEvent, ...], orders: list[float]) -> np.ndarray:
    accountant = RdpAccountant(orders)
    for event in history:
        noise = dp_accounting.GaussianDpEvent(event.noise_multiplier)
        accountant.compose(
            dp_accounting.PoissonSampledDpEvent(event.sampling_rate, noise), event.steps
        )
    return accountant.rdp


@given(history=MANY_HISTORIES)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_divergences_property_equal_dp_accounting_at_whole_orders(
    history: tuple[GaussianEvent, ...],
) -> None:
    of_filters = {
        order
        for limits in ((0.5, 1e-6), (3.0, 1e-5), (8.0, 1e-3))
        for order in filter_orders(*limits)
    }
    orders = sorted({2.0, 3.0, 8.0, 33.0} | of_filters)
    expected = of_dp_accounting(tuple(event for event in history if event.steps), orders)
    assert renyi_divergences(history, orders) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_divergences_between_whole_orders_lie_above_the_exact_ones() -> None:
    history = (GaussianEvent(1.0, 0.05, 100),)
    orders = [1.1, 1.5, 2.5, 3.75, 7.3]
    exact = of_dp_accounting(history, orders)
    ours = renyi_divergences(history, orders)
    assert np.all(ours >= exact * (1 - 1e-9))
    assert np.all(ours <= of_dp_accounting(history, [2.0, 2.0, 3.0, 4.0, 8.0]) * (1 + 1e-9))


@given(
    first=MANY_HISTORIES,
    second=MANY_HISTORIES,
    adjacency=st.sampled_from(["add_or_remove_one", "replace_one"]),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_divergences_property_add_over_events(
    first: History, second: History, adjacency: str
) -> None:
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
    for rate, adjacency, expected in (
        (1.0, "add_or_remove_one", 3.0),
        (1.0, "replace_one", 12.0),
        (1 - 1e-12, "add_or_remove_one", 3.0),
    ):
        found = renyi_divergences((GaussianEvent(2.0, rate, 8),), [3.0], adjacency)
        assert found[0] == pytest.approx(expected, rel=1e-9 if rate < 1 else 1e-12)


def test_epsilon_equals_that_of_dp_accounting_and_an_order_of_one_is_refused() -> None:
    history = (GaussianEvent(1.0, 0.01, 1000),)
    expected = dp_accounting.rdp.compute_epsilon(list(ORDERS), renyi_divergences(history), 1e-5)[0]
    assert rdp_epsilon(history, 1e-5) == pytest.approx(expected, rel=1e-12)
    result = account(history, 1e-5)
    assert (
        result.epsilon_gdp < result.epsilon_pld < result.epsilon_rdp == rdp_epsilon(history, 1e-5)
    )
    with pytest.raises(ValueError, match="above 1"):
        renyi_divergences((), [1.0])
