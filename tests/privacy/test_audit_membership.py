import math

import numpy as np
import pytest

from fl_dpbayes.privacy.audit_membership import loss_threshold_attack

CLAIM = {"epsilon": 1.0, "delta": 1e-5}


def test_separated_losses_limit() -> None:
    score = loss_threshold_attack(np.arange(5.0), np.arange(10.0, 13.0), **CLAIM)
    assert (score.members, score.others, score.area, score.advantage) == (5, 3, 1.0, 1.0)


def test_equal_losses_are_chance() -> None:
    score = loss_threshold_attack(np.ones(5), np.ones(3), **CLAIM)
    assert (score.area, score.advantage) == (0.5, 0.0)


def test_area_counts_pairs_by_hand() -> None:
    score = loss_threshold_attack(np.array([1.0, 3.0]), np.array([2.0, 4.0]), **CLAIM)
    assert score.area == pytest.approx(3 / 4)
    assert score.advantage == pytest.approx(1 / 2)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 5.0])
def test_advantage_bound_is_that_of_the_claim(epsilon: float) -> None:
    score = loss_threshold_attack(np.ones(2), np.ones(2), epsilon=epsilon, delta=1e-3)
    expected = (math.exp(epsilon) - 1 + 2e-3) / (math.exp(epsilon) + 1)
    assert score.advantage_bound == pytest.approx(expected, rel=1e-12)


def test_infinite_claim_limit() -> None:
    assert loss_threshold_attack(np.ones(2), np.ones(2), epsilon=math.inf, delta=1e-3).advantage_bound == 1.0


def test_standard_error_matches_the_spread_of_simulated_areas() -> None:
    generator = np.random.default_rng(0)
    scores = [
        loss_threshold_attack(generator.exponential(1.0, 80), generator.exponential(1.5, 40), **CLAIM)
        for _ in range(300)
    ]
    spread = np.std([score.area for score in scores])
    # The spread of 300 areas has a relative standard error of 4 %; the formula supposes exponential scores, as here.
    assert spread == pytest.approx(np.mean([score.area_standard_error for score in scores]), rel=0.16)
