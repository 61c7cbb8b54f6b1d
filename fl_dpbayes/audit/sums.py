"""Who joins a batch, and what each unit adds: groups of units with known gradients, little noise.

Each group's units hold the same records, so the released sum is  y = sum_g c_g clip_C(g_g) / C +
sigma xi  with c_g the number of them that joined. The auditor computes the gradients apart (plain
autograd in float64) and finds the c_g by least squares; what is left must be noise.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit import gradients as auditor
from fl_dpbayes.audit.canary_site import CanaryRecords, CanarySite, write_canary_site
from fl_dpbayes.audit.reading import Course, Reading, loud_plan, own_plan, read_all
from fl_dpbayes.config import Scenario
from fl_dpbayes.privacy import audit_statistics as statistics
from fl_dpbayes.privacy.audit_statistics import Check, Finding, Questions, mean_test, variance_test

Array = npt.NDArray[np.float64]

FALSE_ALARM = 1.5e-5
RECORDS_PER_UNIT = (1, 3)
MOST_GROUPS = 8
# Below it the noise would be amplified too much when the groups are told apart.
LEAST_SINGULAR_VALUE = 0.15
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
# Scale of weight draws, before the softplus, that makes each draw the mean.
NO_SPREAD = -20.0
# Shares by which float32 and the small moves may change a mean or a sum of squares.
SLACK_OF_MEAN = 0.01
SLACK_OF_SQUARES = 0.02


@dataclass(frozen=True)
class Crowd:
    """A canary site of groups of units.

    Attributes:
        site: It declares DECLARED of its units.
        start: State to train from, name -> vector of shape (d,).
        clip_norm: C.
        sizes: Units n_g of each group, shape (G,).
        shares: Clipped gradient of a unit of each group over C, shape (G, d).
    """

    site: CanarySite
    start: dict[str, Array]
    clip_norm: float
    sizes: Array
    shares: Array

    @property
    def count_covariance(self) -> Array:
        """Covariance of the least-squares counts for noise of variance 1: (A A^T)^-1, (G, G)."""
        return np.linalg.inv(self.shares @ self.shares.T).astype(np.float64)


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
        crowd = _write_crowd(scenario, folder / f"crowd-{records}", generator, records)
        questions: Questions = {}
        if rate < 1:
            single_steps = _count_units(crowd, scenario, rate=rate, run=1, length=1)
            stretches = _count_units(crowd, scenario, rate=rate, run=2, length=STRETCH)
            questions = _sampling_questions(crowd, [single_steps, stretches])
        full_batches = _count_units(crowd, scenario, rate=1.0, run=3, length=1)
        questions |= _contribution_questions(crowd, full_batches)
        part = f"units of {records} record{'s'[: records - 1]}"
        checks += statistics.verdicts(part, questions, FALSE_ALARM / len(RECORDS_PER_UNIT))
        checks.append(
            Check(
                part=part,
                what="a kept sample is the released state, to the last bit",
                value=max(count.reading.sample_difference for count in full_batches),
                limit=0.0,
                relation="at most",
                finds="one bit",
            )
        )
    return checks


def _write_crowd(
    scenario: Scenario, folder: Path, generator: np.random.Generator, records: int
) -> Crowd:
    """Write a site of units of `records` equal records, whose gradients can be told apart."""
    task = scenario.data.source.task
    plan = own_plan(scenario, pre_noise=0.0)
    levels, labels = auditor.synthetic_records(task, generator, MOST_GROUPS)
    # Masks of hidden units are the site's own secret: from a zero start they reach no gradient.
    if plan.sampler.needs_hidden_units:
        start = auditor.start_vector(scenario.model, task, generator, 0.0)
    else:
        start = auditor.reaching_start(scenario, folder, generator, levels[0], int(labels[0]))
    gradients = records * np.stack(
        [
            auditor.unit_gradient(scenario, folder, start, levels[group], int(labels[group]))
            for group in range(MOST_GROUPS)
        ]
    )
    longest = float(np.linalg.norm(gradients, axis=1).max())
    clip_norm = auditor.clip_norm_for(plan.privacy, longest)
    has_spread = "spread" in plan.sampler.position
    clipped = np.stack(
        [
            auditor.clipped(gradient, scenario, clip_norm, spread=has_spread)
            for gradient in gradients
        ]
    )
    shares = clipped / clip_norm
    groups = _independent_groups(shares)
    wanted_units = math.ceil(EXPECTED_BATCH / plan.privacy.sampling_rate)
    group_size = math.ceil(min(MOST_UNITS, max(LEAST_UNITS, wanted_units)) / len(groups))
    rows = np.repeat(groups, group_size * records)
    site = write_canary_site(
        folder / "site",
        scenario,
        CanaryRecords(
            task=task,
            features=levels[rows],
            labels=labels[rows],
            units=[f"unit-{number // records}" for number in range(len(rows))],
        ),
        units=round(DECLARED * group_size * len(groups)),
    )
    return Crowd(
        site=site,
        start={"parameters": start, "spread": np.full(len(start), NO_SPREAD)},
        clip_norm=clip_norm,
        sizes=np.full(len(groups), float(group_size)),
        shares=shares[groups],
    )


def _independent_groups(shares: Array) -> list[int]:
    """Choose as many groups, from the first on, as can be told apart."""
    groups: list[int] = []
    for group in range(len(shares)):
        if np.linalg.svd(shares[[*groups, group]], compute_uv=False)[-1] >= LEAST_SINGULAR_VALUE:
            groups.append(group)
    return groups


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
    for reading in read_all(course, crowd.start, length):
        counts = reading.mean @ inverse
        squares = float(np.square(reading.mean - counts @ crowd.shares).sum())
        rows.append(Count(reading=reading, counts=counts, residual=squares / reading.noise_std**2))
    return rows


def _sampling_questions(crowd: Crowd, by_length: list[list[Count]]) -> Questions:
    """Test that each unit joins each batch independently with the accounted probability.

    c_g ~ Binomial(n_g, q), so the weighted mean over a stretch has variance  sum_k v_k^2 n_g q (1 -
    q)  and that of the noise, sum_k v_k^2 sigma_k^2 (A A^T)^-1, A the groups' clipped gradients
    over C. `by_length`: the counts of single steps and of stretches.
    """
    rows = [count for counts in by_length for count in counts]
    accounted = rows[0].reading.sampling_rate
    groups = len(crowd.sizes)
    noise_covariance = crowd.count_covariance
    binomial_variance = crowd.sizes * accounted * (1 - accounted)

    def covariance(count: Count) -> Array:
        weight = float(np.square(count.reading.weights).sum())
        return weight * np.diag(binomial_variance) + count.reading.noise_std**2 * noise_covariance

    deviations = [count.counts - crowd.sizes * accounted for count in rows]
    whitened = [
        deviation @ np.linalg.solve(covariance(count), deviation)
        for deviation, count in zip(deviations, rows, strict=True)
    ]
    total_deviations = [float(deviation.sum()) for deviation in deviations]
    total_variances = [float(covariance(count).sum()) for count in rows]
    total_squares = sum(
        deviation**2 / variance
        for deviation, variance in zip(total_deviations, total_variances, strict=True)
    )
    pairs = [pair for counts in by_length for pair in zip(counts[0::2], counts[1::2], strict=False)]
    pair_squares = 0.0
    for first, second in pairs:
        difference = first.counts - second.counts
        pair_covariance = covariance(first) + covariance(second)
        pair_squares += float(difference @ np.linalg.solve(pair_covariance, difference))
    # Stretches count by the number of steps that their weights are worth.
    steps = np.array([1 / float(np.square(count.reading.weights).sum()) for count in rows])
    weights = steps / steps.sum()
    expected = float(crowd.sizes.sum()) * accounted
    joined = mean_test(
        float(weights @ total_deviations),
        math.sqrt(float(np.square(weights) @ total_variances)),
        "all batches",
        unit=expected,
        slack=SLACK_OF_MEAN * expected,
    )
    kurtosis = statistics.count_kurtosis(float(crowd.sizes.sum()), accounted)
    group_kurtosis = statistics.count_kurtosis(float(crowd.sizes[0]), accounted)
    squares = [
        variance_test(total_squares, len(rows), "sizes of batches", kurtosis=kurtosis),
        variance_test(
            float(np.sum(whitened)),
            len(rows) * groups,
            "groups of units",
            kurtosis=group_kurtosis,
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
    covariance = crowd.count_covariance
    mean_errors = np.mean([count.counts for count in rows], axis=0) - crowd.sizes
    noise_std = math.sqrt(sum(count.reading.noise_std**2 for count in rows)) / len(rows)
    amounts: list[Finding] = []
    for group, size in enumerate(crowd.sizes.tolist()):
        amounts.append(
            mean_test(
                float(mean_errors[group]),
                noise_std * math.sqrt(covariance[group, group]),
                f"group {group + 1}",
                unit=size,
                slack=SLACK_OF_MEAN * size,
            )
        )
    residuals: list[Finding] = []
    degrees = len(rows) * (crowd.shares.shape[1] - len(crowd.sizes))
    # A model of fewer parameters than groups leaves nothing over.
    if degrees:
        total = sum(count.residual for count in rows)
        residuals.append(variance_test(total, degrees, "what is left", slack=SLACK_OF_SQUARES))
    return {
        "each unit adds its clipped gradient once": amounts,
        "the sum holds nothing but clipped gradients and noise": residuals,
    }
