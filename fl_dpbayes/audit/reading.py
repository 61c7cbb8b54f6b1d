"""The plans that an audit asks for, and the noisy sums that an attacker reads off released states.

A plan is the scenario's own, with the changes that let an attacker read what happened.
docs/audit.md shows how a released state is linear in the noisy sums behind it.
"""

import math
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
# Keeps a vector of zeros from being divided by.
LEAST_LENGTH = 1e-30


def private_settings(scenario: Scenario) -> PrivacyPlan:
    """Return a scenario's privacy settings.

    Args:
        scenario: To be audited.

    Returns:
        The settings of its private training.

    Raises:
        UserError: If it has none, so that there is nothing to audit.
    """
    if not isinstance(scenario.privacy, PrivacyPlan):
        raise UserError(
            f"sampler.kind is {scenario.sampler.kind!r}: the scenario promises no privacy, so "
            "there is nothing to audit"
        )
    return scenario.privacy


def own_plan(scenario: Scenario, *, pre_noise: float | None = None) -> TrainingPlan:
    """Return the scenario's plan, every round from a broadcast state.

    Args:
        scenario: To be audited.
        pre_noise: Replaces the scenario's; None leaves it.

    Returns:
        The plan of a single site.
    """
    plan = training_plan(scenario, prior_share=1.0, chain_start="broadcast")
    privacy = private_settings(scenario)
    if pre_noise is not None:
        privacy = privacy.model_copy(update={"pre_noise": pre_noise})
    return plan.model_copy(update={"privacy": privacy})


def with_step_size(plan: TrainingPlan, step_size: StepSizeSchedule) -> TrainingPlan:
    """Return the plan with other step sizes.

    Args:
        plan: Of any sampler.
        step_size: Its new schedule.

    Returns:
        A copy.
    """
    sampler = plan.sampler.model_copy(update={"step_size": step_size})
    return plan.model_copy(update={"sampler": sampler})


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
    """Return a plan of the same sampler, prior, clipping rule and chains, to read sums by.

    Its whole cost is admitted. The bound of global clipping keeps its ratio to C.

    Args:
        plan: The scenario's.
        clip_norm: C > 0.
        sampling_rate: q, in (0, 1].
        noise_multiplier: sigma > 0 of every step.
        move: By which a step moves the state, about; without effect on samplers that rescale.
        rounds: Of all chains together, at least.
        steps_per_round: One or more.

    Returns:
        A plan that keeps every step.
    """
    privacy = plan.privacy
    assert isinstance(privacy, PrivacyPlan)
    clipping = privacy.clipping
    if isinstance(clipping, GlobalClipping):
        bound = clipping.bound * clip_norm / privacy.clip_norm
        clipping = clipping.model_copy(update={"bound": bound})
    loud_privacy = privacy.model_copy(
        update={
            "epsilon": UNLIMITED,
            "delta": DELTA,
            "coupling": "constant",
            "noise_multiplier": noise_multiplier,
            "temperature": None,
            "clip_norm": clip_norm,
            "clipping": clipping,
            "sampling_rate": sampling_rate,
        }
    )
    chains = min(plan.chains, MOST_CHAINS)
    loud = plan.model_copy(
        update={
            "rounds": math.ceil(rounds / chains),
            "steps_per_round": steps_per_round,
            "chains": chains,
            "burn_in": 0,
            "thinning": 1,
            "privacy": loud_privacy,
        }
    )
    step_size = ADAM_STEP if plan.sampler.rescales else move * sampling_rate / clip_norm
    return with_step_size(loud, ConstantStepSize(initial=step_size))


@dataclass(frozen=True)
class Course:
    """A run at a canary site.

    Attributes:
        site: That trains.
        model: That it trains.
        plan: Of the whole run.
        run: The number that names it.
    """

    site: CanarySite
    model: Model
    plan: TrainingPlan
    run: int


@dataclass(frozen=True)
class Reading:
    """The weighted mean of a stretch's noisy sums, in units of the clip norm.

        y = sum_k v_k (G_k / C + sigma_k xi_k),   sum v_k = 1

    Attributes:
        mean: y, shape (d,), for Bayes by backprop (2 d,).
        weights: v_k, shape (steps,).
        noise_multipliers: sigma_k, as the site's ledger accounts for them.
        sampling_rate: q, as the ledger accounts for it.
        rounding: Of each entry of y by float32, shape of y.
        sample_difference: Largest difference of the last step's sample from the released state; 0
            where it is not kept, or is drawn at random.
        state: The released position, float32, empty where it is not linear in the sums.
        moment_difference: As of the function of that name, for a single step; 0 for more.
    """

    mean: Array
    weights: Array
    noise_multipliers: Array
    sampling_rate: float
    rounding: Array
    sample_difference: float
    state: npt.NDArray[np.float32]
    moment_difference: float

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in y: sqrt(sum v_k^2 sigma_k^2)."""
        return float(np.linalg.norm(self.weights * self.noise_multipliers))


def start_vectors(course: Course, start: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """Complete a start state.

    Args:
        course: Whose sampler decides which vectors there are.
        start: Name -> vector of shape (d,), `parameters` at least.

    Returns:
        Every vector of the sampler in float32, 0 where it is not in `start`.
    """
    zeros = np.zeros(len(start["parameters"]))
    return {
        name: torch.from_numpy(start.get(name, zeros)).float()
        for name in course.plan.sampler.state_vectors
    }


def train(
    course: Course, start: Arrays, round_number: int, first_step: int, steps: int
) -> tuple[TrainReply, Arrays]:
    """Have a site train a stretch from a start state.

    Args:
        course: The run.
        start: The state's arrays by name.
        round_number: From 1.
        first_step: From 0.
        steps: One or more.

    Returns:
        Its reply and release.

    Raises:
        UserError: If it does not train.
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
    """Have a site train a stretch, and read the noisy sums off what it releases.

    Args:
        course: The run.
        start: Name -> vector of shape (d,); others are 0.
        round_number: From 1.
        first_step: From 0.
        steps: One or more.

    Returns:
        What an attacker reads.

    Raises:
        UserError: If the site does not train.
    """
    plan = course.plan
    sampler = plan.sampler
    module = build_model(course.model, course.site.task, seed=0)
    algorithm = build_algorithm(sampler, module)
    before = start_vectors(course, start)
    reply, released = train(
        course,
        state_arrays(before, module),
        round_number=round_number,
        first_step=first_step,
        steps=steps,
    )
    after = state_vectors(without_prefix("last", released), sampler, module)
    step_sizes = planned_step_sizes(plan)[first_step : first_step + reply.steps]
    coefficients = _coefficients(algorithm, sampler, step_sizes)
    position = _position(before, sampler)
    data_free = algorithm.data_free_gradient(sampler.prior, position, plan.prior_share).numpy()
    pull = data_free * (coefficients.sum() / course.site.file.units)
    if sampler.rescales:
        moved = after["first_moment"].double().numpy()
        resolution = np.zeros(len(before["parameters"]))
        state = np.empty(0, np.float32)
    else:
        moved = (position - _position(after, sampler)).numpy()
        resolution = ROUNDING * position.abs().numpy()
        state = _position(after, sampler).float().numpy()
    difference = 0.0
    if reply.steps == 1:
        start_state = to_state(before, sampler, 0)
        gradient = torch.from_numpy(moved / coefficients.sum()).to(start_state.parameters)
        stepped = algorithm.step(start_state, gradient, float(step_sizes[0]))
        difference = moment_difference(stepped.vectors, after, sampler)
    privacy = plan.privacy
    scale = (
        privacy.sampling_rate * course.site.file.units / (privacy.noise_unit * coefficients.sum())
    )
    history = reply.privacy.history
    return Reading(
        mean=(moved - pull) * scale,
        weights=coefficients / coefficients.sum(),
        noise_multipliers=noise_of_steps(read_history(history))[-reply.steps :],
        sampling_rate=history[-1][1],
        rounding=(resolution + ROUNDING * np.abs(pull)) * scale,
        sample_difference=_sample_difference(plan, first_step + reply.steps - 1, released),
        state=state,
        moment_difference=difference,
    )


def read_all(course: Course, start: Mapping[str, Array], length: int) -> list[Reading]:
    """Read every stretch of a plan, each from the same start and in a round of its own.

    Args:
        course: The run.
        start: As of `read_stretch`.
        length: Steps of each stretch.

    Returns:
        A reading of each.

    Raises:
        UserError: If the site does not train.
    """
    return [
        read_stretch(
            course,
            start,
            round_number=first_step // length + 1,
            first_step=first_step,
            steps=length,
        )
        for first_step in range(0, course.plan.total_steps, length)
    ]


def moment_difference(
    expected: Mapping[str, torch.Tensor], released: Mapping[str, torch.Tensor], sampler: Sampler
) -> float:
    """Compare released momenta and moments with the expected ones: max |m' - m|_2 / |m|_2.

    Args:
        expected: m by name.
        released: m' by name.
        sampler: Says which vectors of a state are momenta and moments.

    Returns:
        The largest difference; 0 where the sampler has none.
    """
    largest = 0.0
    for name in sampler.moments:
        difference = float((released[name].double() - expected[name].double()).norm())
        length = float(expected[name].double().norm())
        largest = max(largest, difference / max(length, LEAST_LENGTH))
    return largest


def _sample_difference(plan: TrainingPlan, last_step: int, released: Arrays) -> float:
    if plan.sampler.draws_samples or not plan.is_kept(last_step):
        return 0.0
    samples = without_prefix("samples", released)
    state = without_prefix("last/parameters", released)
    return max(float(np.abs(samples[name][-1] - values).max()) for name, values in state.items())


def _position(vectors: Mapping[str, torch.Tensor], sampler: Sampler) -> torch.Tensor:
    return torch.cat([vectors[name] for name in sampler.position]).double()


def _coefficients(algorithm: Algorithm, sampler: Sampler, step_sizes: Array) -> Array:
    """Return how far each step's gradient alone moves what is read, shape (steps,).

    The steps take the place of the parameters: the gradient of step k is the k-th unit vector.
    """
    count = len(step_sizes)
    names = ("parameters", *sampler.moments)
    state = ChainState({name: torch.zeros(count, dtype=torch.float64) for name in names})
    gradients = torch.eye(count, dtype=torch.float64)
    for gradient, step_size in zip(gradients, step_sizes, strict=True):
        state = algorithm.step(state, gradient, float(step_size))
    moved = state.vectors["first_moment"] if sampler.rescales else -state.parameters
    return moved.numpy()
