"""Runs a stretch of a private chain at a site and keeps its samples."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.models.parameters import load_vector
from fl_dpbayes.models.priors import Cavity
from fl_dpbayes.samplers import noisy_gradient as drift
from fl_dpbayes.samplers.algorithm import build_algorithm
from fl_dpbayes.samplers.gradients.clipping import ClippedSum
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy
from fl_dpbayes.samplers.kernel import ChainState
from fl_dpbayes.samplers.minibatch import BatchGradient
from fl_dpbayes.samplers.planned import planned_step_sizes, planned_temperatures
from fl_dpbayes.samplers.state_vectors import from_slots, to_slots

Slots = Mapping[str, torch.Tensor]


class ChainDivergedError(ArithmeticError):
    """The chain left the range of float32; a smaller step size is the remedy.

    Raised after the last planned step of the stretch, whose privacy is spent. That a noisy iterate is not finite
    follows from released quantities alone (every iterate is accounted as released), so saying it costs nothing more.
    """


@dataclass(frozen=True)
class ChainStreams:
    """The generators of a chain, each used for nothing else.

    Attributes:
        sampling: draws who joins each batch.
        noise: draws the noise on the sums.
        pre_noise: draws the noise before the clip; needed if the plan's `pre_noise` is positive.
        model: draws weights or masks of stochastic models, in training and for their posterior samples.
    """

    sampling: np.random.Generator
    noise: np.random.Generator
    pre_noise: np.random.Generator
    model: np.random.Generator


@dataclass(frozen=True)
class ChainResult:
    """What a stretch of a chain leaves; all of it is post-processing of noisy sums and public constants.

    Attributes:
        samples: posterior samples, shape (M, d), float32; M may be 0.
        sample_steps: step after which each was kept (0-based, of the whole run), M numbers.
        sample_weights: step size a_t of each (Welling and Teh weigh averages over a chain by it).
        sample_temperatures: T_t of each.
        temperature_mean: a_t-weighted mean of T_t over the stretch.
        last: the last state's vectors by name, each of shape (d,), float32.
    """

    samples: npt.NDArray[np.float32]
    sample_steps: tuple[int, ...]
    sample_weights: tuple[float, ...]
    sample_temperatures: tuple[float, ...]
    temperature_mean: float
    last: dict[str, npt.NDArray[np.float32]]


def run_chain(
    module: nn.Module,
    features: npt.NDArray[np.float32],
    targets: npt.NDArray,
    unit_index: npt.NDArray[np.int64],
    *,
    plan: TrainingPlan,
    noise_multipliers: npt.NDArray[np.float64],
    units: int,
    first_step: int,
    steps: int,
    start: Slots,
    streams: ChainStreams,
    cavity: Cavity | None = None,
    loss: RecordLoss = summed_cross_entropy,
    device: str | torch.device = "cpu",
    on_step: Callable[[int, ChainState, ClippedSum], None] | None = None,
) -> ChainResult:
    """Run `steps` steps of a planned chain from a given state.

    d_t = (G_t + sigma_t C xi_t) / B - (s/n) grad log p(w_t), w_{t+1} = kernel(w_t, d_t, a_t), G_t the sum of clipped
    gradients over a batch that every unit joins independently with probability q; B = q n. An empty batch is a step
    like any other.

    Args:
        module: the plain model, its parameters are overwritten.
        features: the site's training records, shape (N, *shape), float32; N may be 0.
        targets: their classes, shape (N,), int64, or values, shape (N,), float32, as the loss wants them.
        unit_index: privacy unit of each record, numbers 0 .. m - 1 without a gap, shape (N,), int64.
        plan: the whole run's plan.
        noise_multipliers: sigma_t of the whole run in the plan's noise unit (C, or 1 where nothing is private), shape
            (plan.total_steps,).
        units: n, the number of privacy units that the site declares; the real count enters nowhere.
        first_step: number of the first step within the run.
        steps: how many steps, >= 1, all within one chain.
        start: the state before `first_step`, vectors by name, each of shape (d,).
        streams: the chain's generators.
        cavity: the prior where the plan takes it from the request, on `device`.
        loss: minus the log likelihood of records, summed.
        device: where the arithmetic runs.
        on_step: called after each step with its number, the state after it and its clipped sum. What it sees of the
            sum is not private: it stays at the site.

    Returns:
        Samples, weights, temperatures and the last state.

    Raises:
        ValueError: if the stretch does not lie within one planned chain, lengths differ, or the plan asks for a cavity
            and none is given or the other way round.
        UserError: if the module mixes the records of a batch.
        ChainDivergedError: if the last state is not finite.
    """
    stop = first_step + steps
    chain_start = first_step // plan.chain_steps * plan.chain_steps
    if (
        steps < 1
        or first_step < 0
        or stop > min(plan.total_steps, chain_start + plan.chain_steps)
        or len(noise_multipliers) != plan.total_steps
    ):
        raise ValueError(
            f"steps {first_step} to {stop} with {len(noise_multipliers)} noise multipliers do not fit a plan of "
            f"{plan.chains} chains of {plan.chain_steps} steps"
        )
    if (cavity is not None) != (plan.prior_source == "cavity"):
        raise ValueError(f"a cavity must be given exactly where prior_source is 'cavity', not {plan.prior_source!r}")
    privacy = plan.privacy
    expected_batch_size = privacy.sampling_rate * units
    sizes = planned_step_sizes(plan)
    run_temperatures = planned_temperatures(plan, noise_multipliers, units)
    algorithm = build_algorithm(plan.sampler, module, plan.prior_share, cavity)
    algorithm.module.to(device)
    batch_gradient = BatchGradient(
        algorithm.module,
        features,
        targets,
        unit_index,
        units=units,
        sampling_rate=privacy.sampling_rate,
        clip_norm=math.inf if privacy.clip_norm is None else privacy.clip_norm,
        clipping=privacy.clipping,
        pre_noise=privacy.pre_noise,
        sampling_generator=streams.sampling,
        pre_noise_generator=streams.pre_noise,
        resample_generator=streams.model,
        loss=algorithm.record_loss(loss),
        device=device,
    )
    state = from_slots(start, plan.sampler, algorithm.kernel, first_step - chain_start, device)
    kept: list[torch.Tensor] = []
    kept_steps: list[int] = []
    for number in range(first_step, stop):
        position = state.parameters
        load_vector(algorithm.module, position)
        clipped = batch_gradient()
        # Drawn on the host: a numpy Philox generator keeps its whole 128-bit key (torch's keep 32 or 64 bits of a
        # seed), and the path is the same on every device.
        noise = torch.from_numpy(streams.noise.standard_normal(position.numel(), dtype=np.float32))
        step_drift = drift.private_drift(
            clipped.total,
            noise=noise.to(device),
            noise_multiplier=float(noise_multipliers[number]),
            noise_unit=privacy.noise_unit,
            expected_batch_size=expected_batch_size,
            data_free_gradient=algorithm.data_free_gradient(position),
            units=units,
        )
        state = algorithm.kernel.step(state, step_drift, float(sizes[number]))
        if plan.is_kept(number):
            kept.append(algorithm.draw(state.parameters.cpu(), streams.model))
            kept_steps.append(number)
        if on_step is not None:
            on_step(number, state, clipped)
    last = {name: vector.cpu().numpy() for name, vector in to_slots(state, plan.sampler).items()}
    # A parameter that is not finite stays so; a weight draw may leave float32's range where the state has not.
    if not all(np.isfinite(vector).all() for vector in [*last.values(), *(sample.numpy() for sample in kept)]):
        raise ChainDivergedError(
            f"the chain is not finite after step {stop - 1}: lower step_size.initial (now {plan.step_size.initial})"
        )
    stretch = slice(first_step, stop)
    return ChainResult(
        samples=torch.stack(kept).numpy() if kept else np.empty((0, len(last["parameters"])), np.float32),
        sample_steps=tuple(kept_steps),
        sample_weights=tuple(float(sizes[number]) for number in kept_steps),
        sample_temperatures=tuple(float(run_temperatures[number]) for number in kept_steps),
        temperature_mean=float(np.average(run_temperatures[stretch], weights=sizes[stretch])),
        last=last,
    )
