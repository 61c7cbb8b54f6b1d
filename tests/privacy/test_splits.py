"""Keyed splits: each unit's part depends on that unit and the key only."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.privacy.splits import parts_of_units, split_name, unit_scores

KEY = "00112233445566778899aabbccddeeff"
units_strategy = st.lists(
    st.one_of(st.text(max_size=8), st.binary(max_size=8), st.integers()), min_size=1, max_size=30
)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=60)
@given(units=units_strategy, place=st.integers(0, 30), extra=st.text(max_size=8))
def test_adding_one_patient_moves_no_other_property(units, place, extra):
    place = min(place, len(units))
    before = unit_scores(units, bytes.fromhex(KEY))
    after = unit_scores([*units[:place], extra, *units[place:]], bytes.fromhex(KEY))
    np.testing.assert_array_equal(np.delete(after, place), before)


def test_scores_are_uniform_and_independent_of_order_of_names_and_decide_the_test_part():
    names = [f"patient-{i}" for i in range(20_000)]
    scores = unit_scores(names, bytes.fromhex(KEY))
    assert 0 <= scores.min() < scores.max() < 1
    counts = np.histogram(scores, bins=20, range=(0, 1))[0]
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 19 + 5 * np.sqrt(2 * 19)
    assert abs(np.corrcoef(scores[:-1], scores[1:])[0, 1]) < 4 / np.sqrt(20_000)
    for fraction in (0.0, 0.05, 0.2, 0.5, 0.9, 1.0):
        share = (parts_of_units(names, KEY, fraction) == "test").mean()
        assert abs(share - fraction) <= 4 * np.sqrt(fraction * (1 - fraction) / 20_000)
        assert parts_of_units([], KEY, fraction).shape == (0,)


def test_key_and_type_of_the_name_matter():
    other = "ff" * 16
    assert not np.array_equal(
        parts_of_units(range(200), KEY, 0.5), parts_of_units(range(200), other, 0.5)
    )
    scores = unit_scores(["1", 1, b"1"], bytes.fromhex(KEY))
    assert len(set(scores)) == 3
    with pytest.raises(ValueError, match="float"):
        unit_scores([1.5], bytes.fromhex(KEY))
    assert (
        unit_scores(np.arange(3), bytes.fromhex(KEY)).tolist()
        == unit_scores([0, 1, 2], bytes.fromhex(KEY)).tolist()
    )


def test_name_of_a_split_tells_keys_and_fractions_apart():
    names = {
        split_name(key, fraction) for key in (KEY, "ff" * 16) for fraction in (0.0, 0.2, 0.25, 1.0)
    }
    assert len(names) == 8
    assert split_name(KEY, 1) == split_name(KEY, 1.0)
    assert split_name(KEY, 0.2, 0.0) == split_name(KEY, 0.2)
    assert len({split_name(KEY, 0.2), split_name(KEY, 0.2, 0.1), split_name(KEY, 0.1, 0.2)}) == 3
    assert KEY not in "".join(names)


def test_a_unit_is_in_exactly_one_part_and_stays_there_limit() -> None:
    units = [f"patient-{number}" for number in range(5000)]
    key = "5e" * 16
    parts = parts_of_units(units, key, 0.2, 0.1)
    assert abs((parts == "recalibration").mean() - 0.1) < 4 * np.sqrt(0.09 / 5000)
    assert np.array_equal(parts_of_units(["somebody", *units], key, 0.2, 0.1)[1:], parts)
    # A share for recalibration is taken from training, so the test part stays what it was.
    without = parts_of_units(units, key, 0.2)
    assert np.array_equal(without == "test", parts == "test")
    assert set(without) == {"test", "train"}
    assert set(parts_of_units(units, key, 0.2, 0.8)) == {"test", "recalibration"}


@pytest.mark.parametrize("key", ["", "zz"])
def test_keys_that_do_not_fit_are_refused(key) -> None:
    with pytest.raises(ValueError):
        parts_of_units(["a"], key, 0.5)
