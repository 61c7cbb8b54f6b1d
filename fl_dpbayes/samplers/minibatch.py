"""Poisson batches of a site's units and the clipped sum over each."""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.gradients.clipping import sum_clipped
from fl_dpbayes.gradients.engine import gradient_engine
from fl_dpbayes.gradients.pre_noise import with_pre_noise
from fl_dpbayes.gradients.units import per_unit_gradients
from fl_dpbayes.gradients.vmap import records_per_chunk
from fl_dpbayes.models.parameters import trainable_parameters
from fl_dpbayes.protocol.plan import PrivacyPlan


def poisson_units(generator: np.random.Generator, unit_count: int, sampling_rate: float) -> npt.NDArray[np.int64]:
    """Draw a batch that every unit joins independently with probability `sampling_rate`.

    Args:
        generator: a stream of its own.
        unit_count: number of units.
        sampling_rate: q in (0, 1].

    Returns:
        Numbers of the units that join, ascending; often empty where q is small.
    """
    return np.flatnonzero(generator.random(unit_count) < sampling_rate)


class BatchGradient:
    """Draws one Poisson batch per call and sums its clipped per-unit gradients.

    Args:
        module: the model; each call uses its current parameters.
        features: shape (N, *shape), float32.
        labels: shape (N,), int64.
        unit_index: unit of each record, numbers 0 .. m - 1 without a gap, shape (N,), int64.
        privacy: sampling rate q, clip norm C and pre-noise rho.
        sampling_generator: draws who joins.
        pre_noise_generator: draws the noise before the clip; needed if rho > 0.
        device: where the module is and the records shall be.

    Raises:
        ValueError: if lengths differ, units are not numbered so, or a generator is missing.
        UserError: if the module mixes the records of a batch.
    """

    def __init__(
        self,
        module: nn.Module,
        features: npt.NDArray[np.float32],
        labels: npt.NDArray[np.int64],
        unit_index: npt.NDArray[np.int64],
        *,
        privacy: PrivacyPlan,
        sampling_generator: np.random.Generator,
        pre_noise_generator: np.random.Generator | None,
        device: str | torch.device,
    ) -> None:
        if not len(features) == len(labels) == len(unit_index):
            raise ValueError(
                f"{len(features)} records, {len(labels)} labels, {len(unit_index)} unit numbers: give one per record"
            )
        self._records_of_unit = np.bincount(unit_index)
        if (self._records_of_unit == 0).any():
            raise ValueError("unit_index must number the units 0, 1, 2, ... without a gap")
        if privacy.pre_noise > 0 and pre_noise_generator is None:
            raise ValueError(f"pre_noise is {privacy.pre_noise}: give pre_noise_generator, a stream of its own")
        order = np.argsort(unit_index, kind="stable")
        dtype = next(iter(trainable_parameters(module).values())).dtype
        self._features = torch.from_numpy(features[order]).to(device=device, dtype=dtype)
        self._labels = torch.from_numpy(labels[order]).to(device)
        self._unit_of_record = unit_index[order]
        self._module = module
        self._privacy = privacy
        self._sampling = sampling_generator
        self._pre_noise = pre_noise_generator
        self._clipped_sum = gradient_engine(module, features.shape[1:]).clipped_sum
        self._units_per_group = records_per_chunk(module)
        self._record_is_unit = bool((self._records_of_unit == 1).all())

    def __call__(self) -> torch.Tensor:
        """Draw a batch and return its sum of clipped gradients, shape (d,), float32; zeros for an empty batch."""
        units = poisson_units(self._sampling, len(self._records_of_unit), self._privacy.sampling_rate)
        if self._record_is_unit and self._privacy.pre_noise == 0:
            rows = torch.from_numpy(units).to(self._features.device)
            return self._clipped_sum(
                self._module, self._features[rows], self._labels[rows], clip_norm=self._privacy.clip_norm
            )
        # Groups of whole units: a unit cut in two would be clipped twice.
        groups = [
            units[start : start + self._units_per_group]
            for start in range(0, max(1, len(units)), self._units_per_group)
        ]
        return torch.stack([self._materialised_sum(group) for group in groups]).sum(0)

    def _materialised_sum(self, units: npt.NDArray[np.int64]) -> torch.Tensor:
        rows = np.flatnonzero(np.isin(self._unit_of_record, units))
        positions = np.repeat(np.arange(len(units)), self._records_of_unit[units])
        device = self._features.device
        gradients = per_unit_gradients(
            self._module,
            self._features[torch.from_numpy(rows).to(device)],
            self._labels[torch.from_numpy(rows).to(device)],
            torch.from_numpy(positions).to(device),
            len(units),
        )
        if self._pre_noise is not None and self._privacy.pre_noise > 0:
            gradients = with_pre_noise(gradients, self._privacy.pre_noise, self._pre_noise)
        return sum_clipped(gradients, self._privacy.clip_norm)
