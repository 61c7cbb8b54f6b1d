"""Poisson batches of a site's units and the clipped sum over each."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.config.clipping import FLAT, Clipping
from fl_dpbayes.models.parameters import trainable_parameters
from fl_dpbayes.samplers.gradients.clipping import ClippedSum, add_up, sum_clipped
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy
from fl_dpbayes.samplers.gradients.pass_shape import Way, checked_gradient_rows, rounding_eta, wanted_rows
from fl_dpbayes.samplers.gradients.pre_noise import with_pre_noise
from fl_dpbayes.samplers.gradients.stochastic import StochasticModule, resampled
from fl_dpbayes.samplers.gradients.units import per_unit_gradients
from fl_dpbayes.samplers.gradients.vmap import layer_sizes

_RESOLUTION = 2.0**-53


def poisson_units(generator: np.random.Generator, unit_count: int, sampling_rate: float) -> npt.NDArray[np.int64]:
    """Draw a batch that every unit joins independently with probability `sampling_rate`, rounded down to 2^-53.

    Args:
        generator: a stream of its own.
        unit_count: number of units.
        sampling_rate: q in (0, 1].

    Returns:
        Numbers of the units that join, ascending; often empty where q is small.
    """
    # Uniforms are multiples of 2^-53: joining at u < q would round q up, many times over where q is near 2^-53.
    return np.flatnonzero(generator.random(unit_count) + _RESOLUTION <= sampling_rate)


class BatchGradient:
    """Draws one Poisson batch per call and sums its clipped per-unit gradients.

    Every pass has the same public number of rows, and where a bound is set, gradients are clipped to C / (1 + eta), so
    that a unit with all rounding moves the sum by at most C (docs/sensitivity.md).

    Args:
        module: the model; each call uses its current parameters.
        features: shape (N, *shape), float32.
        targets: classes (int64) or values (float32), shape (N,).
        unit_index: unit of each record, numbers 0 .. m - 1 without a gap, shape (N,), int64.
        units: n, the declared number of units; the real one decides nothing but who joins.
        sampling_rate: q in (0, 1].
        clip_norm: C > 0, may be infinite for `flat` and `per-layer` clipping.
        sampling_generator: draws who joins.
        device: where the module is and the records shall be.
        clipping: the rule.
        loss: sum over records of the loss whose gradient is clipped.
        pre_noise: rho >= 0, standard deviation of the noise on each unit's gradient before the clip.
        pre_noise_generator: draws that noise; needed if rho > 0.
        resample_generator: draws the randomness of a stochastic module afresh for each batch; needed if it is one.

    Raises:
        ValueError: if lengths differ, units are not numbered so, or a generator is missing.
        UserError: if the module mixes the records of a batch, a record alone does not give the same bits twice, or
            rounding could move the sum by more than 0.001 C.
    """

    def __init__(
        self,
        module: nn.Module,
        features: npt.NDArray[np.float32],
        targets: npt.NDArray[np.int64] | npt.NDArray[np.float32],
        unit_index: npt.NDArray[np.int64],
        *,
        units: int,
        sampling_rate: float,
        clip_norm: float,
        sampling_generator: np.random.Generator,
        device: str | torch.device,
        clipping: Clipping = FLAT,
        loss: RecordLoss = summed_cross_entropy,
        pre_noise: float = 0.0,
        pre_noise_generator: np.random.Generator | None = None,
        resample_generator: np.random.Generator | None = None,
    ) -> None:
        if not len(features) == len(targets) == len(unit_index):
            raise ValueError(
                f"{len(features)} records, {len(targets)} labels, {len(unit_index)} unit numbers: give one per record"
            )
        self._records_of_unit = np.bincount(unit_index)
        if (self._records_of_unit == 0).any():
            raise ValueError("unit_index must number the units 0, 1, 2, ... without a gap")
        if pre_noise > 0 and pre_noise_generator is None:
            raise ValueError(f"pre_noise is {pre_noise}: give pre_noise_generator, a stream of its own")
        if isinstance(module, StochasticModule) and resample_generator is None:
            raise ValueError(f"{type(module).__name__} is stochastic: give resample_generator, a stream of its own")
        order = np.argsort(unit_index, kind="stable")
        dtype = next(iter(trainable_parameters(module).values())).dtype
        self._features = torch.from_numpy(features[order]).to(device=device, dtype=dtype)
        self._targets = torch.from_numpy(targets[order]).to(device)
        self._unit_of_record = unit_index[order]
        self._module = module
        self._sampling_rate = sampling_rate
        self._clipping = clipping
        self._loss = loss
        self._pre_noise = pre_noise
        self._sampling_generator = sampling_generator
        self._pre_noise_generator = pre_noise_generator
        self._resample_generator = resample_generator
        self._record_is_unit = bool((self._records_of_unit == 1).all())
        engine = gradient_engine(module, features.shape[1:])
        self._clipped_sum = engine.clipped_sum
        self._materialises = pre_noise > 0 or not self._record_is_unit
        way: Way = "vmap" if self._materialises else engine.name
        self._rows = wanted_rows(module, way, sampling_rate * units)
        self._clip_norm = clip_norm
        if math.isfinite(clip_norm):
            asked = (module, way, features.shape[1:], self._targets.dtype, loss)
            self._rows = checked_gradient_rows(*asked, self._rows)
            self._clip_norm = clip_norm / (1 + rounding_eta(*asked, self._rows, units))

    def __call__(self) -> ClippedSum:
        """Draw a batch and return its sum of clipped gradients; zeros for an empty batch."""
        units = poisson_units(self._sampling_generator, len(self._records_of_unit), self._sampling_rate)
        rows = units if self._record_is_unit else np.flatnonzero(np.isin(self._unit_of_record, units))
        chosen = torch.from_numpy(rows).to(self._features.device)
        module, features, targets = self._module, self._features[chosen], self._targets[chosen]
        if self._resample_generator is not None:
            module, features = resampled(module, features, self._resample_generator)
        if self._materialises:
            return self._materialised_sum(module, features, targets, self._records_of_unit[units])
        return self._clipped_sum(
            module,
            features,
            targets,
            clip_norm=self._clip_norm,
            clipping=self._clipping,
            loss=self._loss,
            rows=self._rows,
        )

    def _materialised_sum(
        self, module: nn.Module, features: torch.Tensor, targets: torch.Tensor, counts: npt.NDArray[np.int64]
    ) -> ClippedSum:
        ends, sizes, rows = np.concatenate([[0], np.cumsum(counts)]), layer_sizes(module), self._rows

        def group_sum(first: int) -> ClippedSum:
            # Whole units: a unit cut in two would be clipped twice.
            group = counts[first : first + rows]
            part = slice(ends[first], ends[first + len(group)])
            index = torch.from_numpy(np.repeat(np.arange(len(group)), group)).to(features.device)
            gradients = per_unit_gradients(module, features[part], targets[part], index, rows, self._loss, rows)
            if self._pre_noise > 0 and self._pre_noise_generator is not None:
                own = gradients[: len(group)]
                own[:] = with_pre_noise(own, self._pre_noise, self._pre_noise_generator)
            real = torch.arange(rows, device=features.device) < len(group)
            return sum_clipped(gradients, self._clip_norm, self._clipping, sizes, real)

        return add_up(sum(sizes), features.device, map(group_sum, range(0, len(counts), rows)))
