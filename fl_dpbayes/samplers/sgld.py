"""Stochastic gradient Langevin dynamics: the kernel.

With a_t = eta_t n and drift noise of standard deviation sigma C / B it targets the posterior at temperature
T_t = a_t n sigma_t^2 C^2 / (2 B^2), clipping and mini-batch noise aside. Where the mean energy is quadratic with
curvature h, its stationary variance is exactly

    Var(w) = T / (n h) / (1 - a h / 2).

Sources: Welling and Teh 2011, eq. 4; Zhang et al., Algorithm 2 (noise coupling); Abadi et al. 2016, Algorithm 1.
"""

import torch

from fl_dpbayes.samplers.kernel import ChainState, Kernel


def kernel() -> Kernel:
    """Return the sampler; it has no settings, its temperature follows from the noise in the drift."""
    return Kernel(init, step)


def init(parameters: torch.Tensor, step: int = 0) -> ChainState:
    """Start a chain at the given parameters, with `step` steps of it behind."""
    return ChainState({"parameters": parameters}, step)


def step(state: ChainState, drift: torch.Tensor, step_size: float) -> ChainState:
    """Make one step of the chain.

    w <- w - a drift

    Args:
        state: the chain before the step.
        drift: noisy gradient of the mean energy U(w) / n, shape (d,).
        step_size: a > 0.

    Returns:
        The chain after the step.
    """
    return ChainState({"parameters": torch.add(state.parameters, drift, alpha=-step_size)}, state.step + 1)
