import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.posterior.samples import PosteriorSamples, concatenate


def samples_of(count, start=0):
    numbers = np.arange(start, start + count)
    values = numbers.astype(np.float32)[:, None].repeat(2, axis=1)
    return PosteriorSamples({"w": values}, 1.0 + numbers, 0.5 + numbers)


def test_concatenation_keeps_order_and_weights():
    joined = concatenate([samples_of(2), samples_of(3, start=2)])
    whole = samples_of(5)
    np.testing.assert_array_equal(joined.arrays["w"], whole.arrays["w"])
    np.testing.assert_array_equal(joined.weights, whole.weights)
    np.testing.assert_array_equal(joined.temperatures, whole.temperatures)


def test_thinning_by_hand():
    thinned = samples_of(6).thinned(3)
    assert thinned.arrays["w"][:, 0].tolist() == [1, 3, 5]
    assert thinned.weights.tolist() == [1 + 2, 3 + 4, 5 + 6]
    assert thinned.temperatures.tolist() == [1.5, 3.5, 5.5]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(count=st.integers(1, 60), kept=st.integers(1, 70))
def test_thinning_keeps_total_weight_and_even_spacing_property(count, kept):
    thinned = samples_of(count).thinned(kept)
    assert len(thinned) == min(count, kept)
    assert thinned.weights.sum() == pytest.approx(samples_of(count).weights.sum())
    gaps = np.diff(thinned.arrays["w"][:, 0], prepend=-1)
    assert gaps.max() - gaps.min() <= 1
    assert thinned.arrays["w"][-1, 0] == count - 1


@pytest.mark.parametrize(
    ("weights", "temperatures", "message"),
    [
        ([1.0], [1.0, 1.0], "one entry per sample"),
        ([-1.0, 2.0], [1.0, 1.0], "weights must be finite"),
        ([1.0, 1.0], [1.0, np.inf], "temperatures must be finite"),
        ([0.0, 0.0], [1.0, 1.0], "not all be 0"),
    ],
)
def test_inconsistent_samples_are_refused(weights, temperatures, message):
    with pytest.raises(ValueError, match=message):
        PosteriorSamples({"w": np.zeros((2, 3), np.float32)}, np.array(weights), np.array(temperatures))


def test_different_models_cannot_be_joined():
    other = PosteriorSamples({"v": np.zeros((1, 2), np.float32)}, np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="different parameter names"):
        concatenate([samples_of(1), other])
    with pytest.raises(ValueError, match="nothing to concatenate"):
        concatenate([])
