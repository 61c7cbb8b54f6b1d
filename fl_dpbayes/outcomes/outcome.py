"""What every kind of outcome is, to those who train, predict and measure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy.typing as npt

from fl_dpbayes.calibration import BoundedSum, Floats, SumsForm
from fl_dpbayes.calibration.sums import SumsT
from fl_dpbayes.config import RecalibrationMap, SitePrevalence, TrainedPrevalence
from fl_dpbayes.data import SiteSplit
from fl_dpbayes.posterior import PredictiveLaw
from fl_dpbayes.samplers import RecordLoss

PredictionT = TypeVar("PredictionT")
PredictionOf = TypeVar("PredictionOf", contravariant=True)
SumsOf = TypeVar("SumsOf", covariant=True)


@dataclass(frozen=True)
class Adjustments:
    """What a site does to its predictions beside measuring them as they are.

    Attributes:
        recalibration: A map that was fitted to them, if any.
        trained_prevalence: Shares of the classes where the model was trained, if declared.
        prevalence: Shares of the classes at the site, declared or to be estimated.
    """

    recalibration: RecalibrationMap | None = None
    trained_prevalence: TrainedPrevalence | None = None
    prevalence: SitePrevalence | None = None


class Count(Protocol[PredictionOf, SumsOf]):
    """Counts predictions of records."""

    def __call__(
        self,
        prediction: PredictionOf,
        targets: npt.NDArray,
        chosen: slice | npt.NDArray,
        truth: Floats | None,
    ) -> SumsOf:
        """Count some records.

        Args:
            prediction: Of N records.
            targets: Their targets, shape (N,).
            chosen: Which of them to count.
            truth: What made-up targets were drawn from, N rows; None where nobody knows it.
        """


def no_adjustment(prediction: Any, adjustments: Adjustments) -> Mapping[str, Any]:
    """Say that a prediction has no adjusted forms."""
    return {}


@dataclass(frozen=True)
class Baseline:
    """A simple predictor that was fitted to training records.

    Attributes:
        predictor: Its name in the summary.
        predict: Predicts records.
        trained_at: The one site that it was fitted to; "" for all of them.
    """

    predictor: str
    predict: Callable[[SiteSplit], Any]
    trained_at: str = ""


@dataclass(frozen=True)
class FittedBaselines:
    """The simple predictors of a run.

    Attributes:
        fitted: Those that could be fitted.
        missing: Name of another one -> why it could not.
    """

    fitted: tuple[Baseline, ...]
    missing: dict[str, str]


def no_baselines(training: Mapping[str, SiteSplit], scored: bool) -> FittedBaselines:
    """Say that an outcome has no simple predictors."""
    return FittedBaselines(fitted=(), missing={"all": "this outcome has none"})


@dataclass(frozen=True)
class Outcome(Generic[PredictionT, SumsT]):
    """What is computed of an outcome.

    Attributes:
        loss: (outputs (N, K), targets (N,)) -> minus the log likelihood of the records, summed.
            Each record's depends on its own row alone; its gradient is clipped.
        law: How a prediction follows from the outputs of posterior samples.
        sums: Form of the sums over test records that a site sends.
        count: Counts predictions into these sums.
        count_bounded: Counts (prediction, targets, which records) into the table that may leave
            with noise, `sums.noised`, which one record moves by its sensitivity at most; None
            where there is none.
        adjusted: What follows from the posterior's prediction by a map or another prevalence, by
            the name of the predictor. A request asks only for what the outcome's record allows.
        baselines: Fits (site -> its training records, whether all test records have a published
            score) simple predictors, which a simulation's page shows beside the run.
    """

    loss: RecordLoss
    law: PredictiveLaw[PredictionT]
    sums: SumsForm[SumsT]
    count: Count[PredictionT, SumsT]
    count_bounded: Callable[[PredictionT, npt.NDArray, slice | npt.NDArray], BoundedSum] | None = (
        None
    )
    adjusted: Callable[[PredictionT, Adjustments], Mapping[str, PredictionT]] = no_adjustment
    baselines: Callable[[Mapping[str, SiteSplit], bool], FittedBaselines] = no_baselines
