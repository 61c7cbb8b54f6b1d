import math

import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.gdp import GdpMu, gdp_delta, gdp_epsilon, gdp_mu


@given(mu=st.floats(1e-3, 50), log_delta=st.floats(-50, -0.1))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_epsilon_property_equals_dp_accounting_and_inverts_delta(mu: float, log_delta: float) -> None:
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
    assert gdp_mu(history, "replace_one").mu == pytest.approx(math.sqrt(4 * math.sinh(1.0)), rel=1e-12)
    loud = (GaussianEvent(1000.0, 0.1, 4),)
    assert gdp_mu(loud, "replace_one").mu == pytest.approx(2 * gdp_mu(loud).mu, rel=1e-6)


def test_epsilon_edges() -> None:
    assert gdp_mu(()) == GdpMu(0.0, "exact")
    assert gdp_epsilon(0.0, 1e-5) == 0
    assert gdp_epsilon(math.inf, 1e-5) == math.inf
    assert gdp_epsilon(1.0, 0.0) == math.inf
    assert gdp_epsilon(1.0, 1.0) == 0
    assert gdp_delta(math.inf, 3.0) == 1
    assert gdp_delta(1.0, math.inf) == 0
