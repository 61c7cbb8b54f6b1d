"""How a study's metrics and axes are called, how their values are written, and means over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fl_dpbayes.calibration import METRICS, Metric, student_interval
from fl_dpbayes.report.numbers import decimal, interval, points
from fl_dpbayes.report.wording import ROLES

AXIS_NAMES = {
    "privacy.epsilon": "ε asked",
    "partition.alpha": "Dirichlet α",
    "aggregation": "aggregation rule",
    "held_out": "held-out site",
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds of the means over settings.

    Attributes:
        mean: The mean.
        ends: Its interval by Student's t over seeds; None for one seed.
        seeds: How many seeds.
        settings: How many settings each seed was averaged over.
    """

    mean: float
    ends: tuple[float, float] | None
    seeds: int
    settings: int


def over_seeds(by_seed: Iterable[Sequence[float]]) -> Estimate | None:
    """Average the finite values of each seed, then over seeds; None without any.

    Only seeds count that have as many values as any seed has: a seed whose cell failed would
    average other settings.

    Args:
        by_seed: Values of each seed, one for each setting.
    """
    values = list(by_seed)
    settings = max(map(len, values), default=0)
    if settings == 0:
        return None
    means = [fmean(of_seed) for of_seed in values if len(of_seed) == settings]
    if len(means) == 1:
        return Estimate(mean=means[0], ends=None, seeds=1, settings=settings)
    return Estimate(
        mean=float(np.mean(means)),
        ends=student_interval(means),
        seeds=len(means),
        settings=settings,
    )


@dataclass(frozen=True)
class Quantity:
    """A metric as a study says it.

    Attributes:
        metric: The metric.
        share: Whether it is written, drawn and listed in percentage points.
        short_name: Its name in a figure's title.
        unit: What a figure's vertical axis counts.
        noun: Its name in a sentence.
    """

    metric: Metric
    share: bool
    short_name: str
    unit: str
    noun: str

    @property
    def key(self) -> str:
        """Its column."""
        return self.metric.key

    def value(self, number: float | None) -> str:
        """Write a value without its unit."""
        return points(number) if self.share else decimal(number, 3)

    def ends(self, estimate: Estimate | None) -> str:
        """Write an interval without unit; empty without one."""
        return "" if estimate is None else interval(estimate.ends, self.value)

    def estimate(self, estimate: Estimate) -> str:
        """Write a mean, or a mean difference, with its unit and interval."""
        unit = " points" if self.share else ""
        return f"{self.value(estimate.mean)}{unit} {self.ends(estimate)}".strip()


def _unmeasured(sums: object) -> None:
    """What no sums of a site tell, a study may still compare."""


def quantity(key: str) -> Quantity:
    """Return how a metric is called and written; an unknown one keeps its own name."""
    metric = METRICS.get(key, Metric(_unmeasured, key=key))
    if key.startswith("ece_if_calibrated"):
        metric = Metric(_unmeasured, better="", unit="share", calibration_error=True, key=key)
    name = metric.name
    share = metric.unit == "share"
    short_name = name
    unit = "percentage points" if share else ""
    noun = f"the {name[0].lower()}{name[1:]}"
    if key in ("rms_debiased", "rms_true"):
        noun = "the calibration error"
    elif key in ("ece", "ace", "sce", "mce", "auroc"):
        noun = f"the {key.upper()}"
    if key == "rms_debiased":
        short_name = "Calibration error"
        unit = f"{unit}, debiased RMS"
    elif key == "accuracy":
        unit = "%"
    elif key == "nll":
        unit = "nats per record"
    return Quantity(metric=metric, share=share, short_name=short_name, unit=unit, noun=noun)


def axis_name(axis: str) -> str:
    """Name an axis as figures and sentences do."""
    return AXIS_NAMES.get(axis, axis.rpartition(".")[2].replace("_", " "))


def place_words(where: str) -> str:
    """Name a place of the result table: "pooled:held_out" is "held-out sites"."""
    kind, _, role = where.rpartition(":")
    if kind == "pooled":
        return ROLES.get(role, role)
    if kind == "mean":
        return f"{ROLES.get(role, role)} (each counting the same)"
    return where
