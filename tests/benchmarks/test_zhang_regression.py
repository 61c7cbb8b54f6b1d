"""The simulations of the heteroscedastic regression, every method on them, and the privacy of the paper."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import zhang_regression as script
from benchmarks.zhang_regression import (
    DP,
    SETTINGS,
    draw_simulation,
    measure,
    median_interval,
    predicted,
)
from fl_dpbayes.privacy.gdp import gdp_epsilon


def test_simulation_has_the_stated_shape_range_and_law() -> None:
    generator = np.random.default_rng(1)
    runs = [draw_simulation(generator) for _ in range(45)]
    for run in runs:
        assert run.x.shape == run.test_x.shape == (250, 1)
        assert (np.diff(run.x[:, 0]) >= 0).all()
        assert run.x[0] <= run.test_x.min() <= run.test_x.max() <= run.x[-1]
        nearest = np.abs(run.test_x - run.x.T).argmin(axis=1)
        assert np.abs(run.function[nearest] - run.test_function).max() < 0.2
    x = np.concatenate([run.test_x[:, 0] for run in runs])
    noise = np.concatenate([run.test_y - run.test_function for run in runs])
    standard = noise / (0.3 * np.abs(x + 2))
    assert abs(standard.mean()) < 4 / np.sqrt(len(standard))
    assert abs(standard.var() - 1) < 4 * np.sqrt(2 / len(standard))
    # Differences of the function do not see the centring: E (f(a) - f(b))^2 = 2 (1 - exp(-(a - b)^2
    # / 2)).
    ratios = []
    for run in runs:
        gaps = run.function[40::50] - run.function[:-10:50]
        distances = (run.x[40::50] - run.x[:-10:50])[:, 0]
        ratios.append(np.mean(gaps**2 / (2 * (1 - np.exp(-0.5 * distances**2)))))
    assert abs(np.mean(ratios) - 1) < 4 * np.std(ratios) / np.sqrt(len(ratios))


def test_mean_and_variance_are_those_of_draws_from_the_mixture() -> None:
    generator = np.random.default_rng(0)
    draws, weights = generator.normal(size=(3, 2, 2)), np.array([1.0, 2.0, 5.0])
    which = generator.choice(3, size=400_000, p=weights / 8)
    y = draws[which, :, 0] + np.exp(draws[which, :, 1] / 2) * generator.standard_normal(
        (which.size, 2)
    )
    mean, variance = predicted(draws, weights)
    np.testing.assert_allclose(mean, y.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(variance, y.var(axis=0), rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "setting"), SETTINGS)
def test_every_method_gives_finite_values(
    method: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = replace(SETTINGS[method, setting], hidden=[8])
    monkeypatch.setattr(script, "SETTINGS", {(method, setting): narrow})
    monkeypatch.setattr(script, "STEPS", 6)
    monkeypatch.setattr(script, "BURN_IN", 3)
    values = measure(method, setting, 0, simulations=2).median()
    private = setting.startswith(DP)
    assert all(
        np.isfinite(value)
        for name, value in values.items()
        if name not in ("epsilon", "at 1/n") or private
    )
    assert np.isinf(values["epsilon"]) != private


def test_privacy_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = replace(SETTINGS["SGLD", DP], hidden=[4])
    monkeypatch.setattr(script, "SETTINGS", {("SGLD", DP): narrow})
    ours, authors = (gdp_epsilon(np.sqrt(steps) / 10, 1 / 250) for steps in (200, 201))
    measured = measure("SGLD", DP, 0, simulations=1)["at 1/n"]
    assert measured.tolist() == pytest.approx([ours], rel=1e-3)
    assert round(authors, 2) == 4.21, "the paper's value is that of the authors' 201 steps"


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    # Of 20 values: the sixth from either end, for 1 - 2 P(Binomial(20, 1/2) <= 5) = .959.
    assert median_interval(np.arange(1.0, 21.0)) == (6.0, 15.0)
    assert np.isnan(median_interval(np.arange(5.0))).all()
    generator = np.random.default_rng(0)
    held = [
        low <= np.log(2) <= high
        for low, high in map(median_interval, generator.exponential(size=(2000, 20)))
    ]
    assert abs(np.mean(held) - 0.959) < 4 * np.sqrt(0.959 * 0.041 / 2000)
