"""An attack on what a site releases: canaries, records that each own one input and were put in by a coin.

How well does the released chain betray the canaries? That bounds epsilon from below. docs/audit.md
says what the attacker sees and why canaries do not touch each other.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit.canary_site import CanaryRecords, write_canary_site
from fl_dpbayes.audit.reading import Course, own_plan, train
from fl_dpbayes.config import FLAT, SGLD, GaussianPrior, LogisticModel, Scenario, Task, TrainingPlan
from fl_dpbayes.models import model_shapes, prior_gradient
from fl_dpbayes.privacy import GaussianEvent, gdp_mu, noise_of_steps, read_history, solve_plan
from fl_dpbayes.privacy import audit_statistics as statistics
from fl_dpbayes.protocol import Arrays, TrainReply, prefixed
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
WEIGHT = "1.weight"


@dataclass(frozen=True)
class CanaryAudit:
    """What the canaries, about half of them put in, say about epsilon at delta.

    `units`: n, declared. `steps`: audited ones, the first of the plan. `claimed`: epsilon of the
    audited steps, as the site's own ledger states it; may be infinite. `gaussian_bound`: lower
    bound from a threshold test, read on a Gaussian trade-off curve. `one_run_bound`: lower bound
    from one run's boldest guesses. `certified`: that is a proof.
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
        said = {f"lower bound on epsilon ({name})": bound for name, bound in bounds.items()}
        return [
            statistics.Check("epsilon", what, bound, self.claimed, "at most")
            for what, bound in said.items()
        ]


def audit_canaries(
    scenario: Scenario, folder: Path, generator: np.random.Generator, *, most: int = MOST_CANARIES
) -> CanaryAudit:
    """Plant up to `most` canaries by coins of `generator`, attack the release, and bound epsilon from below."""
    plan = _langevin_plan(scenario)
    canaries, units, silent = _sizes(plan.privacy.delta, most)
    included = generator.random(canaries) < 0.5
    length = STRENGTH * max(1.0, plan.privacy.noise_unit)
    records = _records(included, silent, length)
    site = write_canary_site(
        folder / "canaries", scenario, records, units, delta=plan.privacy.delta
    )
    sigmas = solve_plan(plan, units).noise_multipliers
    steps = _audited_steps(plan, sigmas)
    start = _start(plan, site.task, sigmas[:steps], units, length)
    reply, released = train(
        Course(site, LogisticModel(), plan, 1), prefixed("parameters", start), 1, 0, steps
    )
    # The weights before and after each step, shape (steps + 1, 2, inputs).
    states = np.concatenate([start[WEIGHT][None], released[f"samples/{WEIGHT}"]]).astype(np.float64)
    scores = _scores(reply, states, plan, canaries, length)
    certified = plan.privacy.sampling_rate == 1
    # A proof needs a threshold that was fixed beforehand. Under subsampling less noise than claimed
    # lowers all ratios together, and the middle of the scores follows them.
    threshold = 0.0 if certified else float(np.median(scores))
    at = {"delta": plan.privacy.delta, "confidence": CONFIDENCE}
    return CanaryAudit(
        canaries,
        units,
        reply.steps,
        plan.total_steps,
        plan.privacy.delta,
        claimed=math.inf if reply.privacy.epsilon is None else reply.privacy.epsilon,
        gaussian_bound=statistics.gaussian_epsilon_bound(
            scores, included, threshold=threshold, **at
        ),
        one_run_bound=statistics.one_run_epsilon_bound(
            scores, included, guesses=canaries // 2, **at
        ),
        certified=certified,
    )


def _sizes(delta: float, most: int) -> tuple[int, int, int]:
    """Return how many canaries, declared units and silent records a delta below 1 / units allows.

    About half the canaries are put in, within 5 standard deviations (2.5 sqrt(m)); the site's check
    of its declared number wants that within a fifth of all units.
    """
    most_units = max(1, math.ceil(1 / delta) - 1)
    canaries = max(2, min(most, int((most_units / 12.5) ** 2), 2 * most_units))
    units = min(most_units, max(canaries // 2, math.ceil(12.5 * math.sqrt(canaries))))
    return canaries, units, max(0, units - canaries // 2)


def _langevin_plan(scenario: Scenario) -> TrainingPlan:
    plan = own_plan(scenario, pre_noise=0.0)
    privacy = plan.privacy.model_copy(update={"clipping": FLAT})
    sampler = SGLD(step_size=plan.sampler.step_size, prior=plan.sampler.prior)
    return plan.model_copy(
        update={"burn_in": 0, "thinning": 1, "privacy": privacy, "sampler": sampler}
    )


def _records(included: npt.NDArray[np.bool_], silent: int, length: float) -> CanaryRecords:
    chosen, columns = np.flatnonzero(included), len(included) + 1
    features = np.zeros((len(chosen) + silent, columns), np.float32)
    features[np.arange(len(chosen)), chosen] = length
    features[len(chosen) :, -1] = length
    names = [f"unit-{number}" for number in range(len(features))]
    return CanaryRecords(
        Task(input_shape=(columns,), classes=2), features, np.ones(len(features), np.int64), names
    )


def _audited_steps(plan: TrainingPlan, sigmas: Array) -> int:
    rate, most = plan.privacy.sampling_rate, min(MOST_STEPS, plan.chain_steps)
    squares = np.cumsum(
        [gdp_mu((GaussianEvent(float(sigma), rate, 1),)).mu ** 2 for sigma in sigmas[:most]]
    )
    return max(1, int(np.searchsorted(squares, LARGEST_MU**2, side="right")))


def _start(plan: TrainingPlan, task: Task, sigmas: Array, units: int, length: float) -> Arrays:
    """Set the weights so that every canary stays wrongly, and the silent records rightly, predicted to the end."""
    privacy = plan.privacy
    sizes = planned_step_sizes(plan)[: len(sigmas)]
    batch_size = privacy.sampling_rate * units
    pull = privacy.noise_unit * float(sizes.sum()) / math.sqrt(2)
    noise = privacy.noise_unit / batch_size * math.sqrt(float(np.square(sizes * sigmas).sum()))
    drift = pull / units + pull / length**2 + NOISE_DEVIATIONS * noise
    decay = 1.0
    if isinstance(plan.sampler.prior, GaussianPrior):
        decay = float(np.prod(1 - sizes * plan.prior_share / (units * plan.sampler.prior.scale**2)))
    height = (LOGIT_GAP / (2 * length) + drift) / max(1e-3, decay)
    weights = np.full(task.input_shape[0], height, np.float32)
    weights[-1] = -height
    zeros = {
        name: np.zeros(shape, np.float32)
        for name, shape in model_shapes(LogisticModel(), task).items()
    }
    return zeros | {WEIGHT: np.stack([weights, -weights])}


def _scores(
    reply: TrainReply, states: Array, plan: TrainingPlan, canaries: int, length: float
) -> Array:
    # The noisy sums: G_t + sigma_t C xi_t = (w_t - w_{t+1}) B / a_t + (B s / n) grad log p(w_t).
    sizes = planned_step_sizes(plan)[: len(states) - 1, None, None]
    prior = prior_gradient(plan.sampler.prior, torch.from_numpy(states[:-1])).numpy()
    pull = plan.prior_share / reply.privacy.units * prior
    sums = (
        ((states[:-1] - states[1:]) / sizes + pull)
        * plan.privacy.sampling_rate
        * reply.privacy.units
    )
    return statistics.log_likelihood_ratios(
        (sums[:, 0, :canaries] - sums[:, 1, :canaries]) / math.sqrt(2),
        signal=plan.privacy.noise_unit * length / math.hypot(length, 1.0),
        noise_std=noise_of_steps(read_history(reply.privacy.history))[: len(sizes)]
        * plan.privacy.noise_unit,
        sampling_rate=plan.privacy.sampling_rate,
    )
