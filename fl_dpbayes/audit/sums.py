"""Who joins a batch, and what each unit adds: groups of units with known gradients, little noise.

The auditor finds by least squares how many units of each group joined; what is left must be noise.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit.crowd import RECORDS_PER_UNIT, Crowd, write_crowd
from fl_dpbayes.audit.noise_questions import mean_noise_std
from fl_dpbayes.audit.plans import loud_plan, own_plan
from fl_dpbayes.audit.reading import Course, Reading, read_mean, record_all
from fl_dpbayes.config import Scenario
from fl_dpbayes.privacy import audit_statistics as statistics
from fl_dpbayes.privacy.audit_statistics import Check, Questions, mean_test, variance_test

Array = npt.NDArray[np.float64]

FALSE_ALARM = 1.5e-5
MOST_GROUPS = 8
# So many units join a batch on average, as far as a site may be so large.
EXPECTED_BATCH = 30
LEAST_UNITS = 160
MOST_UNITS = 1200
# Declared over real number of units: a sum that is divided by what it counted, not by the declared
# number, shows.
DECLARED = 0.9
REQUESTS = 12
STRETCH = 8
# With sampling the account of less noise takes long; without it is in closed form.
NOISE_SAMPLED = 0.1
NOISE_FULL = 0.01
# A single step may move the state as it likes; along a stretch the gradients must stay what they
# are.
MOVE_OF_STEP = 1.0
MOVE_OF_STRETCH = 3e-4
# Shares by which float32 and the small moves may change a mean or a sum of squares.
SLACK_OF_MEAN = 0.01
SLACK_OF_SQUARES = 0.02


@dataclass(frozen=True)
class Count:
    """How many units a stretch shows to have joined.

    Attributes:
        reading: Of the stretch.
        counts: Weighted means over its steps of c_g, shape (G,).
        residual: Sum of squares that the groups do not explain, over the variance of the noise.
    """

    reading: Reading
    counts: Array
    residual: float

    @property
    def weight(self) -> float:
        """Share of a single step's variance that is left in the mean: sum v_k^2."""
        return float(np.square(self.reading.weights).sum())


def audit_sums(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test who joins, and that sums are clipped gradients of whole units and nothing else.

    Args:
        scenario: Whose model, sampler and clipping are tested.
        folder: To write the sites into.
        generator: Draws their records and the start state.

    Returns:
        A check for each question on units of one record and of several.

    Raises:
        UserError: If no start lets gradients reach every layer.
    """
    checks = []
    rate = scenario.privacy.sampling_rate
    for records in RECORDS_PER_UNIT:
        crowd = write_crowd(
            scenario,
            folder / f"crowd-{records}",
            generator,
            groups=MOST_GROUPS,
            units=min(MOST_UNITS, max(LEAST_UNITS, math.ceil(EXPECTED_BATCH / rate))),
            records_per_unit=records,
            declared_share=DECLARED,
        )
        questions: Questions = {}
        if rate < 1:
            single_steps = _count_units(crowd, scenario, rate=rate, run=1, length=1)
            stretches = _count_units(crowd, scenario, rate=rate, run=2, length=STRETCH)
            questions = _sampling_questions(crowd, [single_steps, stretches])
        full_batches = _count_units(crowd, scenario, rate=1.0, run=3, length=1)
        questions |= _contribution_questions(crowd, full_batches)
        part = f"units of {records} record{'s'[: records - 1]}"
        checks += statistics.verdicts(part, questions, FALSE_ALARM / len(RECORDS_PER_UNIT))
    return checks


def _count_units(
    crowd: Crowd, scenario: Scenario, *, rate: float, run: int, length: int
) -> list[Count]:
    """Read requests of `length` steps each, and count the units of each group in them."""
    plan = loud_plan(
        own_plan(scenario, pre_noise=0.0),
        clip_norm=crowd.clip_norm,
        sampling_rate=rate,
        noise_multiplier=NOISE_SAMPLED if rate < 1 else NOISE_FULL,
        move=MOVE_OF_STEP if length == 1 else MOVE_OF_STRETCH,
        rounds=REQUESTS,
        steps_per_round=length,
    )
    course = Course(site=crowd.site, model=scenario.model, plan=plan, run=run)
    inverse = np.linalg.pinv(crowd.shares)
    rows = []
    for recording in record_all(course, crowd.start, length):
        reading = read_mean(recording)
        counts = reading.mean @ inverse
        squares = float(np.square(reading.mean - counts @ crowd.shares).sum())
        rows.append(Count(reading=reading, counts=counts, residual=squares / reading.noise_std**2))
    return rows


def _noise_covariance(crowd: Crowd) -> Array:
    """Return the covariance (A A^T)^-1 of least-squares counts for noise of variance 1."""
    return np.linalg.inv(crowd.shares @ crowd.shares.T).astype(np.float64)


def _whitened(deviation: Array, covariance: Array) -> float:
    return float(deviation @ np.linalg.solve(covariance, deviation))


def _sampling_questions(crowd: Crowd, by_length: list[list[Count]]) -> Questions:
    """Test that each unit joins each batch independently with the accounted probability.

    c_g ~ Binomial(n_g, q), so the weighted mean over a stretch has variance  sum_k v_k^2 n_g q (1 -
    q)  and that of the noise, sum_k v_k^2 sigma_k^2 (A A^T)^-1, A the groups' clipped gradients
    over C. `by_length`: the counts of single steps and of stretches.
    """
    rows = [count for counts in by_length for count in counts]
    accounted = rows[0].reading.sampling_rate
    groups = len(crowd.sizes)
    noise_covariance = _noise_covariance(crowd)
    binomial_covariance = np.diag(crowd.sizes * accounted * (1 - accounted))

    def covariance(count: Count) -> Array:
        return count.weight * binomial_covariance + count.reading.noise_std**2 * noise_covariance

    totals = np.empty(len(rows))
    variances = np.empty(len(rows))
    group_squares = 0.0
    for number, count in enumerate(rows):
        deviation = count.counts - crowd.sizes * accounted
        totals[number] = deviation.sum()
        variances[number] = covariance(count).sum()
        group_squares += _whitened(deviation, covariance(count))
    pairs = [pair for counts in by_length for pair in zip(counts[0::2], counts[1::2], strict=False)]
    pair_squares = sum(
        _whitened(first.counts - second.counts, covariance(first) + covariance(second))
        for first, second in pairs
    )
    # Stretches count by the number of steps that their weights are worth.
    steps = np.array([1 / count.weight for count in rows])
    weights = steps / steps.sum()
    expected = float(crowd.sizes.sum()) * accounted
    joined = mean_test(
        float(weights @ totals),
        math.sqrt(float(np.square(weights) @ variances)),
        "all batches",
        unit=expected,
        slack=SLACK_OF_MEAN * expected,
    )
    kurtosis = statistics.count_kurtosis(float(crowd.sizes.sum()), accounted)
    group_kurtosis = statistics.count_kurtosis(float(crowd.sizes[0]), accounted)
    size_squares = float((np.square(totals) / variances).sum())
    squares = [
        variance_test(size_squares, len(rows), "sizes of batches", kurtosis=kurtosis),
        variance_test(
            group_squares, len(rows) * groups, "groups of units", kurtosis=group_kurtosis
        ),
        variance_test(
            pair_squares, len(pairs) * groups, "batches apart", kurtosis=group_kurtosis / 2
        ),
    ]
    return {
        "units join with the accounted probability": [joined],
        "units join independently, batches of one stretch and of several too": squares,
    }


def _contribution_questions(crowd: Crowd, rows: list[Count]) -> Questions:
    """Test sums over all units: the right number of clipped gradients, and nothing else."""
    mean_errors = np.mean([count.counts for count in rows], axis=0) - crowd.sizes
    noise_std = mean_noise_std([count.reading.noise_std for count in rows])
    deviations = noise_std * np.sqrt(np.diag(_noise_covariance(crowd)))
    amounts = [
        mean_test(
            float(mean_errors[group]),
            float(deviations[group]),
            f"group {group + 1}",
            unit=size,
            slack=SLACK_OF_MEAN * size,
        )
        for group, size in enumerate(crowd.sizes.tolist())
    ]
    residuals = []
    degrees = len(rows) * (crowd.shares.shape[1] - len(crowd.sizes))
    # A model of fewer parameters than groups leaves nothing over.
    if degrees:
        total = sum(count.residual for count in rows)
        residuals.append(variance_test(total, degrees, "what is left", slack=SLACK_OF_SQUARES))
    return {
        "each unit adds its clipped gradient once": amounts,
        "the sum holds nothing but clipped gradients and noise": residuals,
    }
