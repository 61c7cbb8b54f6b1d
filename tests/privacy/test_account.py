"""What every method of accounting must do: fall with noise, rise with use, and not care about order or grouping."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.privacy.account import Account, account
from fl_dpbayes.privacy.events import GaussianEvent, History

EVENTS = st.builds(GaussianEvent, st.floats(0.5, 10), st.sampled_from([1e-3, 0.01, 0.1, 0.5, 1.0]), st.integers(1, 20))
HISTORIES = st.lists(EVENTS, min_size=1, max_size=3).map(tuple)
ADJACENCIES = ["add_or_remove_one", "replace_one"]
# What discretisation may add to the privacy-loss distribution's epsilon.
OVERSHOOT = 1e-4
EXTREMES = [0.0, 1e-300, 1e-160, 1e-10, *(pytest.param(sigma, marks=pytest.mark.slow) for sigma in (1e-3, 0.05)), 1.0,
            1e6, 1e300, math.inf]  # fmt: skip


def values_of(result: Account) -> dict[str, float]:
    return {
        "mu": result.mu, "pld": result.epsilon_pld, "rdp": result.epsilon_rdp,
        "gdp": result.epsilon_gdp if result.mu_kind == "exact" else 0.0,
    }  # fmt: skip


@given(history=HISTORIES, adjacency=st.sampled_from(ADJACENCIES), delta=st.sampled_from([1e-2, 1e-5, 1e-8]))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_every_method_property_rises_with_steps_rate_and_falls_with_noise(history, adjacency, delta) -> None:
    first, *others = history
    base = values_of(account(history, delta, adjacency))  # type: ignore[arg-type]
    for worse in (
        replace(first, steps=first.steps + 1), replace(first, noise_multiplier=first.noise_multiplier * 0.99),
        replace(first, sampling_rate=min(1.0, first.sampling_rate * 1.01)),
    ):  # fmt: skip
        after = values_of(account((worse, *others), delta, adjacency))  # type: ignore[arg-type]
        for method, value in base.items():
            # Joining q = 1 turns the limit's mu into the exact one, which is another quantity.
            if method == "mu" and worse.sampling_rate == 1 > first.sampling_rate:
                continue
            allowed = OVERSHOOT * max(value, 0.1) if method == "pld" else 1e-9 * value
            assert after[method] >= value - allowed, method


@given(history=HISTORIES, adjacency=st.sampled_from(ADJACENCIES))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_no_method_property_cares_about_order_grouping_or_free_events(history: History, adjacency: str) -> None:
    base = values_of(account(history, 1e-5, adjacency))  # type: ignore[arg-type]
    single = tuple(GaussianEvent(e.noise_multiplier, e.sampling_rate, 1) for e in history for _ in range(e.steps))
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
