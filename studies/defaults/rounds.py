"""A federation's rounds by rule `fald`, all hospitals at once, by NumPy and without messages.

Sums, noise, weights and steps are those of a run, as a test compares; the random numbers are not.
"""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import FALD, GaussianPrior, Scenario, site_plan
from fl_dpbayes.privacy import planned_chain
from fl_dpbayes.schedules import planned_step_sizes
from studies.known_hospitals.rounds import hospital_weights

Floats = npt.NDArray[np.float64]


def run_rounds(
    features: Floats,
    labels: npt.NDArray[np.int64],
    hospital: npt.NDArray[np.int64],
    *,
    scenario: Scenario,
    generator: np.random.Generator,
) -> Floats:
    """Run a scenario's rounds.

    Args:
        features: Of training records, hospital by hospital, the first column 1, shape (N, 1 + D).
        labels: 0 .. C - 1, shape (N,).
        hospital: 0 .. K - 1, rising, each with a record, shape (N,).
        scenario: With a logistic model, rule `fald`, a Gaussian prior and flat clipping.
        generator: Draws batches and noise.

    Returns:
        The averaged states that are kept, shape (S, 1 + D, C).
    """
    units = np.bincount(hospital)
    starts = np.searchsorted(hospital, np.arange(len(units)))
    # Classes first: sums over a few columns are slow.
    targets = np.eye(scenario.data.source.task.outcome.outputs)[:, labels]
    lengths = np.linalg.norm(features, axis=1)
    weights = hospital_weights(scenario, units)
    plan = site_plan(scenario, len(units))
    privacy = plan.privacy
    noises = np.array([planned_chain(plan, size).noise_multipliers for size in units.tolist()])
    noises = noises * privacy.noise_unit
    step_sizes = planned_step_sizes(plan)
    prior = plan.sampler.prior
    assert isinstance(prior, GaussianPrior)
    pull = (plan.prior_share / (units * prior.scale**2))[:, None, None]
    batch_sizes = (privacy.sampling_rate * units)[:, None, None]
    clip_norm = privacy.clip_norm or np.inf
    state = np.zeros((features.shape[1], len(targets)))
    samples = []
    for number in range(plan.rounds):
        states = np.tile(state, (len(units), 1, 1))
        for step in range(number * plan.steps_per_round, (number + 1) * plan.steps_per_round):
            if step % plan.steps_per_round == 0:
                scores = state.T @ features.T
            else:
                scores = np.einsum("nd,ndc->cn", features, states[hospital])
            residuals = probabilities(scores) - targets
            sizes = lengths * np.sqrt(np.square(residuals).sum(axis=0))
            factors = np.minimum(1.0, clip_norm / np.maximum(sizes, np.finfo(float).tiny))
            if privacy.sampling_rate < 1:
                factors = factors * (generator.random(len(labels)) < privacy.sampling_rate)
            # Of all classes the residuals sum to 0.
            first = [
                np.add.reduceat(features * column[:, None], starts, axis=0)
                for column in residuals[:-1] * factors
            ]
            sums = np.stack([*first, -np.sum(first, axis=0)], axis=2)
            sums += noises[:, step, None, None] * generator.standard_normal(sums.shape)
            states = states - step_sizes[step] * (sums / batch_sizes + pull * states)
        state = state + bounded_mean(states - state, weights, scenario)
        steps_after_burn_in = (number + 1) * plan.steps_per_round - scenario.training.burn_in
        if (
            steps_after_burn_in > 0
            and steps_after_burn_in % scenario.training.thinning < plan.steps_per_round
        ):
            samples.append(state)
    return np.array(samples)


def bounded_mean(moves: Floats, weights: Floats, scenario: Scenario) -> Floats:
    """Average moves, none of which counts far more than the others.

    Args:
        moves: Of each hospital, shape (K, 1 + D, C).
        weights: Of the hospitals, which sum to 1, shape (K,).
        scenario: Tells the bound.
    """
    rule = scenario.aggregation
    assert isinstance(rule, FALD)
    parts = weights[:, None, None] * moves
    if rule.move_bound == "none" or len(weights) <= 2:
        return np.asarray(parts.sum(axis=0))
    lengths = np.sqrt(np.square(parts).sum(axis=(1, 2)))
    longest = rule.move_bound * np.sort(lengths)[(len(lengths) - 1) // 2]
    factors = np.minimum(1.0, longest / np.maximum(lengths, np.finfo(float).tiny))
    return np.asarray((factors[:, None, None] * parts).sum(axis=0))


def predict(samples: Floats, features: Floats) -> Floats:
    """Average the samples' probabilities.

    Args:
        samples: Shape (S, 1 + D, C).
        features: The first column 1, shape (n, 1 + D).

    Returns:
        Shape (n, C).
    """
    total = np.zeros((samples.shape[2], len(features)))
    for sample in samples:
        total += probabilities(sample.T @ features.T)
    return total.T / len(samples)


def probabilities(scores: Floats) -> Floats:
    """Return the softmax over the first axis."""
    powers = np.exp(scores - scores.max(axis=0))
    return np.asarray(powers / powers.sum(axis=0))
