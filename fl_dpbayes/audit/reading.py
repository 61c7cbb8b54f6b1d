"""The noisy sums that an attacker reads off what a site releases of its training.

A step is affine in its gradient, so two states that follow each other give the sum between them,
and the last state of a stretch gives the weighted mean of its sums (docs/proofs/audit.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit.canary_site import CanarySite, ask
from fl_dpbayes.audit.requests import Stretch, stretches_of, train_request
from fl_dpbayes.config import Model, Sampler, TrainingPlan
from fl_dpbayes.models import build_model
from fl_dpbayes.privacy import noise_of_steps, read_history
from fl_dpbayes.protocol import Arrays, TrainReply, prefixed, without_prefix
from fl_dpbayes.samplers import Algorithm, ChainState, build_algorithm, state_arrays, to_state
from fl_dpbayes.samplers.state_vectors import state_vectors
from fl_dpbayes.schedules import planned_step_sizes

Array = npt.NDArray[np.float64]

ROUNDING = float(np.finfo(np.float32).eps)
# Keeps a vector of zeros from being divided by.
LEAST_LENGTH = 1e-30
# How far from 0 a number is, over the length of its step, to have last bits of noise. A sum of
# float32 numbers ends halfway between two in one of so many, and is then rounded to the even one.
FARTHER = 1024


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

    @property
    def batch(self) -> float:
        """Expected number of units in a batch, over the clip norm: q n / C."""
        privacy = self.plan.privacy
        return privacy.sampling_rate * self.site.file.units / privacy.noise_unit


@dataclass(frozen=True)
class Recording:
    """What a site let out when it trained a stretch, and from where.

    Attributes:
        course: The run.
        stretch: That was asked for.
        algorithm: Of the sampler.
        before: State that was sent, name -> float32 vector of shape (d,).
        after: State that came back, of the same names and shapes.
        samples: Kept ones, float32, shape (kept steps, d).
        reply: The site's header.
        step_sizes: Planned ones of the steps that were made, shape (steps,).
        noise_multipliers: The sigma of each, as the site's ledger accounts for it, shape (steps,).
    """

    course: Course
    stretch: Stretch
    algorithm: Algorithm
    before: Mapping[str, torch.Tensor]
    after: Mapping[str, torch.Tensor]
    samples: npt.NDArray[np.float32]
    reply: TrainReply
    step_sizes: Array
    noise_multipliers: Array

    @property
    def sampler(self) -> Sampler:
        """The plan's sampler."""
        return self.course.plan.sampler

    @property
    def start(self) -> ChainState:
        """The state that was sent, in float64."""
        state = to_state(self.before, self.sampler, 0)
        return ChainState({name: vector.double() for name, vector in state.vectors.items()})

    @property
    def sampling_rate(self) -> float:
        """q, as the ledger accounts for it."""
        return self.reply.privacy.history[-1][1]

    @property
    def sample_difference(self) -> float:
        """Largest difference of the last step's sample from the released state.

        0 where it is not kept, or is drawn at random.
        """
        last_step = self.stretch.first_step + self.reply.steps - 1
        if self.sampler.draws_samples or not self.course.plan.is_kept(last_step):
            return 0.0
        return float(np.abs(self.samples[-1] - self.after["parameters"].numpy()).max())

    def data_free(self, position: torch.Tensor) -> torch.Tensor:
        """Return what the step adds to the mean gradient without looking at records.

        Args:
            position: Of the chain.

        Returns:
            Of the position's shape.
        """
        plan = self.course.plan
        total = self.algorithm.data_free_gradient(self.sampler.prior, position, plan.prior_share)
        return total / self.course.site.file.units


@dataclass(frozen=True)
class Reading:
    """The weighted mean of a stretch's noisy sums, in units of the clip norm.

        y = sum_k v_k (G_k / C + sigma_k xi_k),   sum v_k = 1

    Attributes:
        mean: y, shape (d,), for Bayes by backprop (2 d,).
        weights: v_k, shape (steps,).
        noise_std: Standard deviation of the noise in y: sqrt(sum v_k^2 sigma_k^2).
        sampling_rate: q, as the ledger accounts for it.
        rounding: Of each entry of y by float32, shape of y.
    """

    mean: Array
    weights: Array
    noise_std: float
    sampling_rate: float
    rounding: Array


@dataclass(frozen=True)
class Steps:
    """Noisy sums of the T steps of requests that all begin at one start.

    Attributes:
        sums: (G_t / C + sigma_t xi_t) / sigma_t, shape (T, d).
        resolution: Distance of the numbers that float32 lets `sums` take, shape (T, d).
        states: Released after each step, float32, shape (T, d); empty where no released vector is
            linear in the sums.
        covered: Whether the last bits of a state are the noise's, shape (T, d): not where the step
            nearly ends at 0.
        moment_difference: Of what states hold beside their position from what follows from the
            sums, over its length.
    """

    sums: Array
    resolution: Array
    states: npt.NDArray[np.float32]
    covered: npt.NDArray[np.bool_]
    moment_difference: float


def record(course: Course, start: Mapping[str, Array], stretch: Stretch) -> Recording:
    """Have a site train a stretch.

    Args:
        course: The run.
        start: Name -> vector of shape (d,), `parameters` at least; others are 0.
        stretch: The steps.

    Returns:
        What it let out.

    Raises:
        UserError: If the site does not train.
    """
    sampler = course.plan.sampler
    task = course.site.task
    module = build_model(course.model, task, seed=0)
    zeros = np.zeros(len(start["parameters"]))
    before = {
        name: torch.from_numpy(start.get(name, zeros)).float() for name in sampler.state_vectors
    }
    arrays = state_arrays(before, module)
    request = train_request(
        task=task,
        model=course.model,
        plan=course.plan,
        stretch=stretch,
        start=arrays,
        run=course.run,
    )
    reply, released = ask(course.site, "train", request, prefixed("start", arrays), TrainReply)
    step_sizes = planned_step_sizes(course.plan)[stretch.first_step :]
    noise_multipliers = noise_of_steps(read_history(reply.privacy.history))
    return Recording(
        course=course,
        stretch=stretch,
        algorithm=build_algorithm(sampler, module),
        before=before,
        after=state_vectors(without_prefix("last", released), sampler, module),
        samples=_rows(without_prefix("samples", released)),
        reply=reply,
        step_sizes=step_sizes[: reply.steps],
        noise_multipliers=noise_multipliers[-reply.steps :],
    )


def record_all(course: Course, start: Mapping[str, Array], length: int) -> list[Recording]:
    """Have a site train every stretch of a plan, each from one start.

    Args:
        course: The run.
        start: As of `record`.
        length: Steps of each request.

    Returns:
        A recording of each stretch.

    Raises:
        UserError: If the site does not train.
    """
    return [record(course, start, stretch) for stretch in stretches_of(course.plan, length)]


def read_mean(recording: Recording) -> Reading:
    """Read the weighted mean of a stretch's noisy sums off the state that it ends in.

    Args:
        recording: Of any stretch.

    Returns:
        What an attacker reads.
    """
    sampler = recording.sampler
    position = recording.start.parameters
    coefficients = _coefficients(recording)
    pull = recording.data_free(position).numpy() * coefficients.sum()
    if sampler.rescales:
        moved = recording.after["first_moment"].double().numpy()
        resolution = np.zeros(len(moved))
    else:
        moved = (position - _position(recording.after, sampler)).numpy()
        resolution = ROUNDING * position.abs().numpy()
    scale = recording.course.batch / coefficients.sum()
    weights = coefficients / coefficients.sum()
    return Reading(
        mean=(moved - pull) * scale,
        weights=weights,
        noise_std=float(np.linalg.norm(weights * recording.noise_multipliers)),
        sampling_rate=recording.sampling_rate,
        rounding=(resolution + ROUNDING * np.abs(pull)) * scale,
    )


def shows_every_step(plan: TrainingPlan) -> bool:
    """Return whether kept samples are the chain's positions.

    Args:
        plan: Of any sampler.

    Returns:
        False for samplers that rescale or draw their samples.
    """
    return not (plan.sampler.rescales or plan.sampler.draws_samples)


def read_steps(recordings: Sequence[Recording]) -> Steps:
    """Read the noisy sum of every step off the states between them.

    Args:
        recordings: Of one step each, or of a sampler whose samples are its positions, all kept.

    Returns:
        All steps, one after the other.
    """
    stretches = [_read_stretch(recording) for recording in recordings]
    return Steps(
        sums=np.concatenate([steps.sums for steps in stretches]),
        resolution=np.concatenate([steps.resolution for steps in stretches]),
        states=np.concatenate([steps.states for steps in stretches]),
        covered=np.concatenate([steps.covered for steps in stretches]),
        moment_difference=float(np.max([steps.moment_difference for steps in stretches])),
    )


def _read_stretch(recording: Recording) -> Steps:
    sampler = recording.sampler
    algorithm = recording.algorithm
    # Adam's position is not linear in the sums, but its first moment is.
    read_vector = "first_moment" if sampler.rescales else "parameters"
    released = _released(recording, read_vector)
    state = recording.start
    previous = np.concatenate([state.vectors[read_vector][None].numpy(), released[:-1]])
    sums = np.empty(released.shape)
    resolution = np.empty(released.shape)
    settings = zip(recording.step_sizes.tolist(), recording.noise_multipliers, strict=True)
    for step, (step_size, sigma) in enumerate(settings):
        # The step begins where the site was, after its rounding.
        state = ChainState(
            dict(state.vectors) | {read_vector: torch.from_numpy(previous[step])}, state.step
        )
        # Affine in the gradient: two steps tell where it would lead by none, and by any.
        ones = torch.ones_like(state.parameters)
        without = algorithm.step(state, 0 * ones, step_size).vectors[read_vector]
        per_gradient = without - algorithm.step(state, ones, step_size).vectors[read_vector]
        gradient = (without - torch.from_numpy(released[step]).double()) / per_gradient
        scale = recording.course.batch / sigma
        sums[step] = ((gradient - recording.data_free(state.parameters)) * scale).numpy()
        largest = np.maximum(np.abs(released[step]), np.abs(previous[step]))
        resolution[step] = ROUNDING * largest * scale / float(per_gradient[0].abs())
        state = algorithm.step(state, gradient, step_size)
    covered = np.abs(released) > FARTHER * np.abs(released - previous)
    return Steps(
        sums=sums,
        resolution=resolution,
        states=released[:, :0] if sampler.rescales else released,
        covered=covered,
        moment_difference=_moment_difference(state, recording),
    )


def _released(recording: Recording, read_vector: str) -> npt.NDArray[np.float32]:
    """Return the released states of all steps, shape (steps, d)."""
    if shows_every_step(recording.course.plan):
        return recording.samples
    if read_vector in recording.sampler.position:
        return _position(recording.after, recording.sampler).float().numpy()[None]
    return recording.after[read_vector].numpy()[None]


def _moment_difference(expected: ChainState, recording: Recording) -> float:
    """Compare released momenta and moments with the expected ones: max |m' - m|_2 / |m|_2."""
    differences = [0.0]
    for name in recording.sampler.moments:
        vector = expected.vectors[name]
        difference = float((recording.after[name].double() - vector).norm())
        differences.append(difference / max(float(vector.norm()), LEAST_LENGTH))
    # Unlike max, this is not a number where one of them is none, and then a check fails.
    return float(np.max(differences))


def _rows(arrays: Arrays) -> npt.NDArray[np.float32]:
    """Put arrays (rows, ...) side by side."""
    if not arrays:
        return np.empty((0, 0), np.float32)
    return np.concatenate([array.reshape(len(array), -1) for array in arrays.values()], axis=1)


def _position(vectors: Mapping[str, torch.Tensor], sampler: Sampler) -> torch.Tensor:
    return torch.cat([vectors[name] for name in sampler.position]).double()


def _coefficients(recording: Recording) -> Array:
    """Return how far each step's gradient alone moves what is read, shape (steps,).

    The steps take the place of the parameters: the gradient of step k is the k-th unit vector.
    """
    sampler = recording.sampler
    step_sizes = recording.step_sizes
    count = len(step_sizes)
    names = ("parameters", *sampler.moments)
    state = ChainState({name: torch.zeros(count, dtype=torch.float64) for name in names})
    gradients = torch.eye(count, dtype=torch.float64)
    for gradient, step_size in zip(gradients, step_sizes, strict=True):
        state = recording.algorithm.step(state, gradient, float(step_size))
    moved = state.vectors["first_moment"] if sampler.rescales else -state.parameters
    return moved.numpy()
