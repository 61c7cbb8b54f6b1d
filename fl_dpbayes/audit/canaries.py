"""An attack by canaries: records that each have one input of their own and are put in by a coin.

How well the released chain betrays the canaries bounds epsilon from below. docs/proofs/audit.md
says what the attacker sees and why canaries do not touch each other.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.audit.canary_site import CanaryRecords, write_canary_site
from fl_dpbayes.audit.plans import own_plan
from fl_dpbayes.audit.reading import Course, Recording, read_steps, record
from fl_dpbayes.audit.requests import Stretch
from fl_dpbayes.config import (
    FLAT,
    SGLD,
    Classification,
    GaussianPrior,
    LogisticModel,
    Scenario,
    Task,
    TrainingPlan,
)
from fl_dpbayes.privacy import GaussianEvent, gdp_mu, solve_plan
from fl_dpbayes.privacy import audit_statistics as statistics
from fl_dpbayes.schedules import planned_step_sizes

Array = npt.NDArray[np.float64]

# Of each of the two bounds: a sound mechanism exceeds its claim with at most this chance's
# complement.
CONFIDENCE = 1 - 1e-5
MOST_CANARIES = 1500
MOST_STEPS = 200
# Beyond it hardly any guess is wrong, and fewer canaries than exp(mu^2 / 8) cannot tell a claim
# from its double.
LARGEST_MU = 2.0
# A canary's share of its gradient's length that lies outside its own column, the bias, is 1 /
# STRENGTH at most.
STRENGTH = 10.0
# Between a canary's two logits: beyond it the softmax is saturated to 1e-13.
LOGIT_GAP = 30.0
NOISE_DEVIATIONS = 6.0
# A prior that pulls more strongly than this leaves nothing of the weights.
LEAST_DECAY = 1e-3
CLASSES = 2


@dataclass(frozen=True)
class CanaryAudit:
    """What the canaries, about half of them put in, say about epsilon at delta.

    Attributes:
        canaries: Number of coins.
        units: n, declared.
        steps: Audited ones, the first of the plan.
        planned_steps: Of the whole plan.
        delta: Of all epsilons here.
        claimed: Epsilon of the audited steps, as the site's own ledger states it; may be infinite.
        gaussian_bound: Lower bound from a threshold test, read on a Gaussian trade-off curve.
        one_run_bound: Lower bound from one run's boldest guesses.
        certified: Whether the Gaussian bound is a proof.
    """

    canaries: int
    units: int
    steps: int
    planned_steps: int
    delta: float
    claimed: float
    gaussian_bound: float
    one_run_bound: float
    certified: bool

    @property
    def checks(self) -> list[statistics.Check]:
        """That no bound exceeds the claim."""
        bounds = {"Gaussian trade-off": self.gaussian_bound, "one run": self.one_run_bound}
        return [
            statistics.Check(
                part="epsilon",
                what=f"lower bound on epsilon ({name})",
                value=bound,
                limit=self.claimed,
            )
            for name, bound in bounds.items()
        ]


class Sizes(NamedTuple):
    """How many records the attacked site has.

    Attributes:
        canaries: Of which each is put in with probability 1/2.
        units: n, declared.
        silent: Further records, which have no gradient.
    """

    canaries: int
    units: int
    silent: int


def audit_canaries(
    scenario: Scenario, folder: Path, generator: np.random.Generator, *, most: int = MOST_CANARIES
) -> CanaryAudit:
    """Plant canaries by coins, attack the release, and bound epsilon from below.

    Args:
        scenario: Whose privacy, prior and step sizes are attacked, by Langevin steps.
        folder: To write the site into.
        generator: Tosses the coins.
        most: Canaries.

    Returns:
        Epsilon as claimed and as observed.

    Raises:
        UserError: If the site does not train.
    """
    plan = _langevin_plan(scenario)
    delta = plan.privacy.delta
    sizes = canary_sizes(delta, most)
    included = generator.random(sizes.canaries) < 0.5
    length = STRENGTH * max(1.0, plan.privacy.noise_unit)
    records = _canary_records(included, sizes.silent, length)
    site = write_canary_site(folder / "canaries", scenario, records, sizes.units, delta=delta)
    sigmas = solve_plan(plan, sizes.units).noise_multipliers
    steps = _audited_steps(plan, sigmas)
    start = _start_weights(
        plan=plan, task=site.task, sigmas=sigmas[:steps], units=sizes.units, length=length
    )
    course = Course(site=site, model=LogisticModel(), plan=plan, run=1)
    recording = record(course, {"parameters": start}, Stretch(1, first_step=0, steps=steps))
    reply = recording.reply
    scores = _scores(recording, canaries=sizes.canaries, length=length)
    certified = plan.privacy.sampling_rate == 1
    # A proof needs a threshold that was fixed beforehand. Under subsampling less noise than claimed
    # lowers all ratios together, and the middle of the scores follows them.
    threshold = 0.0 if certified else float(np.median(scores))
    return CanaryAudit(
        canaries=sizes.canaries,
        units=sizes.units,
        steps=reply.steps,
        planned_steps=plan.total_steps,
        delta=delta,
        claimed=math.inf if reply.privacy.epsilon is None else reply.privacy.epsilon,
        gaussian_bound=statistics.gaussian_epsilon_bound(
            scores, included, threshold=threshold, delta=delta, confidence=CONFIDENCE
        ),
        one_run_bound=statistics.one_run_epsilon_bound(
            scores, included, guesses=sizes.canaries // 2, delta=delta, confidence=CONFIDENCE
        ),
        certified=certified,
    )


def canary_sizes(delta: float, most: int) -> Sizes:
    """Return how many records a delta below 1 / units allows.

    About half the canaries are put in, within 5 standard deviations (2.5 sqrt(m)); the site's check
    of its declared number wants that within a fifth of all units.

    Args:
        delta: In (0, 1).
        most: Canaries.

    Returns:
        Numbers of which the declared one passes the site's check.
    """
    most_units = max(1, math.ceil(1 / delta) - 1)
    canaries = max(2, min(most, int((most_units / 12.5) ** 2), 2 * most_units))
    units = min(most_units, max(canaries // 2, math.ceil(12.5 * math.sqrt(canaries))))
    return Sizes(canaries=canaries, units=units, silent=max(0, units - canaries // 2))


def _langevin_plan(scenario: Scenario) -> TrainingPlan:
    plan = own_plan(scenario, pre_noise=0.0)
    privacy = plan.privacy.model_copy(update={"clipping": FLAT})
    sampler = SGLD(step_size=plan.sampler.step_size, prior=plan.sampler.prior)
    return plan.model_copy(
        update={"burn_in": 0, "thinning": 1, "privacy": privacy, "sampler": sampler}
    )


def _canary_records(included: npt.NDArray[np.bool_], silent: int, length: float) -> CanaryRecords:
    """Make a record for each included canary, in its own column, and silent ones in the last."""
    canaries = np.flatnonzero(included)
    columns = len(included) + 1
    features = np.zeros((len(canaries) + silent, columns), np.float32)
    features[np.arange(len(canaries)), canaries] = length
    features[len(canaries) :, -1] = length
    return CanaryRecords(
        task=Task(input_shape=(columns,), outcome=Classification(classes=CLASSES)),
        features=features,
        labels=np.ones(len(features), np.int64),
    )


def _audited_steps(plan: TrainingPlan, sigmas: Array) -> int:
    """Return how many steps cost LARGEST_MU together at most."""
    rate = plan.privacy.sampling_rate
    most = min(MOST_STEPS, plan.chain_steps)
    squares = np.cumsum(
        [gdp_mu((GaussianEvent(float(sigma), rate, 1),)).mu ** 2 for sigma in sigmas[:most]]
    )
    return max(1, int(np.searchsorted(squares, LARGEST_MU**2, side="right")))


def _start_weights(
    plan: TrainingPlan, task: Task, sigmas: Array, units: int, length: float
) -> Array:
    """Set weights by which canaries stay wrongly, and silent records rightly, predicted."""
    privacy = plan.privacy
    step_sizes = planned_step_sizes(plan)[: len(sigmas)]
    batch_size = privacy.sampling_rate * units
    pull = privacy.noise_unit * float(step_sizes.sum()) / math.sqrt(2)
    noise = privacy.noise_unit / batch_size * math.sqrt(float(np.square(step_sizes * sigmas).sum()))
    drift = pull / units + pull / length**2 + NOISE_DEVIATIONS * noise
    decay = 1.0
    prior = plan.sampler.prior
    if isinstance(prior, GaussianPrior):
        decay = float(np.prod(1 - step_sizes * plan.prior_share / (units * prior.scale**2)))
    height = (LOGIT_GAP / (2 * length) + drift) / max(LEAST_DECAY, decay)
    weights = np.full(task.input_shape[0], height)
    weights[-1] = -height
    return np.concatenate([weights, -weights, np.zeros(CLASSES)])


def _scores(recording: Recording, canaries: int, length: float) -> Array:
    """Score how likely each canary was in, from the noisy sums of all steps."""
    privacy = recording.course.plan.privacy
    noise_std = recording.noise_multipliers * privacy.noise_unit
    sums = read_steps([recording]).sums
    # Behind the weights lie the biases.
    weights = sums[:, :-CLASSES].reshape(len(sums), CLASSES, -1)[:, :, :canaries]
    return statistics.log_likelihood_ratios(
        (weights[:, 0] - weights[:, 1]) * noise_std[:, None] / math.sqrt(2),
        signal=privacy.noise_unit * length / math.hypot(length, 1.0),
        noise_std=noise_std,
        sampling_rate=privacy.sampling_rate,
    )
