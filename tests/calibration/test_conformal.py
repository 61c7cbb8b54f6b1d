from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_dpbayes.calibration.bins import FINE_BINS, bin_index
from fl_dpbayes.calibration.conformal import measure_sets, set_thresholds
from fl_dpbayes.calibration.prior_shift import label_shift_weights, prevalence_from_means
from fl_dpbayes.calibration.statistics import empty, from_batch
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


@pytest.mark.parametrize(
    ("count", "target"), [*((n, None) for n in (30, 200)), *((n, [0.1, 0.7, 0.2]) for n in (60, 300))]
)
def test_sets_cover_on_average_and_plain_ones_do_not_under_label_shift(count, target):
    generator, level, seeds = np.random.default_rng(5), 0.9, 200
    source = [0.5, 0.3, 0.2] if target is None else [0.8, 0.15, 0.05]
    weights = None if target is None else label_shift_weights(np.array(source), np.array(target))
    test = from_batch(*draw(generator, 50_000, target or source))
    plain, weighted = [], []
    for _ in range(seeds):
        calibration = from_batch(*draw(generator, count, source))
        plain.append(measure_sets(test, set_thresholds(calibration, level)).coverage)
        weighted.append(measure_sets(test, set_thresholds(calibration, level, weights)).coverage)
    # The test set's own error is that of 50,000 records.
    error = np.hypot(np.std(weighted) / seeds**0.5, (0.09 / 50_000) ** 0.5)
    assert np.mean(weighted) >= level - 3 * error
    if target is None:
        assert np.mean(plain) <= level + 1 / (count + 1) + 0.003 + 3 * error  # .003: at most a fine bin more
    else:
        assert np.mean(plain) < level - 3 * np.std(plain) / seeds**0.5


def test_prevalence_from_means_recovers_the_truth_without_labels():
    generator = np.random.default_rng(9)
    estimates = []
    source = from_batch(*draw(generator, 50_000, [0.6, 0.4]))
    for _ in range(100):
        probabilities, _ = draw(generator, 500, [0.15, 0.85])
        estimates.append(prevalence_from_means(source, from_batch(probabilities, np.zeros(500, np.int64)))[1])
    assert abs(np.mean(estimates) - 0.85) < 3 * np.std(estimates) / 10 + 0.01
    assert 0.01 < np.std(estimates) < 0.05


def test_prevalences_undefined_limit():
    one_class, both = binary([0.2, 0.9], [1, 1]), binary([0.2, 0.9], [0, 1])
    assert prevalence_from_means(one_class, both) is None
    assert prevalence_from_means(binary([0.9, 0.2], [0, 1]), both) is None  # ranks the classes the wrong way
    three = from_batch([[0.2, 0.7, 0.1]], [0])
    assert prevalence_from_means(three, three) is None
    assert label_shift_weights(np.array([1.0, 0.0]), np.array([0.5, 0.5])) is None
    assert label_shift_weights(np.array([1.0, 0.0]), np.array([1.0, 0.0])).tolist() == [1, 0]
    assert measure_sets(empty(2), np.zeros(2, np.int64)) is None
