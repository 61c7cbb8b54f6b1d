"""The plans that an audit asks for, and what an attacker reads from the state that a site releases: the noisy sums.

A plan is the scenario's own, with the changes that let an attacker read what happened.
docs/audit.md shows how a released state is linear in the noisy sums behind it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit.canary_site import DELTA, UNLIMITED, CanarySite, ask
from fl_dpbayes.config import (
    ConstantStepSize,
    GlobalClipping,
    Model,
    PrivacyPlan,
    Sampler,
    Scenario,
    StepSizeSchedule,
    TrainingPlan,
    training_plan,
)
from fl_dpbayes.errors import UserError
from fl_dpbayes.models import build_model
from fl_dpbayes.privacy import noise_of_steps, read_history
from fl_dpbayes.protocol import (
    Arrays,
    TrainReply,
    TrainRequest,
    arrays_digest,
    prefixed,
    without_prefix,
)
from fl_dpbayes.samplers import Algorithm, ChainState, build_algorithm, state_arrays, to_state
from fl_dpbayes.samplers.state_vectors import state_vectors
from fl_dpbayes.schedules import planned_step_sizes

Array = npt.NDArray[np.float64]

ROUNDING = float(np.finfo(np.float32).eps)
MOST_CHAINS = 4
ADAM_STEP = 1e-5


def private_settings(scenario: Scenario) -> PrivacyPlan:
    """Return a scenario's privacy settings.

    Raises UserError if it has none, so that there is nothing to audit.
    """
    if not isinstance(scenario.privacy, PrivacyPlan):
        raise UserError(
            "privacy.kind is 'none': the scenario promises no privacy, so there is nothing to audit"
        )
    return scenario.privacy


def own_plan(scenario: Scenario, *, pre_noise: float | None = None) -> TrainingPlan:
    """Return the scenario's plan, every round from a broadcast state.

    `pre_noise` replaces the scenario's.
    """
    plan = training_plan(scenario, prior_share=1.0, chain_start="broadcast")
    private = private_settings(scenario)
    changes = {} if pre_noise is None else {"pre_noise": pre_noise}
    return plan.model_copy(update={"privacy": private.model_copy(update=changes)})


def with_step_size(plan: TrainingPlan, step_size: StepSizeSchedule) -> TrainingPlan:
    """Return the plan with other step sizes."""
    return plan.model_copy(
        update={"sampler": plan.sampler.model_copy(update={"step_size": step_size})}
    )


def loud_plan(
    plan: TrainingPlan,
    *,
    clip_norm: float,
    sampling_rate: float,
    noise_multiplier: float,
    move: float,
    rounds: int,
    steps_per_round: int,
) -> TrainingPlan:
    """Return a plan of the same sampler, prior, clipping rule and chains with little noise, to read sums by.

    Its whole cost is admitted. The bound of global clipping keeps its ratio to C. A step moves the
    state by about `move`; `rounds` are of all chains together, at least.
    """
    privacy = plan.privacy
    assert isinstance(privacy, PrivacyPlan)
    clipping = privacy.clipping
    if isinstance(clipping, GlobalClipping):
        clipping = clipping.model_copy(
            update={"bound": clipping.bound * clip_norm / privacy.clip_norm}
        )
    step_size = ADAM_STEP if plan.sampler.rescales else move * sampling_rate / clip_norm
    changes = {
        "epsilon": UNLIMITED,
        "delta": DELTA,
        "coupling": "constant",
        "noise_multiplier": noise_multiplier,
        "temperature": None,
        "clip_norm": clip_norm,
        "clipping": clipping,
        "sampling_rate": sampling_rate,
    }
    chains = min(plan.chains, MOST_CHAINS)
    shape = {
        "rounds": -(-rounds // chains),
        "steps_per_round": steps_per_round,
        "chains": chains,
        "burn_in": 0,
        "thinning": 1,
        "privacy": privacy.model_copy(update=changes),
    }
    return with_step_size(plan.model_copy(update=shape), ConstantStepSize(initial=step_size))


@dataclass(frozen=True)
class Course:
    """A run at a canary site: model, plan, and the number that names it."""

    site: CanarySite
    model: Model
    plan: TrainingPlan
    run: int


@dataclass(frozen=True)
class Reading:
    """The weighted mean of a stretch's noisy sums, as the released state gives it, in units of the clip norm.

        y = sum_k v_k (G_k / C + sigma_k xi_k),   sum v_k = 1

    `mean`: y, shape (d,), for Bayes by backprop (2 d,). `weights`: v_k, shape (steps,).
    `noise_multipliers`: sigma_k, as the site's ledger accounts for them. `sampling_rate`: q, as the
    ledger accounts for it. `rounding`: of each entry of y by float32, shape of y. `sample_apart`:
    largest difference of the last step's sample from the released state; 0 where it is not kept, or
    is drawn at random. `state`: the released position, float32, empty where it is not linear in the
    sums. `rest_apart`: as of `rest_apart`, for a single step; of more it is 0.
    """

    mean: Array
    weights: Array
    noise_multipliers: Array
    sampling_rate: float
    rounding: Array
    sample_apart: float
    state: npt.NDArray[np.float32]
    rest_apart: float

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in y: sqrt(sum v_k^2 sigma_k^2)."""
        return float(np.linalg.norm(self.weights * self.noise_multipliers))


def train(
    course: Course, start: Arrays, round_number: int, first_step: int, steps: int
) -> tuple[TrainReply, Arrays]:
    """Have a site train a stretch from a start state; return its reply and release.

    UserError if it does not train.
    """
    request = TrainRequest(
        run=f"{course.run:032x}",
        round=round_number,
        task=course.site.task,
        model=course.model,
        plan=course.plan,
        first_step=first_step,
        steps=steps,
        start=arrays_digest(start),
    )
    return ask(course.site, "train", request, prefixed("start", start), TrainReply)


def read_stretch(
    course: Course, start: Mapping[str, Array], round_number: int, first_step: int, steps: int
) -> Reading:
    """Have a site train from vectors (d,), 0 where not named, and read the noisy sums off what it releases."""
    plan, sampler = course.plan, course.plan.sampler
    module = build_model(course.model, course.site.task, seed=0)
    size = len(start["parameters"])
    named = {name: start.get(name, np.zeros(size)) for name in sampler.state_vectors}
    before = {name: torch.from_numpy(values).float() for name, values in named.items()}
    reply, released = train(course, state_arrays(before, module), round_number, first_step, steps)
    after = state_vectors(without_prefix("last", released), sampler, module)
    sizes = planned_step_sizes(plan)[first_step : first_step + reply.steps]
    algorithm, position = build_algorithm(sampler, module), _position(before, sampler)
    coefficients = _coefficients(algorithm, sampler, sizes)
    data_free = algorithm.data_free_gradient(plan.sampler.prior, position, plan.prior_share).numpy()
    pull = data_free * (coefficients.sum() / course.site.file.units)
    if sampler.rescales:
        moved, resolution = after["first_moment"].double().numpy(), np.zeros(size)
    else:
        moved = (position - _position(after, sampler)).numpy()
        resolution = ROUNDING * position.abs().numpy()
    rest = 0.0
    if reply.steps == 1:
        began = to_state(before, sampler, 0)
        stepped = algorithm.step(
            began,
            torch.from_numpy(moved / coefficients.sum()).to(began.parameters),
            float(sizes[0]),
        )
        rest = rest_apart(stepped.vectors, after, sampler)
    scale = (
        plan.privacy.sampling_rate
        * course.site.file.units
        / (plan.privacy.noise_unit * coefficients.sum())
    )
    rows = reply.privacy.history
    return Reading(
        mean=(moved - pull) * scale,
        weights=coefficients / coefficients.sum(),
        sampling_rate=rows[-1][1],
        noise_multipliers=noise_of_steps(read_history(rows))[-reply.steps :],
        rounding=(resolution + ROUNDING * np.abs(pull)) * scale,
        sample_apart=_sample_apart(plan, first_step + reply.steps - 1, released),
        state=np.empty(0, np.float32)
        if sampler.rescales
        else _position(after, sampler).float().numpy(),
        rest_apart=rest,
    )


def read_all(course: Course, start: Mapping[str, Array], length: int) -> list[Reading]:
    """Read every stretch of so many steps of a plan, each from the same start and in a round of its own."""
    firsts = range(0, course.plan.total_steps, length)
    return [read_stretch(course, start, first // length + 1, first, length) for first in firsts]


def rest_apart(
    expected: Mapping[str, torch.Tensor], released: Mapping[str, torch.Tensor], sampler: Sampler
) -> float:
    """Return the largest difference of a released momentum or moment from the expected one, over that one's length.

    max |m' - m|_2 / |m|_2
    """
    apart = 0.0
    for name in sampler.moments:
        difference = float((released[name].double() - expected[name].double()).norm())
        apart = max(apart, difference / max(float(expected[name].double().norm()), 1e-30))
    return apart


def _sample_apart(plan: TrainingPlan, last_step: int, released: Arrays) -> float:
    if plan.sampler.draws_samples or not plan.is_kept(last_step):
        return 0.0
    samples, state = (
        without_prefix("samples", released),
        without_prefix("last/parameters", released),
    )
    return max(float(np.abs(samples[name][-1] - values).max()) for name, values in state.items())


def _position(vectors: Mapping[str, torch.Tensor], sampler: Sampler) -> torch.Tensor:
    return torch.cat([vectors[name] for name in sampler.position]).double()


def _coefficients(algorithm: Algorithm, sampler: Sampler, sizes: Array) -> Array:
    """Return how much each step's gradient, all others 0, moves what is read, shape (steps,)."""
    gradients = torch.eye(len(sizes), dtype=torch.float64)
    vectors = {
        name: torch.zeros(len(sizes), dtype=torch.float64)
        for name in ("parameters", *sampler.moments)
    }
    state = ChainState(vectors)
    for gradient, size in zip(gradients, sizes, strict=True):
        state = algorithm.step(state, gradient, float(size))
    return (state.vectors["first_moment"] if sampler.rescales else -state.parameters).numpy()
