from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from fl_dpbayes.calibration.bins import FINE_BINS, bin_index
from fl_dpbayes.calibration.conformal import (
    EXACT_BINS,
    NOISED_BINS,
    measure_sets,
    private_threshold,
    set_counts,
    set_thresholds,
)
from fl_dpbayes.calibration.prior_shift import label_shift_weights, prevalence_from_means
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.privacy.planned_noise import solve_multiplier
from tests.counted import binary, normal_classes

draw = partial(normal_classes, sharpness=0.8)  # too sure of Bayes' predictions


@given(st.integers(0, 10_000), st.integers(1, 400), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_threshold_property_is_the_exact_one_rounded_down_to_an_edge(seed, count, level):
    generator = np.random.default_rng(seed)
    probabilities, labels = draw(generator, count, [0.5, 0.3, 0.2])
    rank = int(np.ceil(round((count + 1) * level, 9)))
    of_label = np.sort(probabilities[np.arange(count), labels])[::-1]
    exact = of_label[rank - 1] if rank <= count else 0.0
    first = set_thresholds(from_batch(probabilities, labels), level)
    assert first.tolist() == [bin_index(exact, FINE_BINS)] * 3

    quality = measure_sets(from_batch(probabilities, labels), first)
    sets = bin_index(probabilities, FINE_BINS) >= first
    assert quality.coverage == pytest.approx(sets[np.arange(count), labels].mean(), abs=1e-12)
    assert quality.size == pytest.approx(sets.sum(axis=1).mean(), abs=1e-12)
    assert quality.interval.low <= quality.coverage <= quality.interval.high


def test_weighted_threshold_agrees_with_sorted_records():
    generator = np.random.default_rng(4)
    probabilities, labels = draw(generator, 150, [0.5, 0.3, 0.2])
    weights = np.array([0.4, 1.0, 2.5])
    of_label = probabilities[np.arange(150), labels]
    order = np.argsort(-of_label)
    mass = np.cumsum(weights[labels][order])
    exact = [of_label[order][np.flatnonzero(mass >= 0.9 * (mass[-1] + own))[0]] for own in weights]
    thresholds = set_thresholds(from_batch(probabilities, labels), 0.9, weights) / FINE_BINS
    assert ((np.array(exact) - 1 / FINE_BINS < thresholds) & (thresholds <= exact)).all()
    # A heavy candidate must reach further down than a light one.
    assert thresholds[2] <= thresholds[1] <= thresholds[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "target"),
    [*((n, None) for n in (30, 200)), *((n, [0.1, 0.7, 0.2]) for n in (60, 300))],
)
def test_sets_cover_on_average_and_plain_ones_do_not_under_label_shift(count, target):
    generator = np.random.default_rng(5)
    level = 0.9
    seeds = 200
    source = [0.5, 0.3, 0.2] if target is None else [0.8, 0.15, 0.05]
    weights = None if target is None else label_shift_weights(np.array(source), np.array(target))
    test = from_batch(*draw(generator, 50_000, target or source))
    plain = []
    weighted = []
    for _ in range(seeds):
        calibration = from_batch(*draw(generator, count, source))
        plain.append(measure_sets(test, set_thresholds(calibration, level)).coverage)
        weighted.append(measure_sets(test, set_thresholds(calibration, level, weights)).coverage)
    # The test set's own error is that of 50,000 records.
    error = np.hypot(np.std(weighted) / seeds**0.5, (0.09 / 50_000) ** 0.5)
    assert np.mean(weighted) >= level - 3 * error
    if target is None:
        assert (
            np.mean(plain) <= level + 1 / (count + 1) + 0.003 + 3 * error
        )  # .003: at most a fine bin more
    else:
        assert np.mean(plain) < level - 3 * np.std(plain) / seeds**0.5


def test_prevalence_from_means_recovers_the_truth_without_labels():
    generator = np.random.default_rng(9)
    estimates = []
    source = from_batch(*draw(generator, 50_000, [0.6, 0.4]))
    for _ in range(100):
        probabilities, _ = draw(generator, 500, [0.15, 0.85])
        estimates.append(
            prevalence_from_means(source, from_batch(probabilities, np.zeros(500, np.int64)))[1]
        )
    assert abs(np.mean(estimates) - 0.85) < 3 * np.std(estimates) / 10 + 0.01
    assert 0.01 < np.std(estimates) < 0.05


def test_prevalences_undefined_limit():
    one_class = binary([0.2, 0.9], [1, 1])
    both = binary([0.2, 0.9], [0, 1])
    assert prevalence_from_means(one_class, both) is None
    assert (
        prevalence_from_means(binary([0.9, 0.2], [0, 1]), both) is None
    )  # ranks the classes the wrong way
    three = from_batch([[0.2, 0.7, 0.1]], [0])
    assert prevalence_from_means(three, three) is None
    assert label_shift_weights(np.array([1.0, 0.0]), np.array([0.5, 0.5])) is None
    assert label_shift_weights(np.array([1.0, 0.0]), np.array([1.0, 0.0])).tolist() == [1, 0]


@given(st.integers(0, 10_000), st.integers(1, 400), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_exact_counts_give_the_threshold_of_split_conformal(seed, count, level):
    of_label = np.random.default_rng(seed).random(count)
    rank = int(np.ceil(round((count + 1) * level, 9)))
    exact = np.sort(of_label)[::-1][rank - 1] if rank <= count else 0.0
    counts = set_counts(of_label, np.arange(count), EXACT_BINS, level).sums
    assert private_threshold(counts, 0.0, level) == bin_index(exact, EXACT_BINS) / EXACT_BINS


def test_a_unit_moves_counts_by_its_worst_record_alone():
    of_label = np.array([0.9, 0.2, 0.6])
    units = np.array([0, 0, 1])
    without = set_counts(of_label[2:], units[:1], 4, 0.9)
    whole = set_counts(of_label, units, 4, 0.9)
    assert (whole.sums - without.sums).tolist() == pytest.approx([-0.1, 1, 0, 0, 0])


PATHS = [np.ones(100), np.full(128, 0.5), np.tile([2.0, 0, 0, 0], 60), np.eye(60)[3] * 9]


@pytest.mark.parametrize("per_bin", PATHS)
def test_no_more_than_their_share_lie_below_the_threshold_on_average_whatever_the_counts(per_bin):
    generator = np.random.default_rng(11)
    std = 2.6
    repeats = 8_000
    bins = len(per_bin)
    # 101 units, of which the new one may have raised every sum by one.
    noised = [-0.1 * 100 - 1, *per_bin] + std * generator.standard_normal((repeats, bins + 1))
    below = np.cumsum([0.0, *per_bin])[
        [round(private_threshold(one, std, 0.9) * bins) for one in noised]
    ]
    assert below.mean() <= 0.1 * 101 + 3 * below.std() / repeats**0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "epsilon", "largest"), [(50, 4.0, 1.15), (100, 1.0, 1.15), (300, 1.0, 1.1)]
)
def test_private_sets_cover_over_a_thousand_hospitals_and_stay_small(count, epsilon, largest):
    generator = np.random.default_rng(12)
    hospitals = 1_000
    level = 0.9
    std = np.hypot(1, 1 - level) * solve_multiplier(epsilon, 1e-3, 1.0, 1)
    found = np.zeros((2, 2, hospitals))
    for at in range(hospitals):
        odds = generator.normal(0.6, 1.3, count + 500)
        effect = generator.normal(0, 0.5)
        p = expit(odds)
        labels = generator.random(count + 500) < expit(odds + effect)
        of_label = np.where(labels, p, 1 - p)
        for way, (bins, noise) in enumerate([(NOISED_BINS, std), (EXACT_BINS, 0.0)]):
            counts = set_counts(of_label[:count], np.arange(count), bins, level).sums
            t = private_threshold(
                counts + noise * generator.standard_normal(bins + 1), noise, level
            )
            found[:, way, at] = (
                (of_label[count:] >= t).mean(),
                np.mean([p[count:] >= t, 1 - p[count:] >= t]),
            )
    covered, sizes = found
    assert level - 3 * covered[0].std() / hospitals**0.5 <= covered[0].mean() <= level + 0.05
    assert sizes[0].mean() <= largest * sizes[1].mean()


LABEL_PROBABILITIES = st.one_of(
    st.floats(width=64),
    st.sampled_from([0.0, -0.0, 5e-324, 1.0, 1e308, -1e308, np.inf, -np.inf, np.nan]),
)


@given(
    st.lists(LABEL_PROBABILITIES, min_size=2, max_size=8), st.sampled_from([1e-4, 0.5, 0.9, 0.9999])
)
def test_a_unit_moves_counts_by_their_sensitivity_whatever_its_probabilities_are(of_label, level):
    units = np.arange(len(of_label)) // 2
    whole = set_counts(np.array(of_label), units, NOISED_BINS, level)
    assert np.isfinite(whole.sums).all()
    for unit in range(units.max() + (len(of_label) > 2)):
        kept = units != unit
        numbers = np.unique(units[kept], return_inverse=True)[1]
        if kept.any():
            without = set_counts(np.array(of_label)[kept], numbers, NOISED_BINS, level)
            assert np.linalg.norm(whole.sums - without.sums) <= whole.sensitivity


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.5001, 0.9, 0.9123, 0.999])
def test_counts_of_many_units_move_by_their_sensitivity_for_all_their_rounding(level):
    fewer, more = (
        set_counts(np.ones(count), np.arange(count), NOISED_BINS, level)
        for count in (4_000_000, 4_000_001)
    )
    assert np.linalg.norm(more.sums - fewer.sums) <= more.sensitivity
