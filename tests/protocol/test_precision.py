"""Rounding for transport: small errors, the same each time, and nothing hostile decoded."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fl_dpbayes.protocol.precision import decode_samples, encode_samples, encoded_layout, rounding_error

LARGEST = np.finfo(np.float32).max
values = arrays(np.float32, (3, 2, 2), elements=st.floats(-float(LARGEST), float(LARGEST), width=32))


def round_trip(array, precision):
    return decode_samples(encode_samples({"w": array}, precision), precision)["w"]


@given(values)
def test_float32_is_unchanged(array):
    np.testing.assert_array_equal(round_trip(array, "float32"), array)


@given(values)
def test_bfloat16_is_that_of_torch_and_stays_finite(array):
    rounded = round_trip(array, "bfloat16")
    expected = torch.tensor(array).to(torch.bfloat16).float().numpy()
    kept = np.isfinite(expected)
    np.testing.assert_array_equal(rounded[kept], expected[kept])
    assert np.isfinite(rounded).all()


@given(values)
def test_int8_is_within_half_a_scale_of_each_sample(array):
    scales = encode_samples({"w": array}, "int8")["scales/w"].astype(np.float64)
    error = np.abs(round_trip(array, "int8").astype(np.float64) - array)
    # The division by the scale is rounded too, the largest scale is cut so that nothing overflows, and below 127 of
    # the least float32 the scale is 0.
    allowed = 0.5001 * scales + np.abs(array).max(axis=(1, 2)) / 120 * (scales >= float(LARGEST) / 129) + 2e-43
    assert (error <= allowed[:, np.newaxis, np.newaxis]).all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_layout_is_that_of_what_is_encoded(precision):
    samples = {"w": np.ones((4, 2, 3), np.float32), "b": np.zeros((4, 2), np.float32)}
    sent = encode_samples(samples, precision)
    assert encoded_layout({"w": (2, 3), "b": (2,)}, 4, precision) == {n: (a.shape, a.dtype) for n, a in sent.items()}
    assert encoded_layout({"w": (2, 3)}, 0, precision) == {}


@pytest.mark.parametrize("scale", [-1.0, np.nan, np.inf, float(LARGEST)])
def test_scale_that_no_rounding_gives_is_refused(scale):
    hostile = {"samples/w": np.ones((1, 2), np.int8), "scales/w": np.array([scale], np.float32)}
    with pytest.raises(ValueError, match="no rounding gives"):
        decode_samples(hostile, "int8")


def test_level_that_no_rounding_gives_is_refused():
    hostile = {"samples/w": np.full((1, 2), -128, np.int8), "scales/w": np.ones(1, np.float32)}
    with pytest.raises(ValueError, match="no rounding gives"):
        decode_samples(hostile, "int8")


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0])
def test_infinity_and_nan_in_bfloat16_are_refused(bits):
    with pytest.raises(ValueError, match="not finite"):
        decode_samples({"samples/w": np.full((1, 2), bits, np.uint16)}, "bfloat16")


def test_bfloat16_rounds_ties_to_even():
    ties = np.array([[1 + 2**-8, 1 + 3 * 2**-8]], np.float32)
    np.testing.assert_array_equal(round_trip(ties, "bfloat16"), [[1.0, 1 + 2**-6]])


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@given(arrays(np.float32, (1, 4, 3), elements=st.floats(-1e6, 1e6, width=32)), st.sampled_from([1e-20, 1.0, 1e20]))
def test_rounding_moves_a_sample_no_farther_than_its_bound(precision, array, size):
    array = array * np.float32(size)
    decoded = round_trip(array, precision)
    distance = np.linalg.norm(decoded[0].astype(np.float64) - array[0])
    assert distance <= 1.001 * rounding_error({"w": decoded[0]}, precision) + 1e-40
