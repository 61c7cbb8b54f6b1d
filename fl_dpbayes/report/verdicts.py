"""What was seen at each hospital: a row each, in words that need no expert."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from fl_dpbayes.calibration import (
    MOST_SHOWN,
    TOLERATED_FACTOR,
    CalibrationRecord,
    Verdict,
)
from fl_dpbayes.config import counted
from fl_dpbayes.report.hospitals import HospitalVerdict, hospital_verdicts, most_telling
from fl_dpbayes.report.numbers import UNDEFINED, count, decimal, known_ends, unbroken
from fl_dpbayes.report.page_tables import (
    Column,
    PageTable,
    metric_cell,
    of_100,
    rates_cell,
    risk_gap,
    table_of,
)
from fl_dpbayes.report.summary import Summary
from fl_dpbayes.report.wording import event

# A colour is not all: a sign stands with each word.
SIGNS: dict[Verdict, str] = {
    "does not fit": "✗",
    "recalibrate first": "▲",
    "fits here": "✓",
    "too few to tell": "?",
}
# What the style of a page calls the colour of a cell that begins with a sign.
TONES = {"✗": "bad", "▲": "warn", "✓": "good", "?": "open"}
# Beyond it only "over 100" is said.
LARGEST_LOG_FACTOR = 5.0
two_places = partial(decimal, places=2)
# Of how many hospitals whose risks are calibrated one is called off nonetheless: measured for 259
# of 20 to 400 patients (docs/metrics.md).
CALLED_OFF_BY_CHANCE = 20
ROLES = {"held_out": "took no part", "shifted": "changed records", "train": "trained"}


@dataclass(frozen=True)
class Verdicts:
    """What was seen at a run's hospitals.

    Attributes:
        sentence: How many of each word.
        gaps: How far the shown hospitals' risks are from what happened; empty where not known.
        shown: The hospitals that stand unfolded.
        folded: The others.
    """

    sentence: str
    gaps: str
    shown: PageTable
    folded: PageTable


def verdicts(run: Summary) -> Verdicts | None:
    """Return what the page opens with; None where the outcome is not of two classes."""
    hospitals = hospital_verdicts(run)
    if not hospitals:
        return None
    shown = most_telling(hospitals)
    names = {hospital.row.site for hospital in shown}
    columns = verdict_columns(event(run))
    return Verdicts(
        sentence=verdict_counts(hospitals),
        gaps=_gaps(shown),
        shown=table_of(columns, shown),
        folded=table_of(
            columns, (hospital for hospital in hospitals if hospital.row.site not in names)
        ),
    )


def verdict_columns(event_name: str) -> tuple[Column[HospitalVerdict], ...]:
    """Return the columns of a table of verdicts.

    Args:
        event_name: What the risks are of.
    """
    rates = Column[HospitalVerdict](
        f"Of 100 patients, {event_name}", lambda hospital: rates_cell(hospital.row), in_words=True
    )
    return (HOSPITAL, SEEN, rates, ORDER, PATIENTS)


def _narrow_rates(row: CalibrationRecord) -> str:
    if row.mean_risk is None or row.event_rate is None:
        return UNDEFINED
    return f"{of_100(row.mean_risk)}, {of_100(row.event_rate)}"


def _gaps(shown: Sequence[HospitalVerdict]) -> str:
    """Say how far risks are from what happened, at rows of hospitals that did not train if any."""
    unseen = [hospital for hospital in shown if hospital.row.role != "train"]
    where = "did not train" if unseen else "trained"
    optional_gaps = [risk_gap(hospital.row) for hospital in unseen or shown]
    gaps = [gap for gap in optional_gaps if gap is not None]
    if not gaps:
        return ""
    least, most = min(gaps), max(gaps)
    span = f"{most}" if least == most else f"{least} to {most}"
    return f"Where the model {where}, risks differ from what happened by {span} of 100 patients."


def verdict_counts(hospitals: Sequence[HospitalVerdict]) -> str:
    """Say how often each word was told where it matters most: at hospitals that did not train."""
    unseen = [hospital for hospital in hospitals if hospital.row.role != "train"]
    counted = Counter(hospital.word for hospital in unseen or hospitals)
    where = "that took no part" if unseen else "that trained"
    parts = [f"{counted[word]} {word}" for word in SIGNS if counted[word]]
    text = f"Hospitals {where}: {', '.join(parts)}."
    shown = unseen or hospitals
    if len(shown) > MOST_SHOWN:
        text += f" Chance alone calls off about 1 calibrated hospital in {CALLED_OFF_BY_CHANCE}."
    return text


def calibration_words(hospital: HospitalVerdict) -> str:
    """Say what the intervals of intercept and slope show of level and spread of the risks.

    It says of no more than the verdict that it is certain.
    """
    row = hospital.row
    level = known_ends(row.intervals.get("calibration_intercept"))
    slope = known_ends(row.intervals.get("calibration_slope"))
    words = _level_words(level, row.calibration_intercept)
    if hospital.word == "too few to tell":
        return f"Too few to tell. {words}"
    if hospital.word == "fits here":
        seen = f"No large error was seen in {counted(row.n or 0, 'patient')}. {words}"
        if slope is None or not 1 / TOLERATED_FACTOR <= slope[0] <= slope[1] <= TOLERATED_FACTOR:
            seen += " Whether their spread fits is open."
        return seen
    if slope is not None:
        if slope[1] < 1:
            return f"{words} Risks are too extreme."
        if slope[0] > 1:
            return f"{words} Risks are too timid."
    return words


def _level_words(ends: tuple[float, float] | None, intercept: float | None) -> str:
    """Say how many times too high or too low predicted odds are, by the intercept's interval."""
    if ends is None:
        return "The level of risk is not known."
    low, high = ends
    if high < 0:
        return _times_off("high", (-high, -low), None if intercept is None else -intercept)
    if low > 0:
        return _times_off("low", (low, high), intercept)
    if max(-low, high) <= math.log(TOLERATED_FACTOR):
        return "Predicted odds are off by less than 2 times."
    return f"Predicted odds may be {_up_to('high', -low)}, or {_up_to('low', high)}."


def _up_to(direction: str, log_factor: float) -> str:
    factor = _factor(log_factor)
    return f"hardly too {direction}" if factor == "1" else f"up to {factor} times too {direction}"


def _times_off(direction: str, ends: tuple[float, float], estimate: float | None) -> str:
    least, most = map(_factor_above_1, ends)
    if estimate is None:
        return f"Predicted odds are {least} to {most} times too {direction}."
    return unbroken(
        f"Predicted odds are about {_factor_above_1(estimate)} times too {direction} "
        f"({least} to {most})."
    )


def _factor(log_factor: float) -> str:
    factor = math.exp(min(log_factor, LARGEST_LOG_FACTOR))
    return f"{factor:.2g}" if factor < 100 else "over 100"


def _factor_above_1(log_factor: float) -> str:
    """Write a factor above 1 that may not read as 1: 1.02 has three digits, 1.6 has two."""
    text = _factor(log_factor)
    if text != "1":
        return text
    factor = math.exp(log_factor)
    return f"{factor:.2f}" if factor >= 1.005 else "just above 1"


HOSPITAL: Column[HospitalVerdict] = Column(
    "Hospital", lambda hospital: (hospital.row.site, ROLES[hospital.row.role]), in_words=True
)
SEEN: Column[HospitalVerdict] = Column(
    "What was seen", lambda hospital: f"{SIGNS[hospital.word]} {hospital.word}", in_words=True
)
ORDER: Column[HospitalVerdict] = Column(
    "AUROC", lambda hospital: metric_cell(hospital.row, "auroc", two_places)
)
PATIENTS: Column[HospitalVerdict] = Column("Patients", lambda hospital: count(hospital.row.n))
# Of a terminal.
NARROW_COLUMNS = (
    HOSPITAL,
    SEEN,
    Column[HospitalVerdict](
        "Of 100 predicted, happened", lambda hospital: _narrow_rates(hospital.row)
    ),
    ORDER,
    replace(PATIENTS, title="n"),
)
