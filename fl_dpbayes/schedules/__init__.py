"""Step sizes, noise multipliers and temperatures of planned steps, free of torch.

What comes in: a plan and the declared number of units. What goes out: one number a step, for the
chain that takes it and for the account that pays for it.
"""

from fl_dpbayes.schedules.noise import NoiseScale, noise_multipliers
from fl_dpbayes.schedules.planned import (
    ChainStreams,
    PlannedChain,
    noise_without_privacy,
    planned_step_sizes,
    step_sizes,
)
