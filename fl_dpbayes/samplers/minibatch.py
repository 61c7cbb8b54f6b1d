"""Poisson batches of a site's units and the clipped sum over each."""

import math
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.config import AnyPrivacyPlan
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT
from fl_dpbayes.models import (
    DropoutModule,
    PassShape,
    computing,
    failing_rows,
    moved,
    note,
    structure,
    trainable_parameters,
    uploaded,
)
from fl_dpbayes.samplers.gradients.clipping import (
    ClippedSum,
    add_up,
    clip_and_sum,
    sum_clipped,
    with_pre_noise,
)
from fl_dpbayes.samplers.gradients.dense_chain import DenseChain, dense_chain
from fl_dpbayes.samplers.gradients.engine import gradient_engine
from fl_dpbayes.samplers.gradients.loss import RecordLoss, loss_name, summed_cross_entropy
from fl_dpbayes.samplers.gradients.pass_shape import (
    Way,
    Workload,
    checked_gradient_shape,
    fitted_rows,
    rounding_eta,
    wanted_rows,
)
from fl_dpbayes.samplers.gradients.stochastic import resampled
from fl_dpbayes.samplers.gradients.vmap import layer_sizes, per_unit_gradients
from fl_dpbayes.schedules import ChainStreams

# What one entry of the cache of chosen passes takes, roughly, in bytes.
_CHOICE_BYTES = 2**12
# Characters of an error of torch that are told.
_LONGEST_REASON = 300
# Six bits a unit cost 6 / 64 of a word, and leave 1 / 64 of the units to draw a uniform.
_MOST_BITS = 6


def poisson_units(
    generator: np.random.Generator,
    unit_count: int,
    sampling_rate: float,
) -> npt.NDArray[np.int64]:
    """Draw a batch that every unit joins by a coin of its own, whatever the others do.

    A unit joins if m fair bits are all 1 and u < q 2^m for a uniform u; m is the largest number up
    to 6 with q < 2^-m, or 0. So it joins with probability q, rounded down to a multiple of
    2^-(53 + m), and only a share 2^-m of the units draws a u (docs/sensitivity.md).

    Args:
        generator: It yields m ceil(n / 64) whole words, then one u per unit whose bits are all 1.
        unit_count: n, 0 or more.
        sampling_rate: q in (0, 1].

    Returns:
        Numbers of the units that join, ascending; often empty where q is small.
    """
    # The exponent e of q = f 2^e with 1/2 <= f < 1.
    exponent = math.frexp(sampling_rate)[1]
    bits = min(_MOST_BITS, max(0, -exponent))
    # Uniforms are multiples of 2^-53: joining at u < q would round q up, many times over where q is
    # near 2^-53.
    if bits == 0:
        return (generator.random(unit_count) + 2.0**-53 <= sampling_rate).nonzero()[0]
    words = generator.integers(0, 2**64, size=(bits, -(-unit_count // 64)), dtype=np.uint64)
    all_ones = np.bitwise_and.reduce(words, axis=0).view(np.uint8)
    candidates = np.unpackbits(all_ones, count=unit_count).view(np.bool_).nonzero()[0]
    # Multiplying by a power of two rounds nothing.
    threshold = math.ldexp(sampling_rate, bits)
    return candidates[generator.random(len(candidates)) + 2.0**-53 <= threshold]


@dataclass(frozen=True)
class TrainingRecords:
    """What a chain is trained on.

    Attributes:
        features: Shape (N, *shape); N may be 0.
        targets: Classes (int64) or values (float32), as the loss wants them, shape (N,).
        unit_index: Privacy unit of each record, numbers 0 .. m - 1 without a gap, shape (N,).
        loss: Minus the log likelihood of records, summed; its gradient is clipped.
    """

    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    unit_index: npt.NDArray[np.int64]
    loss: RecordLoss = summed_cross_entropy

    def __post_init__(self) -> None:
        """Check lengths and the numbering of units."""
        if not len(self.features) == len(self.targets) == len(self.unit_index):
            raise ValueError(
                f"{len(self.features)} records, {len(self.targets)} labels, "
                f"{len(self.unit_index)} unit numbers: give one per record"
            )
        if (np.bincount(self.unit_index) == 0).any():
            raise ValueError("unit_index must number the units 0, 1, 2, ... without a gap")


@dataclass(frozen=True)
class GradientPasses:
    """How a run's clipped sums are computed.

    Attributes:
        way: Name of the engine.
        clipped_sum: The engine's function, like `book_keeping.clipped_sum`.
        shape: What every pass looks like.
        eta: How far rounding can move a sum, over the clip norm.
    """

    way: Way
    clipped_sum: Callable[..., ClippedSum]
    shape: PassShape
    eta: float


class BatchGradient:
    """Draws one Poisson batch per call and sums its clipped per-unit gradients.

    Every pass has the same public number of rows. Where a bound is set, gradients are clipped to
    C / (1 + eta), so that a unit with all rounding moves the sum by at most C
    (docs/sensitivity.md).

    Args:
        module: Its trainable parameters are those of the gradient.
        records: The site's records and their loss.
        privacy: Sampling rate, clip norm, clipping rule and pre-noise.
        units: n, the declared number of units; the real one decides nothing but who joins.
        streams: Random streams of sampling, pre-noise and model.

    Raises:
        UserError: The module mixes the records of a batch, a record does not give the same bits
            twice even in a pass of its own, or rounding could move the sum by more than 0.001 C.
    """

    def __init__(
        self,
        module: nn.Module,
        records: TrainingRecords,
        privacy: AnyPrivacyPlan,
        units: int,
        streams: ChainStreams,
    ) -> None:
        self._module = module
        self._loss = records.loss
        self._privacy = privacy
        self._streams = streams
        self._records_of_unit = np.bincount(records.unit_index)
        self._order = np.argsort(records.unit_index, kind="stable")
        self._unit_of_record = records.unit_index[self._order]
        parameter = next(iter(trainable_parameters(module).values()))
        # On the host they stay where they lie: a site's arrays are not copied, and not written to.
        self._features = uploaded(records.features, device=parameter.device, dtype=parameter.dtype)
        self._targets = uploaded(records.targets, parameter.device)
        self._record_is_unit = bool((self._records_of_unit == 1).all())
        self._materialises = privacy.pre_noise > 0 or not self._record_is_unit
        chosen = KEPT.get(
            self._key_of_passes(records, units),
            partial(self._choose_passes, units),
            lambda _: _CHOICE_BYTES,
        )
        self._clipped_sum = chosen.clipped_sum
        self.passes = chosen.shape
        note(self.passes)
        self._clip_norm = math.inf
        if privacy.clip_norm is not None:
            self._clip_norm = privacy.clip_norm / (1 + chosen.eta)
        self._chain = None if chosen.way == "vmap" else dense_chain(module)
        self._input_lengths = self._known_input_lengths(records.features)

    def _key_of_passes(self, records: TrainingRecords, units: int) -> tuple[Hashable, ...]:
        return (
            "passes",
            structure(self._module),
            records.features.shape[1:],
            records.targets.dtype,
            loss_name(records.loss),
            units,
            self._materialises,
            self._privacy.sampling_rate,
            self._privacy.clip_norm is None,
            torch.get_num_threads(),
        )

    def _choose_passes(self, units: int) -> GradientPasses:
        try:
            return self._chosen_passes(units)
        except RuntimeError as error:
            # It comes from made-up records, so it may be told.
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
            raise UserError(
                f"the module's gradient cannot be computed record by record: {reason}; "
                "see docs/models.md"
            ) from None

    def _chosen_passes(self, units: int) -> GradientPasses:
        engine = gradient_engine(self._module, self._features.shape[1:])
        way: Way = "vmap" if self._materialises else engine.name
        workload = Workload(
            module=self._module,
            way=way,
            input_shape=tuple(self._features.shape[1:]),
            target_type=self._targets.dtype,
            loss=self._loss,
        )
        rows = wanted_rows(
            self._module, way, expected_batch_size=self._privacy.sampling_rate * units
        )
        if way == "book_keeping":
            rows = fitted_rows(workload, rows)
        if self._privacy.clip_norm is None:
            shape = PassShape("gradients", wanted=rows, rows=rows)
            eta = 0.0
        else:
            shape = checked_gradient_shape(workload, rows)
            eta = rounding_eta(workload, rows=shape.rows, units=units)
        return GradientPasses(way=way, clipped_sum=engine.clipped_sum, shape=shape, eta=eta)

    def _known_input_lengths(self, features: npt.NDArray[np.float32]) -> torch.Tensor | None:
        """Return what a dense chain needs of each record at every step, if it stays as it is."""
        # What can be written, here or through what it is a view of, may change between two steps.
        is_fixed = features.flags.owndata and not features.flags.writeable
        if self._chain is None or not is_fixed:
            return None
        rows = self.passes.rows
        has_bias = self._chain.layers[0].bias is not None
        key = ("lengths", id(features), rows, not has_bias, self._features.device)
        compute = partial(self._chain.input_lengths, self._features, rows)
        return KEPT.get(key, compute, lambda lengths: lengths.nbytes, of=features)

    def __call__(self) -> ClippedSum:
        """Draw a batch and return its sum of clipped gradients; zeros for an empty batch.

        A unit with a record on which the module raises an error contributes nothing.
        """
        units = poisson_units(
            self._streams.sampling, len(self._records_of_unit), self._privacy.sampling_rate
        )
        places = units
        if not self._record_is_unit:
            places = np.flatnonzero(np.isin(self._unit_of_record, units))
        numbers = self._order[places]
        if self._chain is not None:
            # Where this fails, each record is tried by itself below.
            with suppress(Exception):
                return self._chain_sum(self._chain, numbers)
        index = moved(numbers, self._features.device)
        targets = self._targets.index_select(0, index)
        module, features = resampled(
            self._module, self._features.index_select(0, index), self._streams.model
        )
        counts = self._records_of_unit[units]
        try:
            return self._sum(module, features, targets=targets, counts=counts)
        except Exception:
            # Taken anew, since the module may have written into its inputs.
            features = self._features.index_select(0, index)
            if isinstance(self._module, DropoutModule):
                module, features = self._module.with_masks_as_inputs(features)
            return self._sum_of_passing_units(module, features, targets=targets, counts=counts)

    def _chain_sum(self, chain: DenseChain, numbers: npt.NDArray[np.int64]) -> ClippedSum:
        rows = self.passes.rows
        count = len(numbers)
        padding = np.zeros(-count % rows, np.int64)
        index = moved(np.concatenate([numbers, padding]), self._features.device)

        def piece_sum(first: int) -> ClippedSum:
            piece = index[first : first + rows]
            features = self._features.index_select(0, piece)
            targets = self._targets.index_select(0, piece)
            lengths = None
            if self._input_lengths is not None:
                lengths = self._input_lengths.index_select(0, piece)
            features[count - first :].zero_()
            layers = chain.gradients(
                features, targets, loss=self._loss, lengths=lengths, products=self.passes.products
            )
            return clip_and_sum(
                layers,
                clip_norm=self._clip_norm,
                clipping=self._privacy.clipping,
                count=min(rows, count - first),
            )

        return add_up(self._module, index.device, sums=map(piece_sum, range(0, count, rows)))

    def _sum(
        self,
        module: nn.Module,
        features: torch.Tensor,
        targets: torch.Tensor,
        counts: npt.NDArray[np.int64],
    ) -> ClippedSum:
        with computing(self.passes.products):
            if self._materialises:
                return self._materialised_sum(module, features, targets=targets, counts=counts)
            return self._clipped_sum(
                module,
                features,
                targets,
                clip_norm=self._clip_norm,
                clipping=self._privacy.clipping,
                loss=self._loss,
                rows=self.passes.rows,
            )

    def _sum_of_passing_units(
        self,
        module: nn.Module,
        features: torch.Tensor,
        targets: torch.Tensor,
        counts: npt.NDArray[np.int64],
    ) -> ClippedSum:
        """Leave out the units with a record on which the module raises an error."""
        one_record = np.ones(1, np.int64)
        fails = failing_rows(
            lambda part: self._sum(module, part[:1], targets=targets[:1], counts=one_record),
            features,
        )
        unit_of_row = np.repeat(np.arange(len(counts)), counts)
        failures_of_unit = np.bincount(unit_of_row, fails.cpu().numpy(), len(counts))
        passes = failures_of_unit == 0
        rows = torch.from_numpy(passes[unit_of_row]).to(features.device)
        return self._sum(module, features[rows], targets=targets[rows], counts=counts[passes])

    def _materialised_sum(
        self,
        module: nn.Module,
        features: torch.Tensor,
        targets: torch.Tensor,
        counts: npt.NDArray[np.int64],
    ) -> ClippedSum:
        rows = self.passes.rows
        ends = np.concatenate([[0], np.cumsum(counts)])
        sizes = layer_sizes(module)

        def group_sum(first: int) -> ClippedSum:
            # Whole units: a unit cut in two would be clipped twice.
            group = counts[first : first + rows]
            part = slice(ends[first], ends[first + len(group)])
            unit_of_row = moved(np.repeat(np.arange(len(group)), group), features.device)
            gradients = per_unit_gradients(
                module,
                features[part],
                targets[part],
                unit_index=unit_of_row,
                units=rows,
                loss=self._loss,
                rows=rows,
            )
            if self._privacy.pre_noise > 0:
                of_units = gradients[: len(group)]
                of_units[:] = with_pre_noise(
                    of_units, scale=self._privacy.pre_noise, generator=self._streams.pre_noise
                )
            return sum_clipped(
                gradients,
                clip_norm=self._clip_norm,
                clipping=self._privacy.clipping,
                layer_sizes=sizes,
                count=len(group),
            )

        return add_up(module, features.device, sums=map(group_sum, range(0, len(counts), rows)))
