"""Poisson batches of a site's units and the clipped sum over each."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fl_dpbayes.config import AnyPrivacyPlan
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
from fl_dpbayes.samplers.gradients.engine import (
    VMAP,
    GradientEngine,
    gradient_engine,
    where_gradients_meet,
)
from fl_dpbayes.samplers.gradients.loss import RecordLoss, summed_cross_entropy
from fl_dpbayes.samplers.gradients.pass_shape import (
    Way,
    checked_gradient_shape,
    fitted_rows,
    rounding_eta,
    wanted_rows,
)
from fl_dpbayes.samplers.gradients.stochastic import resampled
from fl_dpbayes.samplers.gradients.vmap import layer_sizes, per_unit_gradients
from fl_dpbayes.schedules import ChainStreams

# Bits of a unit, 6 / 64 of a word, beside which a share of 1 / 64 of the uniforms costs little.
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
        generator: Drawn from are m ceil(n / 64) whole words, then one u per unit whose bits are 1.
        unit_count: n, 0 or more.
        sampling_rate: q in (0, 1].

    Returns:
        Numbers of the units that join, ascending; often empty where q is small.
    """
    bits = min(_MOST_BITS, max(0, -math.frexp(sampling_rate)[1]))
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

    `features`: shape (N, *shape); N may be 0. `targets`: classes or values as the loss wants them,
    shape (N,). `unit_index`: privacy unit of each record, numbers 0 .. m - 1 without a gap, shape
    (N,). `loss`: minus the log likelihood of records, summed; its gradient is clipped.
    """

    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    unit_index: npt.NDArray[np.int64]
    loss: RecordLoss = summed_cross_entropy

    def __post_init__(self) -> None:
        """Check lengths and the numbering of units."""
        if not len(self.features) == len(self.targets) == len(self.unit_index):
            said = (
                f"{len(self.features)} records, {len(self.targets)} labels, "
                f"{len(self.unit_index)} unit numbers"
            )
            raise ValueError(f"{said}: give one per record")
        if (np.bincount(self.unit_index) == 0).any():
            raise ValueError("unit_index must number the units 0, 1, 2, ... without a gap")


@dataclass(frozen=True)
class GradientPasses:
    """How a run's clipped sums are computed.

    `way`: the engine. `clipped_sum`: its function, like `book_keeping.clipped_sum`. `shape`: of
    every pass. `eta`: how far rounding can move a sum, over the clip norm.
    """

    way: Way
    clipped_sum: Callable[..., ClippedSum]
    shape: PassShape
    eta: float


class BatchGradient:
    """Draws one Poisson batch per call and sums its clipped per-unit gradients.

    Every pass has the same public number of rows, and where a bound is set, gradients are clipped
    to C / (1 + eta), so that a unit with all rounding moves the sum by at most C
    (docs/sensitivity.md).

    `units`: n, the declared number of units; the real one decides nothing but who joins. Raises
    UserError if the module mixes the records of a batch, a record alone does not give the same bits
    twice, or rounding could move the sum by more than 0.001 C.
    """

    def __init__(
        self,
        module: nn.Module,
        records: TrainingRecords,
        privacy: AnyPrivacyPlan,
        units: int,
        streams: ChainStreams,
    ) -> None:
        self._records_of_unit = np.bincount(records.unit_index)
        self._order = np.argsort(records.unit_index, kind="stable")
        like = next(iter(trainable_parameters(module).values()))
        # Read where they lie: arrays of a site are not copied, and cannot be written.
        self._features = uploaded(records.features, like.device, like.dtype)
        self._targets = uploaded(records.targets, like.device)
        self._unit_of_record = records.unit_index[self._order]
        self._module, self._loss, self._privacy, self._streams = (
            module,
            records.loss,
            privacy,
            streams,
        )
        self._record_is_unit = bool((self._records_of_unit == 1).all())
        self._materialises = privacy.pre_noise > 0 or not self._record_is_unit
        loss_name = getattr(records.loss, "__qualname__", repr(records.loss))
        key = (
            "passes",
            structure(module),
            records.features.shape[1:],
            records.targets.dtype,
            loss_name,
            units,
            self._materialises,
            privacy.sampling_rate,
            privacy.clip_norm is None,
            torch.get_num_threads(),
        )
        chosen = KEPT.get(key, partial(self._passes, units), lambda _: 2**12)
        self._clipped_sum = chosen.clipped_sum
        self.passes = chosen.shape
        self._rows = self.passes.rows
        note(self.passes)
        self._clip_norm = (
            math.inf if privacy.clip_norm is None else privacy.clip_norm / (1 + chosen.eta)
        )
        self._chain = None if chosen.way == "vmap" else dense_chain(module)
        # What can be written, here or through what it is a view of, may change between two steps.
        fixed = records.features.flags.owndata and not records.features.flags.writeable
        self._lengths = None
        if self._chain is not None and fixed:
            load = partial(self._chain.input_lengths, self._features, self._rows)
            asked = (
                "lengths",
                id(records.features),
                self._rows,
                self._chain.layers[0].bias is None,
                like.device,
            )
            self._lengths = KEPT.get(asked, load, lambda found: found.nbytes, of=records.features)

    def _passes(self, units: int) -> GradientPasses:
        shape = self._features.shape[1:]
        chosen = self._passes_by(gradient_engine(self._module, shape), units)
        if chosen.way != "book_keeping":
            return chosen
        if where_gradients_meet(self._module, shape, chosen.shape.rows) is None:
            return chosen
        # At another number of rows they did not meet.
        return self._passes_by(VMAP, units)

    def _passes_by(self, engine: GradientEngine, units: int) -> GradientPasses:
        shapes = (self._features.shape[1:], self._targets.dtype, self._loss)
        way: Way = "vmap" if self._materialises else engine.name
        rows, eta = wanted_rows(self._module, way, self._privacy.sampling_rate * units), 0.0
        if way == "book_keeping":
            rows = fitted_rows(self._module, *shapes, rows)
        passes = PassShape("gradients", wanted=rows, rows=rows)
        if self._privacy.clip_norm is not None:
            passes = checked_gradient_shape(self._module, way, *shapes, rows)
            eta = rounding_eta(self._module, way, *shapes, passes.rows, units)
        return GradientPasses(way=way, clipped_sum=engine.clipped_sum, shape=passes, eta=eta)

    def __call__(self) -> ClippedSum:
        """Draw a batch and return its sum of clipped gradients; zeros for an empty batch.

        A unit with a record on which the module raises an error contributes nothing.
        """
        units = poisson_units(
            self._streams.sampling, len(self._records_of_unit), self._privacy.sampling_rate
        )
        rows = (
            units if self._record_is_unit else np.flatnonzero(np.isin(self._unit_of_record, units))
        )
        if self._chain is not None:
            # What fails is tried record by record below.
            with suppress(Exception):
                return self._chain_sum(self._chain, self._order[rows])
        chosen = moved(self._order[rows], self._features.device)
        targets = self._targets.index_select(0, chosen)
        module, features = resampled(
            self._module, self._features.index_select(0, chosen), self._streams.model
        )
        counts = self._records_of_unit[units]
        try:
            return self._sum(module, features, targets, counts)
        except Exception:
            # The module may have written into its inputs.
            features = self._features.index_select(0, chosen)
            if isinstance(self._module, DropoutModule):
                module, features = self._module.with_masks_as_inputs(features)
            one = np.ones(1, np.int64)
            failing = failing_rows(
                lambda part: self._sum(module, part[:1], targets[:1], one), features
            )
            owners = np.repeat(np.arange(len(counts)), counts)
            passing = np.bincount(owners, failing.cpu().numpy(), len(counts)) == 0
            kept = torch.from_numpy(passing[owners]).to(features.device)
            return self._sum(module, features[kept], targets[kept], counts[passing])

    def _chain_sum(self, chain: DenseChain, chosen: npt.NDArray[np.int64]) -> ClippedSum:
        rows, count, known = self._rows, len(chosen), self._lengths
        padded = moved(
            np.concatenate([chosen, np.zeros(-count % rows, np.int64)]), self._features.device
        )

        def piece_sum(first: int) -> ClippedSum:
            part = padded[first : first + rows]
            features, targets = (
                values.index_select(0, part) for values in (self._features, self._targets)
            )
            lengths = None if known is None else known.index_select(0, part)
            features[count - first :].zero_()
            layers = chain.gradients(features, targets, self._loss, lengths, self.passes.products)
            return clip_and_sum(
                layers, self._clip_norm, self._privacy.clipping, min(rows, count - first)
            )

        return add_up(self._module, padded.device, map(piece_sum, range(0, count, rows)))

    def _sum(
        self,
        module: nn.Module,
        features: torch.Tensor,
        targets: torch.Tensor,
        counts: npt.NDArray[np.int64],
    ) -> ClippedSum:
        bound = {"clip_norm": self._clip_norm, "clipping": self._privacy.clipping}
        with computing(self.passes.products):
            if self._materialises:
                return self._materialised_sum(module, features, targets, counts)
            return self._clipped_sum(
                module, features, targets, **bound, loss=self._loss, rows=self._rows
            )

    def _materialised_sum(
        self,
        module: nn.Module,
        features: torch.Tensor,
        targets: torch.Tensor,
        counts: npt.NDArray[np.int64],
    ) -> ClippedSum:
        ends, sizes, rows = (
            np.concatenate([[0], np.cumsum(counts)]),
            layer_sizes(module),
            self._rows,
        )

        def group_sum(first: int) -> ClippedSum:
            # Whole units: a unit cut in two would be clipped twice.
            group = counts[first : first + rows]
            part = slice(ends[first], ends[first + len(group)])
            index = moved(np.repeat(np.arange(len(group)), group), features.device)
            gradients = per_unit_gradients(
                module, features[part], targets[part], index, rows, self._loss, rows
            )
            if self._privacy.pre_noise > 0:
                own = gradients[: len(group)]
                own[:] = with_pre_noise(own, self._privacy.pre_noise, self._streams.pre_noise)
            return sum_clipped(
                gradients, self._clip_norm, self._privacy.clipping, sizes, len(group)
            )

        return add_up(module, features.device, map(group_sum, range(0, len(counts), rows)))
