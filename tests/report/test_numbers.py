import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.report.numbers import (
    count,
    decimal,
    duration,
    interval,
    points,
    probability,
    rounded_up,
)
from fl_dpbayes.report.numbers import significant as sig


@pytest.mark.parametrize("write", [decimal, points, sig, probability, rounded_up, duration])
def test_undefined_and_infinite_limit(write):
    assert write(None) == "–"
    assert write(float("nan")) == "–"
    assert write(math.inf) == "∞"
    assert write(-math.inf) == "-∞"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (decimal(0.02134), "0.021"),
        (points(0.02134), "2.1"),
        (points(0.0), "0.0"),
        (sig(1.366), "1.37"),
        (sig(0.000012), "1.2e-5"),
        (sig(-2.5e9), "-2.5e9"),
        (sig(0.012345), "0.0123"),
        (sig(9.999), "10.0"),
        (sig(12345.0), "12,300"),
        (sig(0.0), "0"),
        (probability(1e-4), "1e-4"),
        (probability(6.25e-5), "6.25e-5"),
        (probability(0.05), "0.05"),
        (rounded_up(1.951), "1.96"),
        (rounded_up(2.0000000001), "2.00"),
        (rounded_up(0.1231), "0.124"),
        (rounded_up(1234.2), "1,235"),
        (rounded_up(0.0), "0.000"),
        (count(12345), "12,345"),
        (count(None), "–"),
        (duration(0.41), "0.41 s"),
        (duration(75), "1 min 15 s"),
        (duration(3660), "1 h 1 min"),
        (duration(59.9), "1 min 0 s"),
        (interval((0.012, 0.03), points), "[1.2, 3.0]"),
        (interval((None, 0.03), points), ""),
        (interval(None, points), ""),
    ],
)
def test_golden_texts(text, expected):
    assert text == expected


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(1e-6, 1e5))
def test_rounded_up_property_never_claims_less(epsilon):
    shown = float(rounded_up(epsilon).replace(",", ""))
    assert shown >= epsilon - 1e-6
    assert shown <= epsilon * 1.011 + 1.0 * (epsilon >= 100) + 0.001 * (epsilon < 1)
