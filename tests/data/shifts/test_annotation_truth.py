"""Truth after wrong labels: closed forms."""

import numpy as np

from fl_dpbayes.data.shifts.annotation import flipped_truth, symmetric_flips


def test_symmetric_flips_mix_with_the_other_classes():
    truth = np.random.default_rng(0).dirichlet(np.ones(3), size=50)
    rate = 0.2
    expected = (1 - rate) * truth + rate * (1 - truth) / 2
    np.testing.assert_allclose(flipped_truth(truth, symmetric_flips(3, rate)), expected, rtol=0, atol=1e-15)


def test_rows_of_the_matrix_are_right_labels():
    # Positives recorded as negatives with probability .3; negatives never.
    matrix = np.array([[1.0, 0.0], [0.3, 0.7]])
    np.testing.assert_allclose(flipped_truth(np.array([[0.2, 0.8]]), matrix), [[0.44, 0.56]], rtol=0, atol=1e-15)


def test_rates_may_differ_between_records():
    truth = np.array([[0.2, 0.8], [0.9, 0.1]])
    rates = np.stack([symmetric_flips(2, 0.0), symmetric_flips(2, 0.5)])
    np.testing.assert_allclose(flipped_truth(truth, rates), [[0.2, 0.8], [0.5, 0.5]], rtol=0, atol=1e-15)
