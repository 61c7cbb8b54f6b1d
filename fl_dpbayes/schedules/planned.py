"""A run's chains at a site by their plan: step size, noise and temperature of every step.

All chains stand in a row, one after the other.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import (
    ConstantStepSize,
    ExponentialStepSize,
    NoPrivacyPlan,
    StepSizeSchedule,
    TrainingPlan,
)
from fl_dpbayes.schedules.noise import NoiseScale

Array = npt.NDArray[np.float64]


class ChainStreams(NamedTuple):
    """The generators of a chain, each used for nothing else.

    Attributes:
        sampling: Draws who joins each batch.
        noise: Draws the noise on the sums of clipped gradients.
        pre_noise: Draws the noise before the clip.
        model: Draws weights or masks of stochastic models, in training and for their samples.
    """

    sampling: np.random.Generator
    noise: np.random.Generator
    pre_noise: np.random.Generator
    model: np.random.Generator


@dataclass(frozen=True)
class PlannedChain:
    """All that the plan and the site's declared size fix of a run's chains: public constants.

    Attributes:
        plan: The plan of the run.
        units: n > 0, as the site declares; the real count enters nowhere.
        noise_multipliers: sigma_t in the plan's noise unit (C, or 1 where nothing is private),
            shape (plan.total_steps,).
    """

    plan: TrainingPlan
    units: int
    noise_multipliers: Array

    @cached_property
    def step_sizes(self) -> Array:
        """a_t of every step, shape (plan.total_steps,)."""
        return planned_step_sizes(self.plan)

    @property
    def scale(self) -> NoiseScale:
        """C, B = q n, n and friction, by which noise turns into a temperature."""
        return noise_scale(self.plan, self.units)

    @cached_property
    def temperatures(self) -> Array:
        """T_t of every step, 0 for a sampler without a temperature, shape (plan.total_steps,)."""
        if not self.plan.sampler.has_temperature:
            return np.zeros(self.plan.total_steps)
        return self.scale.temperatures(self.step_sizes, self.noise_multipliers)


def noise_scale(plan: TrainingPlan, units: int) -> NoiseScale:
    """Return C, B, n and friction of a plan at a site of n units."""
    return NoiseScale(
        clip_norm=plan.privacy.noise_unit,
        expected_batch_size=plan.privacy.sampling_rate * units,
        units=units,
        friction=plan.sampler.momentum_lost,
    )


def planned_step_sizes(plan: TrainingPlan) -> Array:
    """Return the step size of every step of a plan, where each chain starts the schedule anew.

    Args:
        plan: The plan of the run.

    Returns:
        a_t > 0, shape (plan.total_steps,).

    Raises:
        ValueError: If a decaying step size underflows to zero.
    """
    return np.tile(step_sizes(plan.sampler.step_size, plan.chain_steps), plan.chains)


def noise_without_privacy(plan: TrainingPlan, units: int) -> Array:
    """Return the standard deviation of the noise on the sum in a run without privacy.

    It is sqrt(2 alpha tau / (n a_t)) B at temperature tau and friction alpha, or the constant that
    the plan gives.

    Args:
        plan: The plan of the run, whose privacy is a `NoPrivacyPlan`.
        units: n > 0, as the site declares.

    Returns:
        Standard deviations >= 0, shape (plan.total_steps,).
    """
    privacy = plan.privacy
    assert isinstance(privacy, NoPrivacyPlan)
    sizes = planned_step_sizes(plan)
    if privacy.temperature is None:
        return np.full(sizes.shape, privacy.noise_standard_deviation)
    return noise_scale(plan, units).langevin_noise(sizes, privacy.temperature)


def step_sizes(schedule: StepSizeSchedule, steps: int) -> Array:
    """Return the step sizes of one chain.

        constant      a_t = a_0
        exponential   a_t = a_0 decay^t
        polynomial    a_t = a_0 (1 + t / offset)^(-power)

    Args:
        schedule: One of these three with its parameters.
        steps: T >= 0.

    Returns:
        a_0 .. a_{T-1} > 0, shape (T,).

    Raises:
        ValueError: If a decaying step size underflows to zero before the last step.

    Source:
        Welling and Teh (2011), section 3 (polynomial).
    """
    t = np.arange(steps, dtype=np.float64)
    if isinstance(schedule, ConstantStepSize):
        sizes = np.full(steps, schedule.initial, dtype=np.float64)
    elif isinstance(schedule, ExponentialStepSize):
        sizes = schedule.initial * np.power(schedule.decay, t)
    else:
        sizes = schedule.initial * np.power(1.0 + t / schedule.offset, -schedule.power)
    if steps and not sizes[-1] > 0:
        raise ValueError(
            f"the {schedule.kind} step size is zero before step {steps}: use slower decay "
            "or fewer steps"
        )
    return sizes
