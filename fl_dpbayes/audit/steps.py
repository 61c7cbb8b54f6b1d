"""The noisy sum of every step of a request, read off the samples that it keeps.

A step is affine in its gradient, so two states that follow each other give the sum between them,
whatever the sampler remembers. Samplers whose samples are no positions of the chain are asked for
one step at a time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit.reading import (
    ROUNDING,
    Course,
    moment_difference,
    read_stretch,
    start_vectors,
    train,
)
from fl_dpbayes.config import TrainingPlan
from fl_dpbayes.models import build_model
from fl_dpbayes.privacy import noise_of_steps, read_history
from fl_dpbayes.protocol import without_prefix
from fl_dpbayes.samplers import ChainState, build_algorithm, state_arrays, to_state
from fl_dpbayes.samplers.state_vectors import state_vectors
from fl_dpbayes.schedules import planned_step_sizes

Array = npt.NDArray[np.float64]

# How far from 0 a number is, over the length of its step, to have last bits of noise. A sum of
# float32 numbers ends halfway between two in one of so many, and is then rounded to the even one.
FARTHER = 1024


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
        sample_difference: Largest difference of the last kept sample from the released state.
        moment_difference: Of what states hold beside their position from what follows from the
            sums, over its length.
    """

    sums: Array
    resolution: Array
    states: npt.NDArray[np.float32]
    covered: npt.NDArray[np.bool_]
    sample_difference: float
    moment_difference: float


def shows_every_step(plan: TrainingPlan) -> bool:
    """Return whether kept samples are the chain's positions.

    Args:
        plan: Of any sampler.

    Returns:
        False for samplers that rescale or draw their samples.
    """
    return not (plan.sampler.rescales or plan.sampler.draws_samples)


def read_requests(course: Course, start: dict[str, Array], length: int) -> Steps:
    """Ask for every stretch of a plan from one start, and read the steps.

    Args:
        course: The run; its plan keeps every step.
        start: Name -> vector of shape (d,), of every request.
        length: Steps of each request.

    Returns:
        All steps, one after the other.

    Raises:
        UserError: If the site does not train.
    """
    read = _read_kept if shows_every_step(course.plan) else _read_single
    stretches = [
        read(
            course,
            start,
            round_number=first_step // length + 1,
            first_step=first_step,
            steps=length,
        )
        for first_step in range(0, course.plan.total_steps, length)
    ]
    return Steps(
        sums=np.concatenate([stretch.sums for stretch in stretches]),
        resolution=np.concatenate([stretch.resolution for stretch in stretches]),
        states=np.concatenate([stretch.states for stretch in stretches]),
        covered=np.concatenate([stretch.covered for stretch in stretches]),
        sample_difference=max(stretch.sample_difference for stretch in stretches),
        moment_difference=max(stretch.moment_difference for stretch in stretches),
    )


def _read_single(
    course: Course, start: dict[str, Array], round_number: int, first_step: int, steps: int
) -> Steps:
    """Read a request of one step off the released state."""
    reading = read_stretch(
        course, start, round_number=round_number, first_step=first_step, steps=steps
    )
    resolution = 2 * reading.rounding / reading.noise_std
    sums = reading.mean / reading.noise_std
    covered = np.empty(0, bool)
    if reading.state.size:
        position = [start[name] for name in course.plan.sampler.position if name in start]
        covered = _covered(reading.state, np.concatenate(position))
    return Steps(
        sums=sums[None],
        resolution=resolution[None],
        states=reading.state[None],
        covered=covered[None],
        sample_difference=reading.sample_difference,
        moment_difference=reading.moment_difference,
    )


def _read_kept(
    course: Course, start: dict[str, Array], round_number: int, first_step: int, steps: int
) -> Steps:
    """Read every step of a request off the samples that it keeps."""
    plan = course.plan
    privacy = plan.privacy
    sampler = plan.sampler
    units = course.site.file.units
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
    samples = without_prefix("samples", released)
    states = np.concatenate([samples[name].reshape(reply.steps, -1) for name in samples], axis=1)
    step_sizes = planned_step_sizes(plan)[first_step : first_step + reply.steps]
    sigmas = noise_of_steps(read_history(reply.privacy.history))[-reply.steps :]
    start_state = to_state(before, sampler, 0)
    state = ChainState(
        {name: vector.double() for name, vector in start_state.vectors.items()}, start_state.step
    )
    size = len(start["parameters"])
    ones = torch.ones(size, dtype=torch.float64)
    batch = privacy.sampling_rate * units / privacy.noise_unit
    sums = np.empty((reply.steps, size))
    resolution = np.empty((reply.steps, size))
    for step, (step_size, sigma) in enumerate(
        zip(step_sizes.tolist(), sigmas.tolist(), strict=True)
    ):
        # Affine in the gradient: two steps tell where it would lead by none, and by any.
        without = algorithm.step(state, 0 * ones, step_size).parameters
        per_gradient = without - algorithm.step(state, ones, step_size).parameters
        gradient = (without - torch.from_numpy(states[step]).double()) / per_gradient
        data_free = algorithm.data_free_gradient(sampler.prior, state.parameters, plan.prior_share)
        sums[step] = ((gradient - data_free / units) * batch / sigma).numpy()
        largest = np.maximum(np.abs(states[step]), np.abs(state.parameters.numpy()))
        resolution[step] = ROUNDING * largest * batch / (sigma * float(per_gradient[0]))
        state = algorithm.step(state, gradient, step_size)
        # The next step begins where the site was, after its rounding.
        state.vectors["parameters"].copy_(torch.from_numpy(states[step]))
    previous = np.concatenate([start["parameters"][None], states[:-1]])
    last = without_prefix("last/parameters", released)
    after = state_vectors(without_prefix("last", released), sampler, module)
    return Steps(
        sums=sums,
        resolution=resolution,
        states=states,
        covered=_covered(states, previous),
        sample_difference=max(
            float(np.abs(samples[name][-1] - values).max()) for name, values in last.items()
        ),
        moment_difference=moment_difference(state.vectors, after, sampler),
    )


def _covered(states: npt.NDArray[np.float32], previous: Array) -> npt.NDArray[np.bool_]:
    """Tell which numbers have a last place coarser than their step's, so that the step rounds."""
    return np.abs(states) > FARTHER * np.abs(states - previous)
