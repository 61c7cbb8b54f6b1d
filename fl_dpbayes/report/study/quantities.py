"""How a study's metrics and axes are called, and how their values are written."""

from dataclasses import dataclass

from fl_dpbayes.report.numbers import decimal, interval, points
from fl_dpbayes.report.wording import METRIC_NAMES, ROLES

SHARES = ("accuracy", "ece", "mce", "ace", "sce", "rms_debiased", "rms_true", "ece_true")
HIGHER_IS_BETTER = ("accuracy", "auroc")
ERRORS = ("ece", "ace", "sce", "mce", "rms_debiased")
NO_DIRECTION = ("calibration_intercept", "calibration_slope", "epistemic", "aleatoric", "ece_if_calibrated")
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
    """A mean with its 95% interval.

    Attributes:
        mean: over seeds of the mean over settings.
        low: end of Student's t interval over seeds; None for a single one.
        high: the other end.
        seeds: how many.
        settings: over how many cells a seed's mean goes.
    """

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
    """A metric: `unit` follows a value in a sentence, `scale` and `places` are how it is drawn and listed."""

    key: str
    name: str
    scale: float
    places: int
    unit: str

    def value(self, number: float) -> str:
        """Write a value without its unit."""
        return points(number) if self.scale == 100 else decimal(number, self.places)

    def estimate(self, found: Estimate) -> str:
        """Write a mean with its unit and interval."""
        return f"{self.value(found.mean)}{self.unit} {interval(found.ends, lambda end: self.value(end or 0.0))}".strip()

    @property
    def short_name(self) -> str:
        """What a figure's title calls it."""
        return "Calibration error" if self.key == "rms_debiased" else self.name

    @property
    def drawn_unit(self) -> str:
        """What the vertical axis of a figure counts."""
        if self.key == "accuracy":
            return "%"
        unit = "percentage points" if self.scale == 100 else "nats per record" if self.key == "nll" else ""
        return f"{unit}, debiased RMS" if self.key == "rms_debiased" else unit

    @property
    def heading(self) -> str:
        """Heads the numbers of a figure."""
        return f"{self.name}, points" if self.scale == 100 else self.name

    @property
    def drawn_places(self) -> int:
        """Decimal places in the table of a figure."""
        return 2 if self.scale == 100 else 4

    @property
    def noun(self) -> str:
        """What a sentence calls it."""
        if self.key in ("rms_debiased", "rms_true"):
            return "the calibration error"
        if self.key in ("ece", "ace", "sce", "mce", "auroc"):
            return f"the {self.key.upper()}"
        return f"the {self.name[0].lower()}{self.name[1:]}"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value is a better model."""
        return self.key in HIGHER_IS_BETTER

    @property
    def sided(self) -> bool:
        """Whether larger or smaller is better at all."""
        return self.key not in NO_DIRECTION

    @property
    def is_error(self) -> bool:
        """Whether it is a calibration error, in [0, 1], 0 at best."""
        return self.key.startswith(ERRORS)


def quantity(key: str) -> Quantity:
    """Return how a metric is called and written; an unknown one keeps its own name."""
    share = key in SHARES or key.startswith(ERRORS)
    name = METRIC_NAMES.get(key, key.replace("_", " "))
    return Quantity(key, name, 100.0 if share else 1.0, 1 if share else 3, " points" if share else "")


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
