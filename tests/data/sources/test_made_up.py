"""Made-up inputs: of the task's shape and range, each different, equal seeds equal."""

import numpy as np
import pytest

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.data.public_records import synthetic_inputs


@pytest.mark.parametrize(("pattern", "shape"), [("noise", (3, 7, 12)), ("noise", (1, 1, 1)), ("strokes", (1, 8, 8))])
def test_pictures_have_the_shape_and_range_of_pixels(pattern, shape):
    inputs = synthetic_inputs(pattern, 20, shape, np.random.default_rng(0))
    assert inputs.shape == (20, *shape)
    assert inputs.dtype == np.float32
    assert inputs.min() >= 0
    assert inputs.max() <= 1
    if shape[-1] > 1:
        assert len(np.unique(inputs.reshape(20, -1), axis=0)) == 20
    if shape[0] == 3:
        assert inputs.std(axis=0).min() > 0.01
    np.testing.assert_array_equal(inputs, synthetic_inputs(pattern, 20, shape, np.random.default_rng(0)))


def test_pictures_are_smooth_at_different_scales():
    inputs = synthetic_inputs("noise", 400, (1, 16, 16), np.random.default_rng(1))[:, 0]
    steps = np.abs(np.diff(inputs, axis=1)).mean(axis=(1, 2))
    assert np.quantile(steps, 0.9) > 2 * np.quantile(steps, 0.1)


def test_table_values_are_standard_normal():
    inputs = synthetic_inputs("noise", 4000, (5,), np.random.default_rng(2))
    assert abs(inputs.mean()) < 4 / np.sqrt(inputs.size)
    assert abs(inputs.var() - 1) < 4 * np.sqrt(2 / inputs.size)


@pytest.mark.parametrize("shape", [(5,), (3, 8, 8), (1, 8, 9)])
def test_strokes_are_square_grey_pictures(shape):
    with pytest.raises(UserError, match="draws square grey pictures"):
        synthetic_inputs("strokes", 2, shape, np.random.default_rng(0))
