import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.calibration.bins import FINE_BINS, bin_index
from fl_dpbayes.calibration.federation.rows import separation


def histogram(values, bins=FINE_BINS):
    return np.bincount(bin_index(np.clip(values, 0, 1), bins), minlength=bins).astype(float)


def area(first, second):
    pairs = np.asarray(second)[:, None] - np.asarray(first)
    return float((pairs > 0).mean() + (pairs == 0).mean() / 2)


def test_by_hand():
    found = separation(np.array([2.0, 1, 0]), np.array([1.0, 1, 2]))
    # Of 12 pairs 8 are in order (2 of the middle bin's second over the first bin, 6 of the last bin) and 3 tied.
    assert found.bounds.low == pytest.approx(8 / 12)
    assert found.value == pytest.approx(9.5 / 12)
    assert found.bounds.high == pytest.approx(11 / 12)


@pytest.mark.parametrize("first", [np.zeros(4), np.array([1.0, 0, 0, 0])])
def test_undefined_without_records(first):
    assert separation(first, np.zeros(4)) is None
    assert separation(np.zeros(4), first) is None


def test_ends_limit():
    one, other = np.array([50.0, 0]), np.array([0, 50.0])
    apart = separation(one, other)
    assert (apart.bounds.low, apart.value, apart.bounds.high) == (1, 1, 1)
    assert apart.interval.high == 1
    assert 0.9 < apart.interval.low < 0.95
    tied = separation(one, one)
    assert (tied.bounds.low, tied.value, tied.bounds.high) == (0, 0.5, 1)
    assert tied.interval == (0, 1)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 60), st.sampled_from([8, 60, FINE_BINS]))
def test_bounds_property_hold_the_area_of_unbinned_values(seed, m, n, bins):
    generator = np.random.default_rng(seed)
    first, second = generator.beta(1, 5, m), generator.beta(2, 3, n)
    found = separation(histogram(first, bins), histogram(second, bins))
    assert found.bounds.low - 1e-12 <= area(first, second) <= found.bounds.high + 1e-12
    assert found.value == pytest.approx(area(bin_index(first, bins), bin_index(second, bins)))
    assert found.interval.low <= found.bounds.low <= found.value <= found.bounds.high <= found.interval.high


def two_points(share):
    return lambda g, k: np.where(g.random(k) < share, 0.05, 0.95) + 1e-3 * g.random(k)


LAWS = {
    "alike": (lambda g, k: g.beta(1, 9, k), lambda g, k: g.beta(1, 9, k)),
    "shifted": (lambda g, k: g.beta(1, 9, k), lambda g, k: g.beta(2, 6, k)),
    "far": (lambda g, k: g.beta(1, 20, k), lambda g, k: g.beta(6, 6, k)),
    "wider": (lambda g, k: 0.3 + 0.02 * g.standard_normal(k), lambda g, k: 0.3 + 0.1 * g.standard_normal(k)),
    "two points": (lambda g, k: g.beta(5, 5, k), two_points(0.5)),
    "narrow above": (lambda g, k: 0.3 + 0.1 * g.standard_normal(k), lambda g, k: 0.45 + 0.02 * g.standard_normal(k)),
    "rare": (two_points(0.97), lambda g, k: 0.4 + 0.1 * g.random(k)),
}


@pytest.mark.parametrize("sizes", [(30, 30), (300, 40), (40, 300)], ids=str)
@pytest.mark.parametrize("name", LAWS)
def test_interval_covers(name, sizes):
    first, second = LAWS[name]
    generator = np.random.default_rng(7)
    whole = separation(histogram(first(generator, 200_000), 100_000), histogram(second(generator, 200_000), 100_000))
    replicates, covered = 500, 0
    for _ in range(replicates):
        found = separation(histogram(first(generator, sizes[0])), histogram(second(generator, sizes[1])))
        covered += found.interval.low <= whole.value <= found.interval.high
    error = (0.93 * 0.07 / replicates) ** 0.5
    assert covered / replicates >= 0.93 - 3 * error
