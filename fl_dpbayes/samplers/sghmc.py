"""Stochastic gradient Hamiltonian Monte Carlo: the kernel.

Chen, Fox and Guestrin 2014, eq. 15, with eta = a / n. All of the injected noise is the noise of the private sum: it
adds variance (a sigma C / B)^2 to v in each step where temperature T needs 2 alpha (a / n) T, hence

    T_t = a_t n sigma_t^2 C^2 / (2 alpha B^2),

clipping and mini-batch noise aside; friction alpha = 1 is Langevin dynamics. Less friction is hotter at the same noise:
at the same step size and temperature the noise is smaller by sqrt(alpha), which costs more privacy per step.

Discretisation. Where the mean energy is quadratic with curvature h and minimum 0, w is the autoregression
w_{t+1} = (2 - alpha - a h) w_t - (1 - alpha) w_{t-1} - a (sigma C / B) xi_t, whose stationary variance is exactly

    Var(w) = T / (n h) / (1 - a h / (2 (2 - alpha))),

stable for a h < 2 (2 - alpha): with little friction the step may be twice as long as Langevin's and errs half as much.
"""

from functools import partial

import torch

from fl_dpbayes.samplers.kernel import ChainState, Kernel


def kernel(friction: float = 0.5) -> Kernel:
    """Return the sampler.

    Args:
        friction: alpha in (0, 1], the share of the momentum lost in each step.

    Returns:
        The kernel; its state has the vectors `parameters` and `momentum`.
    """
    return Kernel(init, partial(step, friction=friction))


def init(parameters: torch.Tensor, step: int = 0) -> ChainState:
    """Start a chain at rest at the given parameters, with `step` steps of it behind."""
    return ChainState({"parameters": parameters, "momentum": torch.zeros_like(parameters)}, step)


def step(state: ChainState, drift: torch.Tensor, step_size: float, *, friction: float) -> ChainState:
    """Make one step of the chain.

    v <- (1 - alpha) v - a drift
    w <- w + v

    Args:
        state: the chain before the step.
        drift: noisy gradient of the mean energy U(w) / n, shape (d,).
        step_size: a > 0.
        friction: alpha in (0, 1].

    Returns:
        The chain after the step.
    """
    momentum = state.vectors["momentum"].mul(1 - friction).sub_(drift, alpha=step_size)
    return ChainState({"parameters": state.parameters + momentum, "momentum": momentum}, state.step + 1)
