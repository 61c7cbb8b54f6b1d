"""The points of curves and diagrams, from which `report` draws."""

import math
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict


def _empty_if_none(value: object) -> object:
    return "" if value is None else value


def _none_if_nan(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    return value


Text = Annotated[str, BeforeValidator(_empty_if_none)]
Number = Annotated[float | None, AfterValidator(_none_if_nan)]
Ends = tuple[Number, Number] | None


class SummaryPart(BaseModel):
    """A frozen part of the summary; keys that the report does not know are left aside."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class NetBenefitRecord(SummaryPart):
    """Net benefit of treating above a threshold, beside treating all and none.

    Attributes:
        threshold: Predicted probability above which a patient is treated.
        counts: True and false positives, false and true negatives.
        model: Net benefit per record by the model, with its 95 % interval.
        interval: The interval of `model`.
        all: Net benefit per record of treating everyone.
        none: Net benefit of treating no one, which is 0.
    """

    threshold: float
    counts: tuple[int, int, int, int] | None = None
    model: Number = None
    interval: Ends = None
    all: Number = None
    none: Number = None


class ReliabilityBin(SummaryPart):
    """Records whose risk, or confidence, is in [low, high).

    Attributes:
        low: Lower end of the bin.
        high: Upper end of the bin.
        n: How many records.
        confidence: Their mean risk, or confidence.
        accuracy: The share of them with the event, or predicted rightly.
        band_low: Lower end of where 95 % of a calibrated model's points would lie.
        band_high: Upper end of it.
    """

    low: float
    high: float
    n: int
    confidence: Number = None
    accuracy: Number = None
    band_low: Number = None
    band_high: Number = None


class CurvePoint(SummaryPart):
    """A point of a smooth calibration curve.

    Attributes:
        risk: The predicted risk.
        observed: How often the event happens at it.
        low: Lower end of the pointwise 95 % band.
        high: Upper end of it.
    """

    risk: float
    observed: float
    low: float
    high: float
