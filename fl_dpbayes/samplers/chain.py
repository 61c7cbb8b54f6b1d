"""Runs a stretch of a private chain at a site and keeps its samples."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.models import keep_freed_memory, normal_vectors, trainable_parameters, vector_loader
from fl_dpbayes.samplers.algorithm import build_algorithm
from fl_dpbayes.samplers.gradients.clipping import ClippedSum
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords
from fl_dpbayes.samplers.state_vectors import ChainState, Vectors, from_state, to_state
from fl_dpbayes.schedules import ChainStreams, PlannedChain

# Numbers at a time on the host: their float64 stays in a processor's cache.
_PART = 2**16


class ChainDivergedError(ArithmeticError):
    """The chain left the range of float32; a smaller step size is the remedy.

    Raised after the last planned step of the stretch, whose privacy is spent. That a noisy iterate
    is not finite follows from released quantities alone (every iterate is accounted as released),
    so saying it costs nothing more.
    """


@dataclass(frozen=True)
class ChainResult:
    """What a stretch of a chain leaves.

    All of it is post-processing of noisy sums and public constants.

    `samples`: shape (M, d); M may be 0. `sample_steps`: step after which each was kept (0-based, of
    the whole run). `sample_weights`: step size a_t of each (Welling and Teh weigh averages over a
    chain by it). `sample_temperatures`: T_t of each. `temperature_mean`: a_t-weighted over the
    stretch. `last`: the last state's vectors (d,) by name.
    """

    samples: npt.NDArray[np.float32]
    sample_steps: tuple[int, ...]
    sample_weights: tuple[float, ...]
    sample_temperatures: tuple[float, ...]
    temperature_mean: float
    last: dict[str, npt.NDArray[np.float32]]


def run_chain(
    module: nn.Module,
    records: TrainingRecords,
    chain: PlannedChain,
    steps: range,
    start: Vectors,
    streams: ChainStreams,
    on_step: Callable[[int, ChainState, ClippedSum], None] | None = None,
) -> ChainResult:
    """Run a stretch of a planned chain from a given state.

    d_t = (G_t + sigma_t C xi_t) / B - (s/n) grad log p(w_t), w_{t+1} = step(w_t, d_t, a_t), G_t the
    sum of clipped gradients over a batch that every unit joins independently with probability q; B
    = q n. An empty batch is a step like any other.

    `module`: the plain model, where the arithmetic shall run; its parameters are overwritten.
    `steps`: numbers of the steps within the run, one or more. `start`: the state before the first
    of them. `on_step`: called after each step with its number, the state after it and its clipped
    sum, which is not private: it stays at the site. Raises ValueError if the stretch does not lie
    within one planned chain, UserError if the module mixes the records of a batch,
    ChainDivergedError if the last state is not finite.
    """
    plan = chain.plan
    chain_start = steps.start // plan.chain_steps * plan.chain_steps
    if not 0 <= steps.start < steps.stop <= min(plan.total_steps, chain_start + plan.chain_steps):
        said = f"steps {steps.start} to {steps.stop} do not fit a plan of"
        raise ValueError(f"{said} {plan.chains} chains of {plan.chain_steps} steps")
    keep_freed_memory()
    device = next(iter(trainable_parameters(module).values())).device
    algorithm = build_algorithm(plan.sampler, module)
    records = replace(records, loss=algorithm.record_loss(records.loss))
    batch_gradient = BatchGradient(algorithm.module, records, plan.privacy, chain.units, streams)
    state = to_state(start, plan.sampler, steps.start - chain_start, device)
    kept: list[torch.Tensor] = []
    load, scale = vector_loader(algorithm.module), chain.scale
    noises = normal_vectors(streams.noise, state.parameters.numel(), len(steps), device)
    for number, noise in zip(steps, noises, strict=True):
        position = state.parameters
        load(position)
        clipped = batch_gradient()
        gradient = noisy_gradient(
            clipped.total,
            noise=noise,
            noise_multiplier=float(chain.noise_multipliers[number]),
            noise_unit=scale.clip_norm,
            expected_batch_size=scale.expected_batch_size,
            units=chain.units,
            data_free_gradient=algorithm.data_free_gradient(
                plan.sampler.prior, position, plan.prior_share
            ),
        )
        state = algorithm.step(state, gradient, float(chain.step_sizes[number]))
        if plan.is_kept(number):
            # Without waiting for it: `last` waits for all.
            kept.append(
                algorithm.draw(state.parameters, streams.model).to("cpu", non_blocking=True)
            )
        if on_step is not None:
            on_step(number, state, clipped)
        # Not beside the next step's.
        del position, noise, clipped, gradient
    last = {name: vector.cpu().numpy() for name, vector in from_state(state, plan.sampler).items()}
    # A parameter that is not finite stays so; a weight draw may leave float32's range where the
    # state has not.
    if not all(
        np.isfinite(vector).all()
        for vector in [*last.values(), *(sample.numpy() for sample in kept)]
    ):
        said = f"the chain is not finite after step {steps[-1]}"
        raise ChainDivergedError(
            f"{said}: lower step_size.initial (now {plan.sampler.step_size.initial})"
        )
    kept_steps = tuple(number for number in steps if plan.is_kept(number))
    stretch = slice(steps.start, steps.stop)
    return ChainResult(
        samples=torch.stack(kept).numpy()
        if kept
        else np.empty((0, len(last["parameters"])), np.float32),
        sample_steps=kept_steps,
        sample_weights=tuple(float(chain.step_sizes[number]) for number in kept_steps),
        sample_temperatures=tuple(float(chain.temperatures[number]) for number in kept_steps),
        temperature_mean=float(
            np.average(chain.temperatures[stretch], weights=chain.step_sizes[stretch])
        ),
        last=last,
    )


def noisy_gradient(
    clipped_sum: torch.Tensor,
    *,
    noise: torch.Tensor,
    noise_multiplier: float,
    noise_unit: float,
    expected_batch_size: float,
    data_free_gradient: torch.Tensor,
    units: int,
) -> torch.Tensor:
    """Return d = (G + sigma C xi) / B - (s / n) grad log p(w), a private estimate of grad U(w) / n, U the energy.

    `clipped_sum`: G over a Poisson batch, (d,), float64: what rounds it to float32 comes after the
    noise. `noise`: xi ~ N(0, I), one draw over all parameters, (d,); the result is written over it.
    `noise_unit`: C, the clip norm (1 where nothing is private and sigma is the noise's standard
    deviation). `data_free_gradient`: -s grad log p(w), (d,), outside the clip. `units`: n, as
    declared. Privacy follows from (sigma, q) alone: the prior and whatever is done with d are
    post-processing. Source: Abadi et al. 2016, Algorithm 1; Welling and Teh 2011, eq. 4.
    """
    size = noise.shape[0]
    width = _PART if noise.device.type == "cpu" else size
    for first in range(0, size, width):
        part = slice(first, first + width)
        gradient = noise[part]
        # Added in float64, the type of the sum.
        torch.add(clipped_sum[part], gradient, alpha=noise_multiplier * noise_unit, out=gradient)
        gradient.div_(expected_batch_size).add_(data_free_gradient[part], alpha=1 / units)
    return noise
