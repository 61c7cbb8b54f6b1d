"""Correction of predictions for another prevalence."""

import numpy as np
import pytest

from fl_dpbayes.calibration.prior_shift import with_prevalence


def test_same_prevalence_changes_nothing_limit() -> None:
    probabilities = np.array([[0.2, 0.8], [0.6, 0.4]])
    np.testing.assert_allclose(with_prevalence(probabilities, [0.3, 0.7], [0.3, 0.7]), probabilities)


def test_bayes_rule_at_another_prevalence_golden() -> None:
    # Likelihoods .9 and .3: at prevalence 1/2 p = .75, at prevalence .1 p = .09 / (.09 + .27) = .25.
    found = with_prevalence(np.array([[0.25, 0.75]]), [0.5, 0.5], [0.9, 0.1])
    np.testing.assert_allclose(found, [[0.75, 0.25]])


def test_two_classes_with_known_densities_are_calibrated_after_the_correction() -> None:
    generator = np.random.default_rng(0)
    labels = (generator.random(200_000) < 0.2).astype(int)
    x = generator.normal(labels * 1.5, 1.0)
    at_half = 1 / (1 + np.exp(-1.5 * (x - 0.75)))
    corrected = with_prevalence(np.column_stack([1 - at_half, at_half]), [0.5, 0.5], [0.8, 0.2])[:, 1]
    for low in (0.05, 0.3, 0.6):
        chosen = (corrected >= low) & (corrected < low + 0.2)
        error = labels[chosen].mean() - corrected[chosen].mean()
        assert abs(error) <= 4 * np.sqrt(0.25 / chosen.sum())


def test_class_that_cannot_occur_gets_nothing() -> None:
    np.testing.assert_array_equal(with_prevalence(np.array([[0.5, 0.5]]), [0.5, 0.5], [1.0, 0.0]), [[1.0, 0.0]])
    np.testing.assert_array_equal(with_prevalence(np.array([[0.0, 1.0]]), [0.5, 0.5], [1.0, 0.0]), [[0.5, 0.5]])


@pytest.mark.parametrize(("trained", "target"), [([0.0, 1.0], [0.5, 0.5]), ([1.0], [1.0]), ([0.5, 0.5], [-0.1, 1.1])])
def test_impossible_prevalence_is_refused(trained: list[float], target: list[float]) -> None:
    with pytest.raises(ValueError, match="prevalences"):
        with_prevalence(np.array([[0.5, 0.5]]), trained, target)
