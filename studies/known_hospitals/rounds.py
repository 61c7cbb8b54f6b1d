"""A federation's rounds, all hospitals at once: what each releases, without messages and ledgers.

Sums, noise, site weights and steps are those of a `fald` run with one full-batch step a round, as a
test compares; the noise comes from another generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from fl_dpbayes.config import GaussianPrior, Scenario, site_plan
from fl_dpbayes.posterior import (
    Means,
    PooledRounds,
    expected_effects,
    pooled_round,
    weigh_sites,
)
from fl_dpbayes.privacy import planned_chain

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Released:
    """What hospitals released, in log odds.

    Attributes:
        means: Of the rounds after burn-in.
        rounds: The pooled scores of all rounds.
        samples: The states after each round past burn-in, shape (S, 1 + D).
    """

    means: Means
    rounds: PooledRounds
    samples: Floats


def run_rounds(
    features: Floats,
    outcomes: npt.NDArray[np.int64],
    hospital: npt.NDArray[np.int64],
    sites: tuple[str, ...],
    scenario: Scenario,
    generator: np.random.Generator,
) -> Released:
    """Run a scenario's rounds.

    In log odds both rows of the softmax model move at once, so that a step is twice as long, and
    scores are clipped at C / sqrt(2), with noise of sigma C / sqrt(2).

    Args:
        features: Of training patients, hospital by hospital, the first column 1, shape (N, 1 + D).
        outcomes: 0 or 1, shape (N,).
        hospital: 0 .. K - 1, rising, each with a patient, shape (N,).
        sites: Names of the hospitals in the scenario, shape (K,).
        scenario: With rule `fald`, a Gaussian prior, and constant step size and noise.
        generator: Draws the noise.

    Returns:
        What the hospitals released.
    """
    units = np.bincount(hospital)
    weights = hospital_weights(scenario, units)
    plan = site_plan(scenario, len(units))
    noises = planned_noises(scenario, units)
    prior = scenario.sampler.prior
    assert isinstance(prior, GaussianPrior)
    prior_weights = plan.prior_share * weights / units
    step_size = scenario.sampler.step_size.initial
    total = scenario.training.rounds
    state = np.zeros(features.shape[1])
    effects = np.zeros(len(units))
    rounds: list[Means] = []
    pooled: list[PooledRounds] = []
    samples: list[Floats] = []
    for number in range(total):
        states = np.tile(state, (len(units), 1))
        states[:, 0] += effects
        sums = clipped_sums(features, outcomes, hospital, states=states, scenario=scenario)
        sums = sums + noises[:, [number]] * generator.standard_normal(sums.shape)
        means = Means(
            units=units.astype(np.float64), gradients=sums, states=states, noise=noises[:, number]
        )
        pooled.append(pooled_round(means, total))
        gradient = weights @ (sums / units[:, None])
        pull = prior_weights @ states / prior.scale**2
        state = state - step_size * (2 * gradient + pull)
        if number >= scenario.training.burn_in:
            rounds.append(means)
            samples.append(state)
            effects = expected_effects(sites, means=_mean(rounds), scenario=scenario)
    return Released(means=_mean(rounds), rounds=_joined(pooled), samples=np.array(samples))


def clipped_sums(
    features: Floats,
    outcomes: npt.NDArray[np.int64],
    hospital: npt.NDArray[np.int64],
    *,
    states: Floats,
    scenario: Scenario,
) -> Floats:
    """Sum every hospital's clipped scores of the log odds, shape (K, 1 + D).

    Args:
        features: As of `run_rounds`.
        outcomes: As of `run_rounds`.
        hospital: As of `run_rounds`.
        states: Where each hospital's are taken, shape (K, 1 + D).
        scenario: Tells the clip norm.
    """
    clip_norm = (scenario.privacy.clip_norm or np.inf) / np.sqrt(2)
    first_patient = np.searchsorted(hospital, np.arange(hospital[-1] + 1))
    log_odds = (features * states[hospital]).sum(axis=1)
    residuals = expit(log_odds) - outcomes
    sizes = np.maximum(np.abs(residuals) * np.linalg.norm(features, axis=1), np.finfo(float).tiny)
    clipped = residuals * np.minimum(1.0, clip_norm / sizes)
    return np.asarray(np.add.reduceat(features * clipped[:, None], first_patient, axis=0))


def planned_noises(scenario: Scenario, units: npt.NDArray[np.int64]) -> Floats:
    """Return the standard deviation of the noise on hospitals' sums in each round, shape (K, T).

    Args:
        scenario: Plans it.
        units: Training patients of each hospital, shape (K,).
    """
    plan = site_plan(scenario, len(units))
    multipliers = [planned_chain(plan, size).noise_multipliers for size in units.tolist()]
    # In log odds half the difference of two rows' noises counts.
    return np.array(multipliers) * (plan.privacy.noise_unit / np.sqrt(2))


def hospital_weights(scenario: Scenario, units: npt.NDArray[np.int64]) -> Floats:
    """Return the hospitals' shares of the average, shape (K,)."""
    of_size = {str(number): size for number, size in enumerate(units.tolist())}
    shares, _ = weigh_sites(scenario.aggregation, of_size)
    return np.array([shares[name] for name in of_size])


def _mean(rounds: Sequence[Means]) -> Means:
    """Average rounds of equal noise."""
    return Means(
        units=rounds[0].units,
        gradients=np.mean([means.gradients for means in rounds], axis=0),
        states=np.mean([means.states for means in rounds], axis=0),
        noise=np.sqrt(np.mean([np.square(means.noise) for means in rounds], axis=0) / len(rounds)),
    )


def _joined(rounds: Sequence[PooledRounds]) -> PooledRounds:
    return PooledRounds(
        states=np.concatenate([part.states for part in rounds]),
        scores=np.concatenate([part.scores for part in rounds]),
        noises=np.concatenate([part.noises for part in rounds]),
    )
