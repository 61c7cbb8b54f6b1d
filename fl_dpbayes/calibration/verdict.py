"""What was seen at a hospital, in one word of four: the rule behind each is here alone."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from fl_dpbayes.calibration.curves import Ends
from fl_dpbayes.calibration.records import CalibrationValues

Verdict = Literal["fits here", "recalibrate first", "does not fit", "too few to tell"]
# Odds that are off by less are called a fit, and so are slopes no steeper or flatter.
TOLERATED_FACTOR = 2.0
# Of two patients, one with the event and one without, the right one has the higher risk so often.
LEAST_AUROC = 0.6
_CHANCE = 0.5
# Where more hospitals were tested, so many are shown first.
MOST_SHOWN = 12
CLEARLY_OFF: tuple[Verdict, ...] = ("does not fit", "recalibrate first")


@dataclass(frozen=True)
class _Range:
    """Values at which nothing need be done, around the calibrated one."""

    low: float
    calibrated: float
    high: float

    def holds(self, ends: tuple[float, float]) -> bool:
        """Say whether an interval lies within."""
        return self.low <= ends[0] and ends[1] <= self.high

    def is_missed(self, ends: tuple[float, float] | None) -> bool:
        """Say whether an interval misses the calibrated value, and does not lie within."""
        if ends is None or self.holds(ends):
            return False
        return not ends[0] <= self.calibrated <= ends[1]


_LEVEL = _Range(low=-math.log(TOLERATED_FACTOR), calibrated=0.0, high=math.log(TOLERATED_FACTOR))
_SLOPE = _Range(low=1 / TOLERATED_FACTOR, calibrated=1.0, high=TOLERATED_FACTOR)


def verdict(values: CalibrationValues) -> Verdict | None:
    """Say what 95 % intervals show of predicted risks at a hospital.

    - does not fit: the AUROC is below .6, so patients are hardly put in order;
    - recalibrate first: the AUROC is above .5, but intercept or slope misses 0 or 1, and may do so
      by more than a factor of 2 in the odds or in the slope;
    - fits here: the AUROC is above .5, the intercept is within that factor, and nothing shows that
      the slope is not;
    - too few to tell: none of these is certain.

    Args:
        values: Of one predictor at one hospital.

    Returns:
        The word; None where the outcome is not of two classes, or nothing was measured.
    """
    is_hidden = values.noised and "event_rate" in (values.cannot_tell or ())
    if values.event_rate is None and not is_hidden:
        return None
    order = _known(values.intervals.get("auroc"))
    level = _known(values.intervals.get("calibration_intercept"))
    slope = _known(values.intervals.get("calibration_slope"))
    if order is not None and order[1] < LEAST_AUROC:
        return "does not fit"
    if order is None or level is None or order[0] <= _CHANCE:
        return "too few to tell"
    if _LEVEL.is_missed(level) or _SLOPE.is_missed(slope):
        return "recalibrate first"
    return "fits here" if _LEVEL.holds(level) else "too few to tell"


def recommended_predictor(measured: Collection[str]) -> str:
    """Return whose risks a hospital would take, chosen without a look at any outcome.

    A level for each hospital where the run has one, else the averaged posterior, else the last
    state.
    """
    for predictor in ("hierarchical", "posterior"):
        if predictor in measured:
            return predictor
    return "last"


def telling_order(values: CalibrationValues, *, trained: bool) -> tuple[bool, bool, float]:
    """Return by what hospitals are sorted of which few can be shown: the most telling first.

    Those that are clearly off come first, then those that took no part, then those whose mean risk
    is farthest from the share of patients with the event.

    Args:
        values: Of one predictor at one hospital.
        trained: Whether the hospital took part in training.
    """
    gap = 0.0
    if values.mean_risk is not None and values.event_rate is not None:
        gap = abs(values.mean_risk - values.event_rate)
    return verdict(values) not in CLEARLY_OFF, trained, -gap


def _known(ends: Ends) -> tuple[float, float] | None:
    """Return an interval that has both ends."""
    if ends is None or ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1]
