"""One of several classes: cross-entropy, class probabilities, sums by cell of a probability."""

from functools import partial

import numpy.typing as npt

from fl_dpbayes.calibration import (
    COUNT_BINS,
    OUTCOMES,
    BoundedSum,
    CalibrationStatistics,
    Floats,
    SumsForm,
    check_sums,
    coded_counts,
    estimated_prevalence,
    from_batch,
    in_fixed_pieces,
    recalibrate,
    table_shapes,
    with_prevalence,
)
from fl_dpbayes.config import Classification
from fl_dpbayes.outcomes.class_baselines import fit_baselines, of_one_sample
from fl_dpbayes.outcomes.outcome import Adjustments, Outcome
from fl_dpbayes.posterior import CLASS_PROBABILITIES, Prediction
from fl_dpbayes.protocol import PRIOR_CORRECTED, RECALIBRATED
from fl_dpbayes.samplers import summed_cross_entropy


def build(outcome: Classification) -> Outcome[Prediction, CalibrationStatistics]:
    """Return what is computed of class labels."""
    return Outcome(
        loss=summed_cross_entropy,
        law=CLASS_PROBABILITIES,
        sums=class_sums(outcome.classes),
        count=_count,
        count_bounded=_count_bounded,
        adjusted=_adjusted,
        baselines=partial(fit_baselines, classes=outcome.classes),
    )


def class_sums(classes: int) -> SumsForm[CalibrationStatistics]:
    """Return the form of sums over predictions of so many classes."""
    return SumsForm(
        kind=CalibrationStatistics,
        tables=table_shapes(classes),
        check=check_sums,
        noised=(COUNT_BINS, OUTCOMES),
        classes=classes,
    )


def _count(
    prediction: Prediction,
    targets: npt.NDArray,
    chosen: slice | npt.NDArray,
    truth: Floats | None,
) -> CalibrationStatistics:
    return from_batch(
        prediction.probabilities[chosen],
        targets[chosen],
        truth=None if truth is None else truth[chosen],
        epistemic=prediction.epistemic[chosen],
        aleatoric=prediction.aleatoric[chosen],
        total=prediction.total[chosen],
    )


def _count_bounded(
    prediction: Prediction,
    targets: npt.NDArray,
    chosen: slice | npt.NDArray,
) -> BoundedSum:
    return coded_counts(prediction.probabilities[chosen], targets[chosen])


def _adjusted(prediction: Prediction, adjustments: Adjustments) -> dict[str, Prediction]:
    """Return the recalibrated prediction, and the one at the site's own prevalence, not both."""
    probabilities = prediction.probabilities
    trained = adjustments.trained_prevalence
    adjusted = {}
    if adjustments.recalibration is not None:
        mapped = partial(recalibrate, mapping=adjustments.recalibration)
        adjusted[RECALIBRATED] = of_one_sample(in_fixed_pieces(mapped, probabilities))
    if trained is not None:
        target: npt.ArrayLike
        if isinstance(adjustments.prevalence, tuple):
            target = adjustments.prevalence
        else:
            target = estimated_prevalence(probabilities, trained)
        moved = partial(with_prevalence, trained=trained, target=target)
        adjusted[PRIOR_CORRECTED] = of_one_sample(in_fixed_pieces(moved, probabilities))
    return adjusted
