"""The predictive distribution: class probabilities averaged over posterior samples, and their uncertainty."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import entr
from torch import nn
from torch.func import vmap

from fl_dpbayes.errors import UserError
from fl_dpbayes.models import (
    PassShape,
    RowWise,
    Trial,
    check_unmoved,
    computing,
    moved,
    trainable_parameters,
    uploaded,
)
from fl_dpbayes.models import rows as passes

Floats = npt.NDArray[np.float64]
Values = Mapping[str, torch.Tensor]
# Samples of a pass, and entries of all of them.
_MOST_TOGETHER = 16
_ENTRIES_IN_CACHE, _ENTRIES_ON_GPU = 2**18, 2**25

logger = logging.getLogger("fl_dpbayes")


@dataclass(frozen=True)
class Prediction:
    """Class probabilities of records and how uncertain they are, entropies in nats, (N,).

    `probabilities`: p(y | x) averaged over the posterior, (N, classes). `total`: entropy of these.
    `aleatoric`: averaged entropy of the single samples' probabilities. `epistemic`: total -
    aleatoric, the mutual information of label and parameters, >= 0.
    """

    probabilities: Floats
    total: Floats
    aleatoric: Floats
    epistemic: Floats


def predict(
    module: nn.Module,
    samples: Mapping[str, npt.NDArray[np.float32]],
    weights: npt.NDArray[np.float64],
    features: npt.NDArray[np.float32],
    *,
    device: str | torch.device = "cpu",
) -> Prediction:
    """Average the class probabilities of posterior samples.

    p(y | x) = sum_m v_m softmax(f(x; w_m))_y,  v = weights / sum of weights. Entropies follow
    Depeweg et al. 2018: total H[p], aleatoric sum_m v_m H[p_m], epistemic their difference. Several
    samples of a small model share a pass, on a GPU of any. A sample whose logits for a record are
    not all finite, or cannot be computed, predicts every class alike for it. Every pass has one
    shape, at which a record's prediction does not depend on other records, to the last bit
    (docs/sensitivity.md).

    `module` is moved to `device`; its parameters are not changed. `samples`: name -> (M, *shape), M
    >= 1. `weights`: >= 0, not all zero. Raises ValueError if these do not fit the samples,
    RowsDependError if a single row does not give the same bits twice, UserError if a call leaves
    something of the records in the module.
    """
    shares = np.asarray(weights, np.float64)
    counts = {len(array) for array in samples.values()}
    if shares.ndim != 1 or counts != {len(shares)}:
        raise ValueError(
            f"weights have shape {shares.shape}, samples per parameter are {sorted(counts)}"
        )
    if not (shares >= 0).all() or not 0 < shares.sum() < np.inf:
        raise ValueError("weights must be finite, 0 or more, and not all 0")
    shares = shares / shares.sum()
    device = torch.device(device)
    module.to(device)
    check_unmoved(module, features.shape[1:])
    computed = RowWise(module)
    shape, together = _pass_shape(computed, features.shape[1:], device, len(shares))
    passes.note(shape)
    inputs = uploaded(features, device)
    sums = [torch.zeros(())] * 2
    for first in range(0, len(shares), together):
        numbers = np.arange(first, first + together)
        # The last sample fills a pass up, without weight.
        chosen = np.minimum(numbers, len(shares) - 1)
        values = {name: moved(array[chosen], device) for name, array in samples.items()}
        share = moved(np.where(numbers < len(shares), shares[chosen], 0.0), device)
        with computing(shape.products):
            sums = list(
                map(torch.add, sums, _predict_samples(computed, values, share, inputs, shape.rows))
            )
    probabilities, aleatoric = (each.cpu().numpy() for each in sums)
    total = entr(probabilities).sum(axis=1)
    return Prediction(probabilities, total, aleatoric, np.maximum(total - aleatoric, 0.0))


def _predict_samples(
    computed: RowWise, values: Values, shares: torch.Tensor, features: torch.Tensor, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sum_m v_m softmax(f(x; w_m)), (N, classes), and sum_m v_m of its entropy, (N,), over some samples."""
    found: list[list[torch.Tensor]] = []
    # Where there is no record, a pass of padding alone says how many classes there are.
    for start in range(0, max(1, len(features)), rows):
        count = min(rows, len(features) - start)
        part, _ = passes.padded(rows, features[start : start + rows])
        with torch.no_grad():
            try:
                logits = _outputs(computed, values, part)
            except Exception:
                logits = torch.cat(
                    [_past_failing(computed, values, number, part) for number in range(len(shares))]
                )
        # An error would tell the sender of a hostile sample, without noise, that a record makes it
        # overflow.
        logits = torch.where(logits.isfinite().all(dim=2, keepdim=True), logits, 0.0)
        single = logits.double().softmax(dim=2)
        weighted = (
            shares[:, None, None] * single,
            shares[:, None] * torch.special.entr(single).sum(dim=2),
        )
        # One after the other, so that a record's place in the pass is no part of the sum.
        found.append([reduce(torch.add, each.unbind())[:count] for each in weighted])
    return torch.cat([each for each, _ in found]), torch.cat([each for _, each in found])


def _outputs(computed: RowWise, values: Values, rows: torch.Tensor) -> torch.Tensor:
    """Return what a module computes of rows (P, ...) under each of S samples, (S, P, classes)."""
    compute = computed.for_rows(rows)
    if len(next(iter(values.values()))) == 1:
        return compute({name: value[0] for name, value in values.items()}, rows.clone())[None]
    return vmap(lambda drawn: compute(drawn, rows.clone()))(values)


def _past_failing(
    computed: RowWise, values: Values, number: int, part: torch.Tensor
) -> torch.Tensor:
    # In a pass of the same shape.
    alone = {name: value[number].expand_as(value) for name, value in values.items()}
    failing = passes.failing_rows(lambda rows: _outputs(computed, alone, rows), part)
    rest = part.clone()
    rest[failing] = 0
    logits = _outputs(computed, alone, rest)[:1]
    logits[:, failing] = torch.nan
    return logits


def _pass_shape(
    computed: RowWise, shape: tuple[int, ...], device: torch.device, samples: int
) -> tuple[PassShape, int]:
    """Return the shape and the samples of a pass: several samples where the module can be mapped over them."""
    together = min(samples, _samples_together(computed.module, device))
    if together > 1:
        try:
            passes_of_several = _checked_shape(computed, shape, device, together)
            if not passes_of_several.one_by_one:
                return passes_of_several, together
        except Exception:
            logger.debug(
                "samples are predicted one by one: this module cannot be mapped over them",
                exc_info=True,
            )
    try:
        return _checked_shape(computed, shape, device, 1), 1
    except UserError:
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(
            f"the module cannot be computed record by record: {said}; see docs/models.md"
        ) from None


def _samples_together(module: nn.Module, device: torch.device) -> int:
    on_host, size = device.type == "cpu", sum(value.numel() for value in module.parameters())
    if on_host and passes.prediction_rows(module) < passes.PREDICTION_ROWS:
        # There convolutions with several weights are slower than one after the other.
        return 1
    return min(
        _MOST_TOGETHER, max(1, (_ENTRIES_IN_CACHE if on_host else _ENTRIES_ON_GPU) // max(1, size))
    )


def _checked_shape(
    computed: RowWise, input_shape: tuple[int, ...], device: torch.device, together: int
) -> PassShape:
    module = computed.module

    def trials(shape: PassShape) -> Iterator[Trial]:
        generator = torch.Generator().manual_seed(shape.rows)
        features = torch.randn((shape.rows, *input_shape), generator=generator).to(device)
        labels = torch.zeros(shape.rows, device=device)
        drawn = [trainable_parameters(each) for each in passes.drawn_modules(module)] * -(
            -together // passes.DRAWS
        )
        groups = [drawn[first : first + together] for first in range(0, len(drawn), together)]
        for group in groups:
            values = {
                name: torch.stack([each[name].detach() for each in group]) for name in group[0]
            }

            def results(
                part: torch.Tensor, _: torch.Tensor, values: Values = values
            ) -> list[torch.Tensor]:
                with torch.no_grad(), computing(shape.products):
                    return [_outputs(computed, values, part).movedim(0, 1)]

            yield Trial(results, features, labels)

    key = ("prediction", passes.structure(module), tuple(input_shape), together)
    rows = passes.prediction_rows(module)
    return passes.checked_shape(key, PassShape("predictions", wanted=rows, rows=rows), trials)
