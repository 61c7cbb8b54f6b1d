"""Runs a stretch of a private chain at a site and keeps its samples."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.models.parameters import load_vector
from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.protocol.plan import TrainingPlan
from fl_dpbayes.samplers import dp_sgld
from fl_dpbayes.samplers.minibatch import BatchGradient
from fl_dpbayes.schedules.noise import temperatures
from fl_dpbayes.schedules.step_size import step_sizes


class ChainDivergedError(ArithmeticError):
    """The chain left the range of float32; a smaller step size is the remedy.

    Raised after the last planned step of the stretch, whose privacy is spent. That a noisy iterate is not finite
    follows from released quantities alone (every iterate is accounted as released), so saying it costs nothing more.
    """


@dataclass(frozen=True)
class ChainResult:
    """What a stretch of a chain leaves; all of it is post-processing of noisy sums and public constants.

    Attributes:
        samples: kept states, shape (M, d), float32; M may be 0.
        sample_steps: step after which each was kept (0-based, of the whole run), M numbers.
        sample_weights: step size a_t of each (Welling and Teh weigh averages over a chain by it).
        sample_temperatures: T_t of each.
        step_weight: sum of a_t over the stretch.
        temperature_mean: a_t-weighted mean of T_t over the stretch.
        temperature_low: smallest T_t of the stretch.
        temperature_high: largest T_t of the stretch.
        last: the last state, shape (d,), float32.
    """

    samples: npt.NDArray[np.float32]
    sample_steps: tuple[int, ...]
    sample_weights: tuple[float, ...]
    sample_temperatures: tuple[float, ...]
    step_weight: float
    temperature_mean: float
    temperature_low: float
    temperature_high: float
    last: npt.NDArray[np.float32]


def run_chain(
    module: nn.Module,
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    unit_index: npt.NDArray[np.int64],
    *,
    plan: TrainingPlan,
    noise_multipliers: npt.NDArray[np.float64],
    units: int,
    first_step: int,
    steps: int,
    start: torch.Tensor,
    sampling_generator: np.random.Generator,
    noise_generator: np.random.Generator,
    pre_noise_generator: np.random.Generator | None = None,
    device: str | torch.device = "cpu",
    on_step: Callable[[int], None] | None = None,
) -> ChainResult:
    """Run `steps` steps of a planned chain from a given state.

    w_{t+1} = w_t - a_t [(G_t + sigma_t C xi_t) / B - (s/n) grad log p(w_t)], G_t the sum of clipped gradients over a
    batch that every unit joins independently with probability q; B = q n. An empty batch is a step like any other.

    Args:
        module: the model, its parameters are overwritten.
        features: the site's training records, shape (N, *shape), float32; N may be 0.
        labels: their classes, shape (N,), int64.
        unit_index: privacy unit of each record, numbers 0 .. m - 1 without a gap, shape (N,), int64.
        plan: the whole run's plan.
        noise_multipliers: sigma_t of the whole run, shape (plan.total_steps,).
        units: n, the number of privacy units that the site declares; the real count enters nowhere.
        first_step: number of the first step within the run.
        steps: how many steps, >= 1.
        start: state before `first_step`, shape (d,).
        sampling_generator: draws who joins each batch; used for nothing else.
        noise_generator: draws the noise on the sums; used for nothing else.
        pre_noise_generator: draws the noise before the clip; needed if the plan's `pre_noise` is positive.
        device: where the arithmetic runs.
        on_step: called with the step's number after each step, for progress.

    Returns:
        Samples, weights, temperatures and the last state.

    Raises:
        ValueError: if the stretch does not lie within the plan, lengths differ, or a generator is missing.
        UserError: if the module mixes the records of a batch.
        ChainDivergedError: if the last state is not finite.
    """
    stop = first_step + steps
    if steps < 1 or first_step < 0 or stop > plan.total_steps or len(noise_multipliers) != plan.total_steps:
        raise ValueError(
            f"steps {first_step} to {stop} with {len(noise_multipliers)} noise multipliers do not fit a plan of "
            f"{plan.total_steps} steps"
        )
    privacy = plan.privacy
    expected_batch_size = privacy.sampling_rate * units
    sizes = step_sizes(plan.step_size, plan.total_steps)
    run_temperatures = temperatures(
        sizes,
        noise_multipliers,
        clip_norm=privacy.clip_norm,
        expected_batch_size=expected_batch_size,
        units=units,
    )
    module.to(device)
    batch_gradient = BatchGradient(
        module,
        features,
        labels,
        unit_index,
        privacy=privacy,
        sampling_generator=sampling_generator,
        pre_noise_generator=pre_noise_generator,
        device=device,
    )
    state = dp_sgld.init(start.to(device=device, dtype=torch.float32), first_step)
    kept: list[torch.Tensor] = []
    kept_steps: list[int] = []
    for number in range(first_step, stop):
        load_vector(module, state.parameters)
        clipped_sum = batch_gradient()
        # Drawn on the host: a numpy Philox generator keeps its whole 128-bit key (torch's keep 32 or 64 bits of a
        # seed), and the path is the same on every device.
        noise = torch.from_numpy(noise_generator.standard_normal(start.numel(), dtype=np.float32))
        state = dp_sgld.step(
            state,
            clipped_sum,
            step_size=float(sizes[number]),
            noise_multiplier=float(noise_multipliers[number]),
            clip_norm=privacy.clip_norm,
            expected_batch_size=expected_batch_size,
            units=units,
            log_prior_gradient=prior_gradient(plan.prior, state.parameters),
            prior_share=plan.prior_share,
            noise=noise.to(device),
        )
        if plan.is_kept(number):
            kept.append(state.parameters.cpu())
            kept_steps.append(number)
        if on_step is not None:
            on_step(number)
    last = state.parameters.cpu().numpy()
    # A parameter that is not finite stays so, hence a finite last state means finite samples.
    if not np.isfinite(last).all():
        raise ChainDivergedError(
            f"the chain is not finite after step {stop - 1}: lower step_size.initial (now {plan.step_size.initial})"
        )
    stretch = slice(first_step, stop)
    return ChainResult(
        samples=torch.stack(kept).numpy() if kept else np.empty((0, len(last)), np.float32),
        sample_steps=tuple(kept_steps),
        sample_weights=tuple(float(sizes[number]) for number in kept_steps),
        sample_temperatures=tuple(float(run_temperatures[number]) for number in kept_steps),
        step_weight=float(sizes[stretch].sum()),
        temperature_mean=float(np.average(run_temperatures[stretch], weights=sizes[stretch])),
        temperature_low=float(run_temperatures[stretch].min()),
        temperature_high=float(run_temperatures[stretch].max()),
        last=last,
    )
