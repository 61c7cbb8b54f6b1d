"""How a study's metrics and axes are called, and how their values are written."""

from dataclasses import dataclass

from fl_dpbayes.config.metrics import METRICS, Metric
from fl_dpbayes.report.numbers import decimal, interval, points
from fl_dpbayes.report.wording import ROLES

AXIS_NAMES = {
    "predictor": "predictor",
    "privacy.epsilon": "ε asked",
    "partition.alpha": "Dirichlet α",
    "aggregation": "aggregation rule",
    "held_out": "held-out site",
    "seed": "seed",
}


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds of the means over `settings` cells, with Student's t interval over seeds; None for one seed."""

    mean: float
    low: float | None
    high: float | None
    seeds: int
    settings: int

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval, where there is one."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Quantity:
    """A metric as a study says it: shares are written, drawn and listed in percentage points."""

    metric: Metric

    @property
    def key(self) -> str:
        """Its column."""
        return self.metric.key

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percentage points."""
        return self.metric.unit == "share"

    @property
    def scale(self) -> float:
        """What values are multiplied by where they are drawn and listed."""
        return 100.0 if self.is_share else 1.0

    def value(self, number: float | None) -> str:
        """Write a value without its unit."""
        return points(number) if self.is_share else decimal(number, 3)

    def estimate(self, found: Estimate) -> str:
        """Write a mean with its unit and interval."""
        unit = " points" if self.is_share else ""
        return f"{self.value(found.mean)}{unit} {interval(found.ends, self.value)}".strip()

    @property
    def short_name(self) -> str:
        """What a figure's title calls it."""
        return "Calibration error" if self.key == "rms_debiased" else self.metric.name

    @property
    def drawn_unit(self) -> str:
        """What the vertical axis of a figure counts."""
        if self.key == "accuracy":
            return "%"
        unit = "percentage points" if self.is_share else "nats per record" if self.key == "nll" else ""
        return f"{unit}, debiased RMS" if self.key == "rms_debiased" else unit

    @property
    def heading(self) -> str:
        """Heads the numbers of a figure."""
        return f"{self.metric.name}, points" if self.is_share else self.metric.name

    @property
    def drawn_places(self) -> int:
        """Decimal places in the table of a figure."""
        return 2 if self.is_share else 4

    @property
    def noun(self) -> str:
        """What a sentence calls it."""
        if self.key in ("rms_debiased", "rms_true"):
            return "the calibration error"
        if self.key in ("ece", "ace", "sce", "mce", "auroc"):
            return f"the {self.key.upper()}"
        return f"the {self.metric.name[0].lower()}{self.metric.name[1:]}"


def quantity(key: str) -> Quantity:
    """Return how a metric is called and written; an unknown one keeps its own name."""
    if key.startswith("ece_if_calibrated"):
        return Quantity(Metric(key, "", better="", unit="share", calibration_error=True))
    return Quantity(METRICS.get(key, Metric(key, "")))


def axis_name(axis: str) -> str:
    """Name an axis as figures and sentences do."""
    return AXIS_NAMES.get(axis, axis.rpartition(".")[2].replace("_", " "))


def place_words(where: str) -> str:
    """Name a place of the result table: "pooled:held_out" is "held-out sites"."""
    kind, _, role = where.rpartition(":")
    if kind == "pooled":
        return ROLES.get(role, role)
    return f"{ROLES.get(role, role)} (each counting the same)" if kind == "mean" else where
