"""What an attacker reads from the state that a site releases after a stretch of steps: the noisy sums behind it.

The state is linear in the drifts d_k = (G_k + sigma_k C xi_k) / B - (s/n) grad log p(w): with no momentum at the start,

    langevin, plain descent   w_0 - w_m = sum_k a_k d_k
    momentum beta             w_0 - w_m = sum_k d_k sum_{j >= k} a_j beta^(j-k)
    friction alpha            w_0 - w_m = sum_k a_k d_k sum_{j >= k} (1 - alpha)^(j-k)
    Adam                      first moment = sum_k (1 - beta_1) beta_1^(m-1-k) d_k
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.sampler import SGD, SGHMC, Adam, BayesByBackprop, MCDropout, Sampler
from fl_dpbayes.config.task import Model
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.models.variational import divergence_gradient
from fl_dpbayes.privacy.events import noise_of_steps, read_history
from fl_dpbayes.protocol.arrays import Arrays, prefixed, without_prefix
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import arrays_digest
from fl_dpbayes.run.audit.canary_site import CanarySite, ask
from fl_dpbayes.samplers.planned import planned_step_sizes
from fl_dpbayes.samplers.state_vectors import state_arrays, state_vectors

Array = npt.NDArray[np.float64]

ROUNDING = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Course:
    """A run at a canary site: model, plan, and the number that names it."""

    site: CanarySite
    model: Model
    plan: TrainingPlan
    run: int


@dataclass(frozen=True)
class Reading:
    """The weighted mean of a stretch's noisy sums, as the released state gives it, in units of the clip norm.

        y = sum_k v_k (G_k / C + sigma_k xi_k),   sum v_k = 1

    Attributes:
        mean: y, shape (d,), for Bayes by backprop (2 d,).
        weights: v_k, shape (steps,).
        noise_multipliers: sigma_k, as the site's ledger accounts for them.
        sampling_rate: q, as the ledger accounts for it.
        rounding: of each entry of y by float32, shape of y.
        sample_apart: largest difference of the last step's sample from the released state; 0 where it is not kept, or
            is drawn at random.
    """

    mean: Array
    weights: Array
    noise_multipliers: Array
    sampling_rate: float
    rounding: Array
    sample_apart: float

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise in y: sqrt(sum v_k^2 sigma_k^2)."""
        return float(np.linalg.norm(self.weights * self.noise_multipliers))


def read_stretch(course: Course, start: Mapping[str, Array], round_number: int, first_step: int, steps: int) -> Reading:
    """Have a site train, and read the noisy sums off what it releases.

    Args:
        course: the run.
        start: slot -> vector (d,) where the stretch starts; slots that are not named are 0.
        round_number: the round.
        first_step: number of the first step within the run.
        steps: how many.

    Returns:
        The reading.

    Raises:
        UserError: if the site does not train.
    """
    plan, sampler = course.plan, course.plan.sampler
    module = build_model(course.model, course.site.task, seed=0)
    size = len(start["parameters"])
    before: dict[str, torch.Tensor] = {
        slot: torch.from_numpy(start.get(slot, np.zeros(size))).float() for slot in sampler.state_vectors
    }
    arrays = state_arrays(before, module)
    request = TrainRequest(
        run=f"{course.run:032x}",
        round=round_number,
        task=course.site.task,
        model=course.model,
        plan=plan,
        first_step=first_step,
        steps=steps,
        start=arrays_digest(arrays),
    )
    reply, released = ask(course.site, "train", request, prefixed("start", arrays), TrainReply)
    after = state_vectors(without_prefix("last", released), sampler, module)
    sizes = planned_step_sizes(plan)[first_step : first_step + reply.steps]
    coefficients = _coefficients(sampler, sizes)
    position = _position(before, sampler)
    drift = _data_free_gradient(plan, position) * (coefficients.sum() / course.site.file.units)
    if isinstance(sampler, Adam):
        moved, resolution = after["first_moment"].double().numpy(), np.zeros(size)
    else:
        moved = (position - _position(after, sampler)).numpy()
        resolution = ROUNDING * position.abs().numpy()
    scale = plan.privacy.sampling_rate * course.site.file.units / (plan.privacy.noise_unit * coefficients.sum())
    rows = reply.privacy.history
    return Reading(
        mean=(moved - drift) * scale,
        weights=coefficients / coefficients.sum(),
        noise_multipliers=noise_of_steps(read_history(rows))[-reply.steps :],
        sampling_rate=rows[-1][1],
        rounding=(resolution + ROUNDING * np.abs(drift)) * scale,
        sample_apart=_sample_apart(plan, first_step + reply.steps - 1, released),
    )


def _sample_apart(plan: TrainingPlan, last_step: int, released: Arrays) -> float:
    if plan.sampler.draws_samples or not plan.is_kept(last_step):
        return 0.0
    samples, state = without_prefix("samples", released), without_prefix("last/parameters", released)
    return max(float(np.abs(samples[name][-1] - values).max()) for name, values in state.items())


def _position(slots: Mapping[str, torch.Tensor], sampler: Sampler) -> torch.Tensor:
    return torch.cat([slots[name] for name in sampler.position]).double()


def _data_free_gradient(plan: TrainingPlan, position: torch.Tensor) -> Array:
    if isinstance(plan.sampler, BayesByBackprop):
        return divergence_gradient(plan.prior, position, plan.prior_share).numpy()
    return -plan.prior_share * prior_gradient(plan.prior, position).numpy()


def _coefficients(sampler: Sampler, sizes: Array) -> Array:
    steps = np.arange(len(sizes))
    lags = steps[:, None] - steps[None, :]
    match sampler:
        case Adam(first_decay=kept):
            return (1 - kept) * np.power(kept, steps[::-1])
        case SGHMC(friction=friction):
            return sizes * np.where(lags >= 0, np.power(1 - friction, np.abs(lags)), 0.0).sum(axis=0)
        case SGD(momentum=kept) | MCDropout(momentum=kept):
            return (sizes[:, None] * np.where(lags >= 0, np.power(kept, np.abs(lags)), 0.0)).sum(axis=0)
        case _:
            return sizes
