"""Runs a stretch of a private chain at a site and keeps its samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.config import TrainingPlan
from fl_dpbayes.models import keep_freed_memory, normal_vectors, trainable_parameters, vector_loader
from fl_dpbayes.samplers.algorithm import build_algorithm
from fl_dpbayes.samplers.gradients.clipping import ClippedSum
from fl_dpbayes.samplers.minibatch import BatchGradient, TrainingRecords
from fl_dpbayes.samplers.state_vectors import ChainState, Vectors, from_state, to_state
from fl_dpbayes.schedules import ChainStreams, PlannedChain

# Entries of the gradient at a time on the host: their float64 stays in a processor's cache.
_PART = 2**16


class ChainDivergedError(ArithmeticError):
    """The chain left the range of float32; a smaller step size is the remedy.

    Raised after the last planned step of the stretch, whose privacy is spent. That a noisy iterate
    is not finite follows from released quantities alone (every iterate is accounted as released),
    so the error costs no more privacy.
    """


@dataclass(frozen=True)
class ChainResult:
    """What a stretch of a chain leaves.

    All of it is post-processing of noisy sums and public constants.

    Attributes:
        samples: Posterior samples, shape (M, d); M may be 0.
        sample_steps: Step after which each sample was drawn, 0-based, of the whole run, M of them.
        sample_weights: Step size a_t of each sample (Welling and Teh weigh averages over a chain
            by it).
        sample_temperatures: T_t of each sample.
        temperature_mean: Mean of T_t over the stretch, weighted by a_t.
        last: The last state's vectors, by name, shape (d,) each.
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

        d_t = (G_t + sigma_t C xi_t) / B - (s/n) grad log p(w_t),    w_{t+1} = step(w_t, d_t, a_t)

    G_t is the sum of clipped gradients over a batch that every unit joins independently with
    probability q; B = q n. An empty batch is a step like any other.

    Args:
        module: The plain model, on the device of the computation; its parameters are overwritten.
        records: What the chain is trained on.
        chain: The plan with its step sizes, noise multipliers and declared number of units n.
        steps: Numbers of the steps within the run, one or more.
        start: Vectors of the state before the first of the steps, shape (d,) each.
        streams: Random streams of sampling, noise and model.
        on_step: Called after each step with its number, the state after it and its clipped sum,
            which is not private: it stays at the site.

    Returns:
        Samples and the last state.

    Raises:
        ValueError: The stretch does not lie within one planned chain.
        UserError: The module mixes the records of a batch.
        ChainDivergedError: The last state is not finite.
    """
    plan = chain.plan
    chain_start = steps.start // plan.chain_steps * plan.chain_steps
    _check_stretch(plan, steps=steps, chain_start=chain_start)
    keep_freed_memory()
    device = next(iter(trainable_parameters(module).values())).device
    algorithm = build_algorithm(plan.sampler, module)
    batch_gradient = BatchGradient(
        module=algorithm.module,
        records=replace(records, loss=algorithm.record_loss(records.loss)),
        privacy=plan.privacy,
        units=chain.units,
        streams=streams,
    )
    state = to_state(start, plan.sampler, step=steps.start - chain_start, device=device)
    load_parameters = vector_loader(algorithm.module)
    noises = normal_vectors(
        streams.noise, size=state.parameters.numel(), count=len(steps), device=device
    )
    samples: list[torch.Tensor] = []
    for number, noise in zip(steps, noises, strict=True):
        position = state.parameters
        load_parameters(position)
        clipped = batch_gradient()
        gradient = noisy_gradient(
            clipped.total,
            noise=noise,
            noise_multiplier=float(chain.noise_multipliers[number]),
            noise_unit=chain.scale.clip_norm,
            expected_batch_size=chain.scale.expected_batch_size,
            units=chain.units,
            data_free_gradient=algorithm.data_free_gradient(
                plan.sampler.prior, position, plan.prior_share
            ),
        )
        state = algorithm.step(state, gradient, float(chain.step_sizes[number]))
        if plan.is_kept(number):
            sample = algorithm.draw(state.parameters, streams.model)
            # The host need not wait for each copy: reading the last state below waits for all.
            samples.append(sample.to("cpu", non_blocking=True))
        if on_step is not None:
            on_step(number, state, clipped)
        # Free these vectors before the next step allocates its own.
        del position, noise, clipped, gradient
    last = {name: vector.cpu().numpy() for name, vector in from_state(state, plan.sampler).items()}
    # A parameter that is not finite stays so. A weight draw may leave float32's range where the
    # state has not, so samples are checked as well.
    if not _all_finite([*last.values(), *(sample.numpy() for sample in samples)]):
        raise ChainDivergedError(
            f"the chain is not finite after step {steps[-1]}: lower step_size.initial "
            f"(now {plan.sampler.step_size.initial})"
        )
    return _chain_result(chain, steps=steps, samples=samples, last=last)


def _check_stretch(plan: TrainingPlan, steps: range, chain_start: int) -> None:
    chain_stop = min(plan.total_steps, chain_start + plan.chain_steps)
    if not 0 <= steps.start < steps.stop <= chain_stop:
        raise ValueError(
            f"steps {steps.start} to {steps.stop} do not fit a plan of "
            f"{plan.chains} chains of {plan.chain_steps} steps"
        )


def _all_finite(arrays: Sequence[npt.NDArray[np.float32]]) -> bool:
    return all(np.isfinite(array).all() for array in arrays)


def _chain_result(
    chain: PlannedChain,
    steps: range,
    samples: list[torch.Tensor],
    last: dict[str, npt.NDArray[np.float32]],
) -> ChainResult:
    no_samples = np.empty((0, len(last["parameters"])), np.float32)
    sample_steps = tuple(number for number in steps if chain.plan.is_kept(number))
    stretch = slice(steps.start, steps.stop)
    return ChainResult(
        samples=torch.stack(samples).numpy() if samples else no_samples,
        sample_steps=sample_steps,
        sample_weights=tuple(float(chain.step_sizes[number]) for number in sample_steps),
        sample_temperatures=tuple(float(chain.temperatures[number]) for number in sample_steps),
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
    """Return a private estimate of grad U(w) / n, U the energy.

        d = (G + sigma C xi) / B - (s / n) grad log p(w)

    Privacy follows from (sigma, q) alone: the prior and whatever is done with d are
    post-processing.

    Args:
        clipped_sum: G over a Poisson batch, shape (d,), float64: rounding to float32 comes after
            the noise.
        noise: xi ~ N(0, I), one draw over all parameters, shape (d,); overwritten by the result.
        noise_multiplier: sigma >= 0.
        noise_unit: C, the clip norm (1 where nothing is private and sigma is the noise's standard
            deviation).
        expected_batch_size: B = q n.
        data_free_gradient: -s grad log p(w), shape (d,), outside the clip.
        units: n, as declared.

    Returns:
        d, shape (d,), float32, in the memory of `noise`.

    Source:
        Abadi et al. 2016, Algorithm 1; Welling and Teh 2011, eq. 4.
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
