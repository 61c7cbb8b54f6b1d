"""The metrics of a predictor on a set of records, one record each.

Tables, figures and files go through them.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A number that follows from the sums that sites add up.

    `key`: its name in `summary.json` and `calibration.csv`, and of the function that computes it,
    in the module `file` of `calibration/metrics`. `label`: what tables and figures call it; empty
    for the key in words. `better`: which values are. `unit`: of a share percentage points are
    shown. `rank`: 1 stands before 2 in `calibration.csv`, and has columns `_low` and `_high` as 2
    has; 3 stands last and has none. `calibration_error`: in [0, 1], 0 at best. `bounded`: its ends
    are bounds that hold for any order of records within a cell, not an interval.
    """

    key: str
    file: str
    label: str = ""
    better: Literal["lower", "higher", ""] = "lower"
    unit: Literal["share", "nats", ""] = ""
    rank: Literal[1, 2, 3] = 2
    calibration_error: bool = False
    bounded: bool = False

    @property
    def name(self) -> str:
        """What tables and figures call it."""
        return self.label or self.key.replace("_", " ")


def _error(key: str, label: str = "", rank: Literal[1, 2, 3] = 2) -> Metric:
    return Metric(key, "errors", label, unit="share", rank=rank, calibration_error=True)


# In the order of `summary.json`.
METRICS = {
    metric.key: metric
    for metric in (
        Metric("accuracy", "scores", "Accuracy", "higher", "share", rank=1),
        Metric("nll", "scores", "Negative log-likelihood", unit="nats", rank=1),
        Metric("brier", "scores", "Brier score", rank=1),
        _error("ece", "Calibration error, ECE (15 bins)", rank=1),
        _error("ece_10"),
        _error("ece_20"),
        _error("ece_equal_mass"),
        _error("ece_binary"),
        _error("rms_debiased", "Calibration error, debiased RMS", rank=1),
        _error("ece_true", rank=3),
        Metric("rms_true", "errors", unit="share", rank=3),
        _error("mce", "Largest bin error (MCE)", rank=1),
        _error("ace", "Adaptive error (ACE)", rank=1),
        _error("sce", "Class-wise error (SCE)", rank=1),
        Metric("auroc", "ranking", "AUROC", "higher", rank=1, bounded=True),
        Metric("aurc", "ranking", bounded=True),
        Metric("aurc_excess", "ranking"),
        Metric("calibration_intercept", "two_classes", better=""),
        Metric("calibration_slope", "two_classes", better=""),
        Metric("epistemic", "scores", better="", unit="nats", rank=3),
        Metric("aleatoric", "scores", better="", unit="nats", rank=3),
    )
}
