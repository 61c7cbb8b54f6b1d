"""The noisy sum of every step of a request, read off the samples that it keeps.

A step is affine in its gradient, so two states that follow each other give the sum between them,
whatever the sampler remembers. Samplers whose samples are no positions of the chain are asked for
one step at a time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.audit.reading import ROUNDING, Course, moment_difference, read_stretch, train
from fl_dpbayes.config import TrainingPlan
from fl_dpbayes.models import build_model
from fl_dpbayes.privacy import noise_of_steps, read_history
from fl_dpbayes.protocol import without_prefix
from fl_dpbayes.samplers import build_algorithm, state_arrays, to_state
from fl_dpbayes.samplers.state_vectors import state_vectors
from fl_dpbayes.schedules import planned_step_sizes

Array = npt.NDArray[np.float64]

# How far from 0 a number is, over the length of its step, to have last bits of noise. A sum of
# float32 numbers ends halfway between two in one of so many, and is then rounded to the even one.
FARTHER = 1024


@dataclass(frozen=True)
class Steps:
    """Noisy sums (G_t / C + sigma_t xi_t) / sigma_t, shape (T, d), of requests from one start.

    `resolution`: distance of the numbers that float32 lets `sums` take, of the same shape.
    `states`: released after each step, float32, (T, d), empty where no released vector is linear in
    the sums. `covered`: whether the last bits of a state are the noise's, (T, d): not where the
    step nearly ends at 0. `requests`: the number of steps of each. `apart`: largest difference of
    the last kept sample from the released state. `moment_difference`: of what states hold beside their
    position from what follows from the sums, over its length.
    """

    sums: Array
    resolution: Array
    states: npt.NDArray[np.float32]
    covered: npt.NDArray[np.bool_]
    requests: tuple[int, ...]
    apart: float
    moment_difference: float


def shows_every_step(plan: TrainingPlan) -> bool:
    """Whether kept samples are the chain's positions."""
    return not (plan.sampler.rescales or plan.sampler.draws_samples)


def read_requests(course: Course, start: dict[str, Array], length: int) -> Steps:
    """Ask for every stretch of so many steps of a plan that keeps each, all from the same start, and read the steps."""
    firsts = range(0, course.plan.total_steps, length)
    if shows_every_step(course.plan):
        read = [_read_kept(course, start, first // length + 1, first, length) for first in firsts]
    else:
        read = [_read_alone(course, start, first // length + 1, first, length) for first in firsts]
    return Steps(
        sums=np.concatenate([each.sums for each in read]),
        resolution=np.concatenate([each.resolution for each in read]),
        states=np.concatenate([each.states for each in read]),
        covered=np.concatenate([each.covered for each in read]),
        requests=tuple(length for each in read for length in each.requests),
        apart=max(each.apart for each in read),
        moment_difference=max(each.moment_difference for each in read),
    )


def _read_alone(
    course: Course, start: dict[str, Array], number: int, first: int, steps: int
) -> Steps:
    reading = read_stretch(course, start, number, first, steps)
    resolution = 2 * reading.rounding / reading.noise_std
    sums = reading.mean[None] / reading.noise_std
    began = np.concatenate([start[name] for name in course.plan.sampler.position if name in start])
    covered = _covered(reading.state, began) if reading.state.size else np.empty(0, bool)
    return Steps(
        sums,
        resolution[None],
        reading.state[None],
        covered[None],
        (1,),
        reading.sample_difference,
        reading.moment_difference,
    )


def _read_kept(
    course: Course, start: dict[str, Array], number: int, first: int, steps: int
) -> Steps:
    plan = course.plan
    sampler = plan.sampler
    module = build_model(course.model, course.site.task, seed=0)
    size = len(start["parameters"])
    named = {name: start.get(name, np.zeros(size)) for name in sampler.state_vectors}
    before = {name: torch.from_numpy(values).float() for name, values in named.items()}
    reply, released = train(course, state_arrays(before, module), number, first, steps)
    samples = without_prefix("samples", released)
    last = without_prefix("last/parameters", released)
    states = np.concatenate([samples[name].reshape(reply.steps, -1) for name in samples], axis=1)
    algorithm = build_algorithm(sampler, module)
    sizes = planned_step_sizes(plan)[first : first + reply.steps]
    state = to_state(before, sampler, 0)
    state = type(state)(
        {name: vector.double() for name, vector in state.vectors.items()}, state.step
    )
    ones = torch.ones(size, dtype=torch.float64)
    sums = np.empty((reply.steps, size))
    resolution = np.empty((reply.steps, size))
    sigmas = noise_of_steps(read_history(reply.privacy.history))[-reply.steps :]
    batch = plan.privacy.sampling_rate * course.site.file.units / plan.privacy.noise_unit
    for step, (a, sigma) in enumerate(zip(sizes.tolist(), sigmas.tolist(), strict=True)):
        without = algorithm.step(state, 0 * ones, a).parameters
        per_gradient = without - algorithm.step(state, ones, a).parameters
        gradient = (without - torch.from_numpy(states[step]).double()) / per_gradient
        pull = (
            algorithm.data_free_gradient(sampler.prior, state.parameters, plan.prior_share)
            / course.site.file.units
        )
        sums[step] = ((gradient - pull) * batch / sigma).numpy()
        largest = np.maximum(np.abs(states[step]), np.abs(state.parameters.numpy()))
        resolution[step] = ROUNDING * largest * batch / (sigma * float(per_gradient[0]))
        state = algorithm.step(state, gradient, a)
        state.vectors["parameters"].copy_(torch.from_numpy(states[step]))
    before_each = np.concatenate([named["parameters"][None], states[:-1]])
    apart = max(float(np.abs(samples[name][-1] - values).max()) for name, values in last.items())
    rest = moment_difference(
        state.vectors, state_vectors(without_prefix("last", released), sampler, module), sampler
    )
    return Steps(
        sums, resolution, states, _covered(states, before_each), (reply.steps,), apart, rest
    )


def _covered(states: npt.NDArray[np.float32], before: Array) -> npt.NDArray[np.bool_]:
    """Tell numbers whose last place is coarser than that of the step that led there, so that the step rounds it."""
    return np.abs(states) > FARTHER * np.abs(states - before)
