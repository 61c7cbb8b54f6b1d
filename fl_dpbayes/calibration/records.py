"""The rows that calibration writes into a run's summary, and the metrics that they hold.

Fields stand in the order in which they are written.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_serializer

from fl_dpbayes.calibration.curves import (
    CurvePoint,
    Ends,
    NetBenefitRecord,
    Number,
    ReliabilityBin,
    SummaryPart,
    Text,
)
from fl_dpbayes.calibration.intervals import Measured
from fl_dpbayes.calibration.metrics import errors, ranking, scores, two_classes
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.calibration.sums import Sums
from fl_dpbayes.config import Role

KEY_FIELDS = ("site", "role", "predictor", "samples", "attribute", "value", "n")
# Half of the way of AUROC, accuracy, Brier score or calibration error from a perfect model of two
# classes to one that knows nothing.
HALF_OF_CHANCE = 0.25
OVER_SITES: tuple[Literal["pooled", "mean", "median"], ...] = ("pooled", "mean", "median")


@dataclass(frozen=True)
class Metric:
    """A number that follows from the sums that sites add up.

    Attributes:
        function: Sums -> its value, with an interval or bounds where it has one; None where it is
            undefined.
        label: What tables and figures call it; empty for the key in words.
        better: Which values are better; empty where neither is.
        unit: "share" is shown in percentage points.
        rank: 1 stands before 2 in `calibration.csv`, both with columns `_low` and `_high`;
            3 stands last and has none.
        calibration_error: In [0, 1], 0 at best.
        bounded: Its ends are bounds for any order of records within a cell, not an interval.
        widest: Width from which on an interval of noised sums says nothing; infinite where sums
            that leave with noise do not tell the metric.
        needs: Class of the sums that it is a function of.
        key: Its name in `summary.json` and `calibration.csv`; `METRICS` sets it.
    """

    function: Callable[[Any], Measured | float | None]
    label: str = ""
    better: Literal["lower", "higher", ""] = "lower"
    unit: Literal["share", "nats", ""] = ""
    rank: Literal[1, 2, 3] = 2
    calibration_error: bool = False
    bounded: bool = False
    widest: float = math.inf
    needs: type[Sums] = CalibrationStatistics
    key: str = ""

    @property
    def name(self) -> str:
        """What tables and figures call it."""
        return self.label or self.key.replace("_", " ")

    def measure(self, sums: Sums) -> Measured | None:
        """Compute the metric from merged sums; None where it is undefined."""
        value = self.function(sums) if isinstance(sums, self.needs) else None
        if value is None or isinstance(value, Measured):
            return value
        return Measured(value)


def _error(
    function: Callable[[CalibrationStatistics], Measured | float | None],
    label: str = "",
    rank: Literal[1, 2, 3] = 2,
    widest: float = math.inf,
) -> Metric:
    return Metric(function, label, unit="share", rank=rank, calibration_error=True, widest=widest)


class CalibrationValues(SummaryPart):
    """Every metric of one predictor on one set of records; undefined values are None.

    Attributes:
        nll_clipped: How many records had a p_label below the floor.
        ece_if_calibrated: Mean ECE of a calibrated model with the same confidences at this n.
        ece_if_calibrated_high: Its 95 % quantile.
        auroc_bounds: What the AUROC can be, whatever the order within cells; no interval.
        aurc_bounds: What the AURC can be, whatever the order within cells; no interval.
        net_benefit: Decision curve at steps of .05; two classes only.
        n: How many records; rounded where they were counted with noise.
        intervals: 95 % intervals of the metrics that have one that covers. `nll` has none where
            one more wrong answer could change too much.
        cannot_tell: Of noised sums the metrics whose interval is too wide to say anything, which
            have no value; None of exact sums.
    """

    accuracy: Annotated[
        Number,
        Metric(scores.accuracy, "Accuracy", "higher", "share", rank=1, widest=HALF_OF_CHANCE),
    ] = None
    nll: Annotated[
        Number,
        Metric(scores.nll, "Negative log-likelihood", unit="nats", rank=1, widest=math.log(2) / 2),
    ] = None
    nll_clipped: int | None = None
    brier: Annotated[Number, Metric(scores.brier, "Brier score", rank=1, widest=HALF_OF_CHANCE)] = (
        None
    )
    ece: Annotated[Number, _error(errors.ece, "Calibration error, ECE (15 bins)", rank=1)] = None
    ece_10: Annotated[Number, _error(errors.ece_10)] = None
    ece_20: Annotated[Number, _error(errors.ece_20)] = None
    ece_equal_mass: Annotated[Number, _error(errors.ece_equal_mass)] = None
    ece_binary: Annotated[Number, _error(errors.ece_binary)] = None
    ece_if_calibrated: Number = None
    ece_if_calibrated_high: Number = None
    rms_debiased: Annotated[
        Number,
        _error(
            errors.rms_debiased, "Calibration error, debiased RMS", rank=1, widest=HALF_OF_CHANCE
        ),
    ] = None
    ece_true: Annotated[Number, _error(errors.ece_true, "True ECE", rank=3)] = None
    rms_true: Annotated[Number, Metric(errors.rms_true, "True RMS error", unit="share", rank=3)] = (
        None
    )
    mce: Annotated[Number, _error(errors.mce, "Largest bin error (MCE)", rank=1)] = None
    ace: Annotated[Number, _error(errors.ace, "Adaptive error (ACE)", rank=1)] = None
    sce: Annotated[Number, _error(errors.sce, "Class-wise error (SCE)", rank=1)] = None
    auroc: Annotated[
        Number,
        Metric(ranking.auroc, "AUROC", "higher", rank=1, bounded=True, widest=HALF_OF_CHANCE),
    ] = None
    auroc_bounds: Ends = None
    aurc: Annotated[Number, Metric(ranking.aurc, bounded=True)] = None
    aurc_excess: Annotated[Number, Metric(ranking.aurc_excess)] = None
    aurc_bounds: Ends = None
    event_rate: Annotated[
        Number,
        Metric(two_classes.event_rate, "Share with the event", better="", unit="share", widest=0.5),
    ] = None
    mean_risk: Annotated[
        Number,
        Metric(two_classes.mean_risk, "Mean risk", better="", unit="share", rank=3, widest=0.5),
    ] = None
    calibration_intercept: Annotated[
        Number, Metric(two_classes.calibration_intercept, better="", widest=2 * math.log(2))
    ] = None
    calibration_slope: Annotated[
        Number, Metric(two_classes.calibration_slope, better="", widest=1.0)
    ] = None
    net_benefit: tuple[NetBenefitRecord, ...] | None = None
    epistemic: Annotated[Number, Metric(scores.epistemic, better="", unit="nats", rank=3)] = None
    aleatoric: Annotated[Number, Metric(scores.aleatoric, better="", unit="nats", rank=3)] = None
    n: int | None = None
    intervals: dict[str, Ends] = Field(default_factory=dict)
    cannot_tell: tuple[str, ...] | None = None

    @model_serializer(mode="wrap")
    def _key_first_and_intervals_last(
        self, serialize: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        row = serialize(self)
        ordered = {name: row.pop(name) for name in KEY_FIELDS if name in row}
        last = {"intervals": row.pop("intervals")} if "intervals" in row else {}
        return ordered | row | last

    @property
    def noised(self) -> bool:
        """Whether the sums, or those of one of the sites, left with noise."""
        return self.cannot_tell is not None

    def metric(self, key: str) -> float | None:
        """Return a metric's value by its key in `METRICS`."""
        value: float | None = getattr(self, key)
        return value

    def bounds(self, key: str) -> Ends:
        """Return the bounds of a metric that is `bounded`, by its key."""
        ends: Ends = getattr(self, f"{key}_bounds")
        return ends

    def as_row(self) -> dict[str, Any]:
        """Return the values as plain numbers, intervals as lists [low, high]."""
        return self.model_dump(mode="json")


def _declared_metrics() -> dict[str, Metric]:
    metrics = {}
    for key, field in CalibrationValues.model_fields.items():
        for declaration in field.metadata:
            if isinstance(declaration, Metric):
                metrics[key] = replace(declaration, key=key)
    return metrics


# In the order of `summary.json`.
METRICS = _declared_metrics()


class CalibrationRecord(CalibrationValues):
    """How one predictor did at one site, or at all sites of a role.

    Attributes:
        site: A site's name; `pooled:<role>` takes the sites' records as one set, `mean:<role>`
            averages the sites' rows, `median:<role>` is their median, which the report takes.
        role: What the site does in the run.
        predictor: One of `config.PREDICTORS`.
        samples: How many samples the predictor averages.
    """

    site: Text
    role: Role
    predictor: Text
    samples: int | None = None

    @property
    def over(self) -> Literal["pooled", "mean", "median", ""]:
        """What the row is over its role's sites; empty for a single site's row."""
        for kind in OVER_SITES:
            if self.site == f"{kind}:{self.role}":
                return kind
        return ""


class SubgroupRecord(CalibrationRecord):
    """How one predictor did on the records of one subgroup.

    Attributes:
        attribute: What tells subgroups apart, such as "sex".
        value: Its value in this subgroup, such as "female".
    """

    attribute: Text
    value: Text


class ShiftDetectionRecord(SummaryPart):
    """How well uncertainty tells a place's records from those of the training sites.

    Attributes:
        site: A site's name, or `pooled:<role>`.
        predictor: Whose uncertainty it is.
        measure: "epistemic" or "total".
        auroc: Area under the ROC curve; .5 by chance.
        low: The least that it can be, whatever the order within a cell.
        high: The most that it can be, whatever the order within a cell.
        interval: Its 95 % interval.
        n_reference: How many records of training sites.
        n: How many records of the place.
    """

    site: Text
    predictor: Text
    measure: Text
    auroc: Number = None
    low: Number = None
    high: Number = None
    interval: Ends = None
    n_reference: int | None = None
    n: int | None = None


class ConformalRecord(SummaryPart):
    """How conformal prediction sets did at one place.

    Attributes:
        site: A site's name, or `pooled:<role>`.
        role: What the site does in the run.
        predictor: Whose probabilities the sets are made of.
        level: What the coverage is to be at least, in (0, 1).
        weights: "none", "label-shift" (by the place's labels) or "label-shift-estimated"
            (by its predictions).
        calibrated_on: What records the thresholds come from, in words.
        coverage: The share of records whose set holds their label.
        interval: Its 95 % interval.
        size: Mean number of classes in a set; small is better.
        n: How many records of the place.
        n_calibration: How many records the thresholds come from.
    """

    site: Text
    role: Role
    predictor: Text
    level: float
    weights: Text
    calibrated_on: Text = ""
    coverage: Number = None
    interval: Ends = None
    size: Number = None
    n: int | None = None
    n_calibration: int | None = None


class ReliabilityRecord(SummaryPart):
    """The bins of one reliability diagram.

    Attributes:
        site: A site's name, or `pooled:<role>`.
        role: What the site does in the run.
        predictor: One of `config.PREDICTORS`.
        samples: How many samples the predictor averages.
        risk: Whether bins are of class 1's risk (two classes), else of confidence.
        roc: False and true positive rates at falling thresholds, of two classes.
        bins: From low to high.
        curve: A smooth curve of two classes with its band, where enough records tell one.
    """

    site: Text
    role: Role
    predictor: Text
    samples: int | None = None
    risk: bool = False
    roc: tuple[tuple[float, float], ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    bins: tuple[ReliabilityBin, ...]


def metrics_hidden_by_noise(
    members: Sequence[CalibrationRecord], values: Mapping[str, object]
) -> list[str] | None:
    """Name the metrics that noise hid at a site, and that a row over sites has no value of.

    Args:
        members: The rows of the sites.
        values: Of the row over them, by metric.

    Returns:
        The metrics; None where no site's sums left with noise.
    """
    if not any(row.noised for row in members):
        return None
    hidden = {key for row in members for key in row.cannot_tell or ()}
    return sorted(key for key in hidden if values.get(key) is None)
