import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.posterior.natural import NaturalGaussian, floored


@settings(deadline=None, derandomize=True, max_examples=40)
@given(seed=st.integers(0, 1000), size=st.integers(1, 5))
def test_natural_arithmetic_property(seed, size):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(size, size + 2))
    precision, mean = root @ root.T, generator.normal(size=size)
    full = NaturalGaussian(precision, precision @ mean)
    np.testing.assert_allclose((full + full).precision, full.power(2).precision, rtol=1e-9)
    np.testing.assert_allclose(full.power(3).mean, mean, rtol=1e-6, atol=1e-9)
    assert floored(full, 0.0)[1] == 0


def test_improper_product_with_a_flat_prior_is_refused():
    with pytest.raises(ValueError, match="the prior is flat"):
        floored(NaturalGaussian(np.array([1.0, -1.0]), np.zeros(2)), 0.0)


def test_floor_acts_in_the_directions_below_it():
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    full = NaturalGaussian(rotation @ np.diag([2.0, -1.0, 0.5]) @ rotation.T, np.arange(3.0))
    raised, count = floored(full, 1.0)
    assert count == 2
    np.testing.assert_allclose(raised.precision, rotation @ np.diag([2.0, 1.0, 1.0]) @ rotation.T, atol=1e-12)
    np.testing.assert_array_equal(raised.precision_mean, full.precision_mean)
