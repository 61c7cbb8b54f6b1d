"""The predictive distribution: predictions averaged over samples, and their uncertainty."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Generic, NamedTuple, TypeVar

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
_ENTRIES_IN_CACHE = 2**18
_ENTRIES_ON_GPU = 2**25
_LONGEST_REASON = 300

logger = logging.getLogger("fl_dpbayes")


PredictionT = TypeVar("PredictionT")


@dataclass(frozen=True)
class PredictiveLaw(Generic[PredictionT]):
    """How a prediction follows from what a model returns under each posterior sample.

    Attributes:
        terms: Outputs of S samples for P records, (S, P, K), float64 -> what is averaged over
            samples, each of shape (S, P, ...). Every row is computed by itself.
        prediction: The averages, each of shape (N, ...) -> the prediction of N records.
    """

    terms: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    prediction: Callable[..., PredictionT]


@dataclass(frozen=True)
class Prediction:
    """Class probabilities of N records and how uncertain they are, entropies in nats.

    Attributes:
        probabilities: p(y | x) averaged over the posterior, shape (N, classes).
        total: Entropy of these, shape (N,).
        aleatoric: Averaged entropy of the single samples' probabilities, shape (N,).
        epistemic: total - aleatoric, the mutual information of label and parameters, >= 0, shape
            (N,).
    """

    probabilities: Floats
    total: Floats
    aleatoric: Floats
    epistemic: Floats


def _probabilities_and_entropies(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    probabilities = logits.softmax(dim=2)
    return probabilities, torch.special.entr(probabilities).sum(dim=2)


def _class_prediction(probabilities: Floats, aleatoric: Floats) -> Prediction:
    total = entr(probabilities).sum(axis=1)
    return Prediction(
        probabilities=probabilities,
        total=total,
        aleatoric=aleatoric,
        epistemic=np.maximum(total - aleatoric, 0.0),
    )


# Entropies follow Depeweg et al. 2018: total H[p], aleatoric sum_m v_m H[p_m], epistemic their
# difference.
CLASS_PROBABILITIES = PredictiveLaw(_probabilities_and_entropies, _class_prediction)


def predict(
    module: nn.Module,
    samples: Mapping[str, npt.NDArray[np.float32]],
    weights: npt.NDArray[np.float64],
    features: npt.NDArray[np.float32],
    *,
    device: str | torch.device = "cpu",
) -> Prediction:
    """Average the class probabilities of posterior samples.

        p(y | x) = sum_m v_m softmax(f(x; w_m))_y,    v = weights / sum of weights

    Args:
        module: As for `average_predictions`, and so are all others.
        samples: Parameter -> shape (M, *shape), M >= 1.
        weights: Shape (M,).
        features: Shape (N, ...).
        device: Where to compute.

    Returns:
        The prediction.
    """
    return average_predictions(
        module, samples, weights, features, law=CLASS_PROBABILITIES, device=device
    )


def average_predictions(
    module: nn.Module,
    samples: Mapping[str, npt.NDArray[np.float32]],
    weights: npt.NDArray[np.float64],
    features: npt.NDArray[np.float32],
    *,
    law: PredictiveLaw[PredictionT],
    device: str | torch.device = "cpu",
) -> PredictionT:
    """Average what a law makes of a model's outputs over posterior samples.

        sum_m v_m t(f(x; w_m)),    v = weights / sum of weights, t the law's terms

    Several samples of a small model share a pass, on a GPU of any. A sample whose outputs for a
    record are not all finite, or cannot be computed, counts as if they were zero. Every pass has
    one shape, at which a record's prediction does not depend on other records, to the last bit
    (docs/sensitivity.md).

    Args:
        module: Moved to `device`; its parameters are not changed.
        samples: Parameter -> shape (M, *shape), M >= 1.
        weights: Shape (M,), >= 0, not all zero.
        features: What the model sees of N records, shape (N, ...).
        law: What is averaged, and what follows.
        device: Where to compute.

    Returns:
        The law's prediction.

    Raises:
        ValueError: If the weights do not fit the samples.
        RowsDependError: If a single row does not give the same bits twice.
        UserError: If a call leaves something of the records in the module.
    """
    shares = _checked_shares(weights, samples)
    device = torch.device(device)
    module.to(device)
    check_unmoved(module, features.shape[1:])
    computed = RowWise(module)
    sample_pass = _sample_pass(
        computed=computed, input_shape=features.shape[1:], device=device, samples=len(shares)
    )
    passes.note(sample_pass.shape)
    inputs = uploaded(features, device)
    totals: list[torch.Tensor] = []
    for first in range(0, len(shares), sample_pass.samples):
        numbers = np.arange(first, first + sample_pass.samples)
        # The last sample fills a pass up, without weight.
        chosen = np.minimum(numbers, len(shares) - 1)
        values = {name: moved(array[chosen], device) for name, array in samples.items()}
        chosen_shares = moved(np.where(numbers < len(shares), shares[chosen], 0.0), device)
        with computing(sample_pass.shape.products):
            sums = _sum_samples(
                computed=computed,
                values=values,
                shares=chosen_shares,
                features=inputs,
                rows=sample_pass.shape.rows,
                law=law,
            )
            totals = totals or [torch.zeros(())] * len(sums)
            totals = [torch.add(total, term) for total, term in zip(totals, sums, strict=True)]
    return law.prediction(*(total.cpu().numpy() for total in totals))


def _checked_shares(
    weights: npt.NDArray[np.float64], samples: Mapping[str, npt.NDArray[np.float32]]
) -> Floats:
    """Return the weights of the samples, which sum to 1."""
    shares = np.asarray(weights, np.float64)
    counts = {len(array) for array in samples.values()}
    if shares.ndim != 1 or counts != {len(shares)}:
        raise ValueError(
            f"weights have shape {shares.shape}, samples per parameter are {sorted(counts)}"
        )
    if not (shares >= 0).all() or not 0 < shares.sum() < np.inf:
        raise ValueError("weights must be finite, 0 or more, and not all 0")
    return shares / shares.sum()


def _sum_samples(
    computed: RowWise,
    values: Values,
    shares: torch.Tensor,
    features: torch.Tensor,
    rows: int,
    law: PredictiveLaw[PredictionT],
) -> list[torch.Tensor]:
    """Return sum_m v_m t(f(x; w_m)) over some samples, each term of shape (N, ...)."""
    parts: list[list[torch.Tensor]] = []
    # Where there is no record, a pass of padding alone says what shape a prediction has.
    for start in range(0, max(1, len(features)), rows):
        count = min(rows, len(features) - start)
        part, _ = passes.padded(rows, features[start : start + rows])
        with torch.no_grad():
            try:
                outputs = _outputs(computed, values, part)
            except Exception:
                outputs = torch.cat(
                    [
                        _without_failing_rows(
                            computed=computed, values=values, number=number, rows=part
                        )
                        for number in range(len(shares))
                    ]
                )
        # An error would tell the sender of a hostile sample, without noise, that a record makes it
        # overflow.
        outputs = torch.where(outputs.isfinite().all(dim=2, keepdim=True), outputs, 0.0)
        terms = law.terms(outputs.double())
        weighted = [shares.view(-1, *(1,) * (term.dim() - 1)) * term for term in terms]
        parts.append([_in_order(term)[:count] for term in weighted])
    return [torch.cat(pieces) for pieces in zip(*parts, strict=True)]


def _in_order(terms: torch.Tensor) -> torch.Tensor:
    """Add terms up one after the other, so that a record's place in the pass plays no part."""
    return reduce(torch.add, terms.unbind())


def _outputs(computed: RowWise, values: Values, rows: torch.Tensor) -> torch.Tensor:
    """Return what a module computes of rows (P, ...) under each of S samples, (S, P, K)."""
    if len(next(iter(values.values()))) == 1:
        return computed({name: value[0] for name, value in values.items()}, rows.clone())[None]
    return vmap(lambda of_sample: computed(of_sample, rows.clone()))(values)


def _without_failing_rows(
    computed: RowWise, values: Values, number: int, rows: torch.Tensor
) -> torch.Tensor:
    """Return one sample's outputs, (1, P, K), not a number for rows that raise an error."""
    # In a pass of the same shape.
    repeated = {name: value[number].expand_as(value) for name, value in values.items()}
    failing = passes.failing_rows(partial(_outputs, computed, repeated), rows)
    harmless = rows.clone()
    harmless[failing] = 0
    outputs = _outputs(computed, repeated, harmless)[:1]
    outputs[:, failing] = torch.nan
    return outputs


class _SamplePass(NamedTuple):
    """The shape of a pass, and how many samples it computes."""

    shape: PassShape
    samples: int


def _sample_pass(
    computed: RowWise, input_shape: tuple[int, ...], device: torch.device, samples: int
) -> _SamplePass:
    """Choose a pass: of several samples where the module can be mapped over them."""
    together = min(samples, _samples_together(computed.module, device))
    checked = partial(_checked_shape, computed, input_shape, device)
    if together > 1:
        try:
            shape = checked(together)
            if not shape.one_by_one:
                return _SamplePass(shape, together)
        except Exception:
            logger.debug(
                "samples are predicted one by one: this module cannot be mapped over them",
                exc_info=True,
            )
    try:
        return _SamplePass(checked(1), 1)
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
        raise UserError(
            f"the module cannot be computed record by record: {reason}; see docs/models.md"
        ) from None


def _samples_together(module: nn.Module, device: torch.device) -> int:
    """Return how many samples fit into a pass."""
    on_host = device.type == "cpu"
    if on_host and passes.prediction_rows(module) < passes.PREDICTION_ROWS:
        # There convolutions with several weights are slower than one after the other.
        return 1
    size = sum(value.numel() for value in module.parameters())
    entries = _ENTRIES_IN_CACHE if on_host else _ENTRIES_ON_GPU
    return min(_MOST_TOGETHER, max(1, entries // max(1, size)))


def _checked_shape(
    computed: RowWise, input_shape: tuple[int, ...], device: torch.device, together: int
) -> PassShape:
    """Return a shape at which made-up rows do not depend on each other."""
    module = computed.module

    def results(
        shape: PassShape, values: Values, rows: torch.Tensor, _: torch.Tensor
    ) -> list[torch.Tensor]:
        with torch.no_grad(), computing(shape.products):
            return [_outputs(computed, values, rows).movedim(0, 1)]

    def trials(shape: PassShape) -> Iterator[Trial]:
        generator = torch.Generator().manual_seed(shape.rows)
        features = torch.randn((shape.rows, *input_shape), generator=generator).to(device)
        labels = torch.zeros(shape.rows, device=device)
        repeats = -(-together // passes.DRAWS)
        drawn = [trainable_parameters(copy) for copy in passes.drawn_modules(module)] * repeats
        for first in range(0, len(drawn), together):
            group = drawn[first : first + together]
            values = {
                name: torch.stack([parameters[name].detach() for parameters in group])
                for name in group[0]
            }
            yield Trial(partial(results, shape, values), features, labels)

    key = ("prediction", passes.structure(module), tuple(input_shape), together)
    rows = passes.prediction_rows(module)
    return passes.checked_shape(key, PassShape("predictions", wanted=rows, rows=rows), trials)
