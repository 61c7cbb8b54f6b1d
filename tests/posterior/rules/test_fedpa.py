import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.config.run_warning import warning
from fl_dpbayes.posterior.rules.fedpa import server_step, site_delta
from tests.analytic_targets import as_samples, exact_samples


def dense_delta(start, draws, shrinkage, prior_scale):
    count = len(draws)
    mixing = 1 / (1 + (count - 1) * shrinkage)
    covariance = np.cov(draws.T).reshape(len(start), len(start)) / prior_scale**2
    return np.linalg.solve(
        mixing * np.eye(len(start)) + (1 - mixing) * covariance, start - draws.mean(axis=0)
    )


def equal(count):
    return np.full(count, 1 / count)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    dimension=st.integers(1, 12),
    count=st.integers(2, 9),
    shrinkage=st.sampled_from([0.01, 0.4, 3.0, 100.0]),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
)
def test_woodbury_equals_dense_solve_property(seed, dimension, count, shrinkage, scale):
    generator = np.random.default_rng(seed)
    start = generator.normal(size=dimension)
    draws = generator.normal(size=(count, dimension))
    found = site_delta(start, draws, equal(count), shrinkage=shrinkage, prior_scale=scale)
    size = max(1.0, np.abs(found).max())
    np.testing.assert_allclose(
        found, dense_delta(start, draws, shrinkage, scale), rtol=0, atol=1e-9 * size
    )


def test_repeated_draws_weigh_like_weights():
    generator = np.random.default_rng(2)
    start = generator.normal(size=3)
    draws = generator.normal(size=(4, 3))
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    size = 1 / (weights**2).sum()
    mixing = 1 / (1 + (size - 1) * 0.7)
    covariance = np.cov(draws.T, aweights=weights)
    expected = np.linalg.solve(
        mixing * np.eye(3) + (1 - mixing) * covariance, start - weights @ draws
    )
    np.testing.assert_allclose(
        site_delta(start, draws, weights, shrinkage=0.7, prior_scale=1.0), expected, rtol=1e-10
    )


def fixed_point(samples, weights, shrinkage, scale):
    # The step is affine in the state: solve for the state that it does not move.
    def step(state):
        rest = {"shrinkage": shrinkage, "prior_scale": scale}
        deltas = {
            s: site_delta(state, p.arrays["w"], equal(len(p)), **rest) for s, p in samples.items()
        }
        return sum(weights[s] * delta for s, delta in deltas.items()) / sum(weights.values())

    base = step(np.zeros(3))
    matrix = np.stack([step(row) - base for row in np.eye(3)], axis=1)
    return np.linalg.solve(matrix, -base)


@pytest.mark.parametrize("convention", ["A", "B"])
def test_fixed_point_is_the_posterior_mean(linear_gaussian, convention):
    total = {"a": 12, "b": 30, "c": 60, "d": 150}
    shares = {s: n / 252 for s, n in total.items()}
    asked = {s: (0.25,) if convention == "A" else (1.0, 1 / share) for s, share in shares.items()}
    samples = {
        s: exact_samples(linear_gaussian.moments(s, *asked[s]), 8) for s in linear_gaussian.sites
    }
    weights = dict.fromkeys(total, 1.0) if convention == "A" else shares
    exact = linear_gaussian.posterior[0]
    scale = linear_gaussian.prior_scale
    covariances = {s: np.cov(p.arrays["w"].T) for s, p in samples.items()}
    means = {s: p.arrays["w"].mean(axis=0) for s, p in samples.items()}

    def shrunk_fixed_point(mixing):
        shrunk = {
            s: mixing * scale**2 * np.eye(3) + (1 - mixing) * c for s, c in covariances.items()
        }
        precisions = {s: weights[s] * np.linalg.inv(each) for s, each in shrunk.items()}
        return np.linalg.solve(
            sum(precisions.values()), sum(precisions[s] @ means[s] for s in samples)
        )

    # Without the identity's share it is the posterior mean; with it, ours is the same fixed point.
    np.testing.assert_allclose(shrunk_fixed_point(0.0), exact, rtol=0, atol=1e-10)
    for shrinkage in (0.1, 10.0, 1e4):
        found = fixed_point(samples, weights, shrinkage, scale)
        np.testing.assert_allclose(
            found, shrunk_fixed_point(1 / (1 + 7 * shrinkage)), rtol=0, atol=1e-10
        )
    coarse, fine = (
        np.abs(fixed_point(samples, weights, rho, scale) - exact).max() for rho in (1e5, 1e7)
    )
    assert coarse > 50 * fine
    # Less weight on the sample covariance falls back to FedAvg's point.
    average = sum(weights[s] * means[s] for s in samples) / sum(weights.values())
    small = fixed_point(samples, weights, 1e-9, linear_gaussian.prior_scale)
    np.testing.assert_allclose(small, average, atol=1e-6)
    assert np.abs(average - exact).max() > 0.05


def test_steps_converge_to_the_fixed_point(linear_gaussian):
    samples = {
        s: exact_samples(linear_gaussian.moments(s, 0.25), 8, temperature=2.0)
        for s in linear_gaussian.sites
    }
    cold = {s: exact_samples(linear_gaussian.moments(s, 0.25), 8) for s in linear_gaussian.sites}
    weights = dict.fromkeys(samples, 1.0)
    state = {"w": np.zeros(3)}
    scale = linear_gaussian.prior_scale
    for _ in range(400):
        state, _ = server_step(
            state, samples, weights, shrinkage=1.0, prior_scale=scale, learning_rate=0.2
        )
    expected = fixed_point(cold, weights, 1.0, scale)
    np.testing.assert_allclose(state["w"], expected, atol=1e-5)


def test_fedavg_step_and_one_sample_warning():
    samples = {
        "a": as_samples(np.array([[1.0, 2.0, 3.0]])),
        "b": as_samples(np.array([[3.0, 2.0, 1.0]])),
    }
    state, warnings = server_step(
        {"w": np.zeros(3)},
        samples,
        {"a": 1.0, "b": 3.0},
        shrinkage=1.0,
        prior_scale=1.0,
        learning_rate=1.0,
    )
    np.testing.assert_allclose(state["w"], [2.5, 2.0, 1.5])
    assert warnings == (warning("one-sample-delta", "a"), warning("one-sample-delta", "b"))
