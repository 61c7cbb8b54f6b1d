"""Correction of predictions for another prevalence."""

import numpy as np
import pytest
from scipy.special import expit

from fl_dpbayes.calibration.prior_shift import estimated_prevalence, with_prevalence
from tests.counted import normal_classes


@pytest.mark.parametrize(
    ("p", "trained", "target", "expected", "closeness"),
    [
        (0.8, 0.3, 0.3, 0.8, 1e-9),  # the same prevalence changes nothing
        # Likelihoods .9 and .3: at prevalence 1/2 p = .75, at prevalence .1 p = .09 / (.09 + .27) =
        # .25.
        (0.75, 0.5, 0.1, 0.25, 1e-8),
        # calibration.md, G8, the pneumonia parts: the log odds move by -.5460865, p to .6985090.
        (0.8, 0.7421, 0.625, expit(np.log(4) - 0.5460865), 1e-8),
        (0.5, 0.5, 0.0, 0.0, 0.0),  # a class that cannot occur gets nothing
        (1.0, 0.5, 0.0, 0.5, 0.0),  # unless it alone is predicted
    ],
)
def test_bayes_rule_at_another_prevalence_golden(p, trained, target, expected, closeness) -> None:
    found = with_prevalence(np.array([[1 - p, p]]), [1 - trained, trained], [1 - target, target])
    np.testing.assert_allclose(found, [[1 - expected, expected]], rtol=0, atol=closeness)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [[0.9, 0.1], [0.5, 0.5], [0.15, 0.6, 0.25]])
def test_estimate_finds_the_prevalence_within_its_standard_error(shares: list[float]) -> None:
    equal = np.full(len(shares), 1 / len(shares))
    found = np.array(
        [
            estimated_prevalence(
                normal_classes(np.random.default_rng(seed), 2000, shares)[0], equal
            )
            for seed in range(40)
        ]
    )
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - shares) < 4 * error).all()
    # Not by chance of a wide spread: one estimate of 2,000 records is within a few points.
    assert found.std(axis=0).max() < 0.03


def test_estimate_is_the_maximum_of_the_likelihood() -> None:
    probabilities, _ = normal_classes(np.random.default_rng(0), 500, [0.8, 0.2])
    grid = np.linspace(1e-4, 1 - 1e-4, 20_001)
    likelihood = np.log(
        np.outer(probabilities[:, 0], 1 - grid) * 2 + np.outer(probabilities[:, 1], grid) * 2
    ).sum(0)
    assert estimated_prevalence(probabilities, [0.5, 0.5])[1] == pytest.approx(
        grid[likelihood.argmax()], abs=1e-4
    )
    np.testing.assert_array_equal(
        estimated_prevalence(np.zeros((0, 2)), [0.3, 0.7]), [0.3, 0.7]
    )  # without records
