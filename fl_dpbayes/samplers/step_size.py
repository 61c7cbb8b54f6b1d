"""Step sizes a_t of a planned chain."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.sampler import ConstantStepSize, ExponentialStepSize, StepSizeSchedule


def step_sizes(schedule: StepSizeSchedule, steps: int) -> npt.NDArray[np.float64]:
    """Return the step sizes of a schedule.

        constant      a_t = a_0
        exponential   a_t = a_0 decay^t
        polynomial    a_t = a_0 (1 + t / offset)^(-power)

    Args:
        schedule: one of the three records of `config/plan.py`.
        steps: T, how many steps, 0 or more.

    Returns:
        a_0 .. a_{T-1}, shape (T,), each above zero.

    Raises:
        ValueError: if a decaying step size underflows to zero before the last step.

    Source:
        Welling and Teh (2011), section 3, for the polynomial decay.
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
            f"the {schedule.kind} step size falls to zero before step {steps}: use a slower decay or fewer steps"
        )
    return sizes
