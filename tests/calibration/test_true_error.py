import numpy as np
import pytest

from fl_dpbayes.calibration.metrics.errors import ece, ece_true, rms_debiased, rms_true
from fl_dpbayes.calibration.statistics import empty, from_batch, merge


def made_up(seed, count, power=1.0):
    """Draw labels from a law, and predict it with its log-odds multiplied by `power`."""
    generator = np.random.default_rng(seed)
    law = generator.beta(2, 2, count)
    odds = (law / (1 - law)) ** power
    truth, predicted = np.stack([1 - law, law], axis=1), np.stack([1 / (1 + odds), odds / (1 + odds)], axis=1)
    return predicted, (generator.random(count) < law).astype(int), truth


def test_by_hand():
    # One bin of 15 holds the first two: mean confidence .65, mean truth .5; the third's gap is .2.
    statistics = from_batch(
        [[0.64, 0.36], [0.34, 0.66], [1.0, 0.0]], [0, 0, 0], truth=[[0.7, 0.3], [0.7, 0.3], [0.8, 0.2]]
    )
    assert ece_true(statistics) == pytest.approx((2 * 0.15 + 0.2) / 3, abs=1e-12)
    assert rms_true(statistics) == pytest.approx(((2 * 0.15**2 + 0.2**2) / 3) ** 0.5, abs=1e-12)


def test_predicting_the_truth_has_no_error_limit():
    predicted, labels, truth = made_up(1, 500)
    statistics = from_batch(predicted, labels, truth=truth)
    assert ece_true(statistics) == pytest.approx(0, abs=1e-12)
    assert rms_true(statistics) == pytest.approx(0, abs=1e-12)
    assert ece(statistics) > 0.01


def test_it_is_the_mean_of_what_the_debiased_error_estimates():
    squares = []
    for seed in range(300):
        predicted, labels, truth = made_up(seed, 400, power=2.0)
        statistics = from_batch(predicted, labels, truth=truth)
        squares.append(rms_debiased(statistics).value ** 2 - rms_true(statistics) ** 2)
    error = np.std(squares, ddof=1) / len(squares) ** 0.5
    # Single-record bins count as 0: a bias below the tolerance at 400 records.
    assert abs(np.mean(squares)) < 3 * error
    assert rms_true(statistics) > 0.1


def test_unknown_where_one_record_has_no_truth():
    predicted, labels, truth = made_up(2, 20)
    known, unknown = from_batch(predicted, labels, truth=truth), from_batch(predicted[:1], labels[:1])
    for statistics in (merge(known, unknown), merge(unknown, known), unknown, empty(2)):
        assert ece_true(statistics) is None
        assert rms_true(statistics) is None
    assert rms_true(merge(known, empty(2))) == rms_true(known)
