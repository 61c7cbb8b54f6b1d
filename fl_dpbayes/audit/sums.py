"""Who joins a batch, and what each unit adds: groups of units with known gradients, and hardly any noise.

Each group's units hold the same records, so the released sum is  y = sum_g c_g clip_C(g_g) / C +
sigma xi  with c_g the number of them that joined. The auditor computes the gradients apart (plain
autograd in float64, one record at a time) and finds the c_g by least squares; what is left must be
noise.
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
EXPECTED_BATCH, LEAST_UNITS, MOST_UNITS = 30, 160, 1200
# Declared over real number of units: a sum that is divided by what it counted, not by the declared
# number, shows.
DECLARED = 0.9
REQUESTS, STRETCH = 12, 8
# With sampling the account of less noise takes long; without it is in closed form.
NOISE_SAMPLED, NOISE_FULL = 0.1, 0.01
# A single step may move the state as it likes; along a stretch the gradients must stay what they
# are.
MOVE_ALONE, MOVE_TOGETHER = 1.0, 3e-4
# Shares by which float32 and the small moves may change a mean or a sum of squares.
SLACK_OF_MEAN, SLACK_OF_SQUARES = 0.01, 0.02


@dataclass(frozen=True)
class Crowd:
    """A canary site of groups of n_g units, shape (G,), with their clipped gradients over C, shape (G, d)."""

    site: CanarySite
    start: dict[str, Array]
    clip_norm: float
    sizes: Array
    shares: Array


@dataclass(frozen=True)
class Count:
    """What one stretch says: weighted means over its steps of c_g, shape (G,), and squares left, over the noise's."""

    reading: Reading
    counts: Array
    left: float


def audit_sums(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    """Test who joins, and that sums are clipped gradients of whole units, of one record and several, and no more."""
    checks = []
    for records in RECORDS_PER_UNIT:
        crowd = _crowd(scenario, folder / f"crowd-{records}", generator, records)
        rate = scenario.privacy.sampling_rate
        questions = (
            _sampling(crowd, _counts(crowd, scenario, rate, 1, (1, STRETCH))) if rate < 1 else {}
        )
        full = _counts(crowd, scenario, 1.0, 3, (1,))
        name = f"units of {records} record{'s'[: records - 1]}"
        asked = questions | _contributions(crowd, full)
        checks += statistics.verdicts(name, asked, FALSE_ALARM / len(RECORDS_PER_UNIT))
        apart = max(row.reading.sample_apart for rows in full for row in rows)
        what = "a kept sample is the released state, to the last bit"
        checks.append(Check(name, what, apart, 0.0, "at most", finds="one bit"))
    return checks


def _crowd(scenario: Scenario, folder: Path, generator: np.random.Generator, records: int) -> Crowd:
    model, task, plan = scenario.model, scenario.data.source.task, own_plan(scenario, pre_noise=0.0)
    levels, labels = auditor.synthetic_records(task, generator, MOST_GROUPS)
    # Masks of hidden units are the site's own secret: from a zero start they reach no gradient.
    if plan.sampler.needs_hidden_units:
        start = auditor.start_vector(model, task, generator, 0.0)
    else:
        start = auditor.reaching_start(scenario, folder, generator, levels[0], int(labels[0]))
    each = [
        auditor.unit_gradient(scenario, folder, start, levels[g], int(labels[g]))
        for g in range(MOST_GROUPS)
    ]
    gradients = np.stack([records * gradient for gradient in each])
    bayes = "spread" in plan.sampler.position
    clip_norm = auditor.clip_norm_for(plan.privacy, float(np.linalg.norm(gradients, axis=1).max()))
    all_shares = (
        np.stack([auditor.clipped(each, scenario, clip_norm, spread=bayes) for each in gradients])
        / clip_norm
    )
    chosen = _independent(all_shares)
    units = math.ceil(EXPECTED_BATCH / plan.privacy.sampling_rate)
    of_group = math.ceil(min(MOST_UNITS, max(LEAST_UNITS, units)) / len(chosen))
    rows = np.repeat(chosen, of_group * records)
    names = [f"unit-{number // records}" for number in range(len(rows))]
    held, declared = (
        CanaryRecords(task, levels[rows], labels[rows], names),
        round(DECLARED * of_group * len(chosen)),
    )
    site = write_canary_site(folder / "site", scenario, held, units=declared)
    # Weight draws of no spread are the means themselves.
    vectors = {"parameters": start, "spread": np.full(len(start), -20.0)}
    return Crowd(
        site, vectors, clip_norm, np.full(len(chosen), float(of_group)), all_shares[chosen]
    )


def _independent(shares: Array) -> list[int]:
    """Choose as many groups, from the first on, as can be told apart."""
    chosen: list[int] = []
    for group in range(len(shares)):
        if np.linalg.svd(shares[[*chosen, group]], compute_uv=False)[-1] >= LEAST_SINGULAR_VALUE:
            chosen.append(group)
    return chosen


def _counts(
    crowd: Crowd, scenario: Scenario, rate: float, run: int, lengths: tuple[int, ...]
) -> list[list[Count]]:
    inverse = np.linalg.pinv(crowd.shares)
    found: list[list[Count]] = []
    for number, length in enumerate(lengths):
        noise, move = (
            NOISE_SAMPLED if rate < 1 else NOISE_FULL,
            MOVE_ALONE if length == 1 else MOVE_TOGETHER,
        )
        plan = loud_plan(
            own_plan(scenario, pre_noise=0.0),
            clip_norm=crowd.clip_norm,
            sampling_rate=rate,
            noise_multiplier=noise,
            move=move,
            rounds=REQUESTS,
            steps_per_round=length,
        )
        rows = []
        for reading in read_all(
            Course(crowd.site, scenario.model, plan, run + number), crowd.start, length
        ):
            counts = reading.mean @ inverse
            left = (
                float(np.square(reading.mean - counts @ crowd.shares).sum()) / reading.noise_std**2
            )
            rows.append(Count(reading, counts, left))
        found.append(rows)
    return found


def _sampling(crowd: Crowd, counted: list[list[Count]]) -> Questions:
    """Test that each unit joins each batch independently with the accounted probability.

    c_g ~ Binomial(n_g, q), so the weighted mean over a stretch has variance  sum_k v_k^2 n_g q (1 -
    q)  and that of the noise, sum_k v_k^2 sigma_k^2 (A A^T)^-1, A the groups' clipped gradients
    over C.
    """
    rows = [row for group in counted for row in group]
    accounted = rows[0].reading.sampling_rate
    spread = np.linalg.inv(crowd.shares @ crowd.shares.T)
    chance = crowd.sizes * accounted * (1 - accounted)
    excess, group_excess = (
        statistics.count_kurtosis(float(n), accounted) for n in (crowd.sizes.sum(), crowd.sizes[0])
    )

    def covariance(row: Count) -> Array:
        return (
            float(np.square(row.reading.weights).sum()) * np.diag(chance)
            + row.reading.noise_std**2 * spread
        )

    deviations = [row.counts - crowd.sizes * accounted for row in rows]
    variances = [float(covariance(row).sum()) for row in rows]
    steps = np.array([1 / float(np.square(row.reading.weights).sum()) for row in rows])
    weights = steps / steps.sum()
    expected = float(crowd.sizes.sum()) * accounted
    mean = float(weights @ [each.sum() for each in deviations])
    deviation = math.sqrt(float(np.square(weights) @ variances))
    sizes = sum(float(each.sum()) ** 2 / v for each, v in zip(deviations, variances, strict=True))
    whitened = [
        each @ np.linalg.solve(covariance(row), each)
        for each, row in zip(deviations, rows, strict=True)
    ]
    pairs = [pair for group in counted for pair in zip(group[0::2], group[1::2], strict=False)]
    differences = [(a.counts - b.counts, covariance(a) + covariance(b)) for a, b in pairs]
    apart = [
        float(difference @ np.linalg.solve(both, difference)) for difference, both in differences
    ]
    groups, slack = len(crowd.sizes), SLACK_OF_MEAN * expected
    squares = [
        variance_test(sizes, len(rows), "sizes of batches", kurtosis=excess),
        variance_test(
            float(np.sum(whitened)), len(rows) * groups, "groups of units", kurtosis=group_excess
        ),
        variance_test(sum(apart), len(pairs) * groups, "batches apart", kurtosis=group_excess / 2),
    ]
    joined = mean_test(mean, deviation, "all batches", unit=expected, slack=slack)
    return {
        "units join with the accounted probability": [joined],
        "units join independently, batches of one stretch and of several too": squares,
    }


def _contributions(crowd: Crowd, counted: list[list[Count]]) -> Questions:
    """Test sums over all units: the right number of clipped gradients, and nothing else."""
    rows = [row for group in counted for row in group]
    spread = np.linalg.inv(crowd.shares @ crowd.shares.T)
    counts = np.mean([row.counts for row in rows], axis=0) - crowd.sizes
    noise = math.sqrt(sum(row.reading.noise_std**2 for row in rows)) / len(rows)
    amounts: list[Finding] = []
    for group, size in enumerate(crowd.sizes.tolist()):
        deviation, where = noise * math.sqrt(spread[group, group]), f"group {group + 1}"
        amounts.append(
            mean_test(float(counts[group]), deviation, where, unit=size, slack=SLACK_OF_MEAN * size)
        )
    degrees = len(rows) * (crowd.shares.shape[1] - len(crowd.sizes))
    left = variance_test(
        sum(row.left for row in rows), degrees, "what is left", slack=SLACK_OF_SQUARES
    )
    return {
        "each unit adds its clipped gradient once": amounts,
        "the sum holds nothing but clipped gradients and noise": [left] if degrees else [],
    }
