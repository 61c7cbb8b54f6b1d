"""How a study's metrics and axes are called, how their values are written, and means over seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fl_dpbayes.calibration import student_interval
from fl_dpbayes.config import METRICS, Metric
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
    """A mean over seeds of the means over `settings` cells, with Student's t interval over seeds.

    None for one seed.
    """

    mean: float
    ends: tuple[float, float] | None
    seeds: int
    settings: int


def over_seeds(by_seed: Iterable[Sequence[float]]) -> Estimate | None:
    """Average the finite values of each seed, then over seeds; None without any.

    Only seeds count that have as many values as any seed has: a seed whose cell failed would
    average other settings.
    """
    values = list(by_seed)
    most = max(map(len, values), default=0)
    means = [fmean(each) for each in values if len(each) == most] if most else []
    if len(means) < 2:
        return Estimate(means[0], None, 1, most) if means else None
    return Estimate(float(np.mean(means)), student_interval(means), len(means), most)


@dataclass(frozen=True)
class Quantity:
    """A metric as a study says it.

    `share`: written, drawn and listed in percentage points. `short_name`: in a figure's title.
    `unit`: what a figure's vertical axis counts. `noun`: in a sentence.
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

    def estimate(self, found: Estimate) -> str:
        """Write a mean, or a mean difference, with its unit and interval."""
        unit = " points" if self.share else ""
        return f"{self.value(found.mean)}{unit} {interval(found.ends, self.value)}".strip()


def quantity(key: str) -> Quantity:
    """Return how a metric is called and written; an unknown one keeps its own name."""
    metric = METRICS.get(key, Metric(key, ""))
    if key.startswith("ece_if_calibrated"):
        metric = Metric(key, "", better="", unit="share", calibration_error=True)
    share, name = metric.unit == "share", metric.name
    short_name, unit, noun = (
        name,
        "percentage points" if share else "",
        f"the {name[0].lower()}{name[1:]}",
    )
    if key in ("rms_debiased", "rms_true"):
        noun = "the calibration error"
    elif key in ("ece", "ace", "sce", "mce", "auroc"):
        noun = f"the {key.upper()}"
    if key == "rms_debiased":
        short_name, unit = "Calibration error", f"{unit}, debiased RMS"
    elif key in ("accuracy", "nll"):
        unit = "%" if share else "nats per record"
    return Quantity(metric, share, short_name, unit, noun)


def axis_name(axis: str) -> str:
    """Name an axis as figures and sentences do."""
    return AXIS_NAMES.get(axis, axis.rpartition(".")[2].replace("_", " "))


def place_words(where: str) -> str:
    """Name a place of the result table: "pooled:held_out" is "held-out sites"."""
    kind, _, role = where.rpartition(":")
    if kind == "pooled":
        return ROLES.get(role, role)
    return f"{ROLES.get(role, role)} (each counting the same)" if kind == "mean" else where
