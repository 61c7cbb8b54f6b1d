"""What was seen at each hospital: a row each, in words that need no expert."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fl_dpbayes.calibration import CalibrationRecord, Verdict, verdict
from fl_dpbayes.report.headline import headline_predictor
from fl_dpbayes.report.numbers import UNDEFINED, count, decimal, known_ends, points
from fl_dpbayes.report.page_tables import (
    Cell,
    Column,
    PageTable,
    metric_cell,
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
two_places = partial(decimal, places=2)
# More hospitals are folded, but for those that are clearly off, and then the farthest off.
MOST_UNFOLDED = 12
CLEARLY_OFF: tuple[Verdict, ...] = ("does not fit", "recalibrate first")
ROLES = {"held_out": "took no part", "shifted": "changed records", "train": "trained"}


@dataclass(frozen=True)
class HospitalVerdict:
    """What one predictor showed at one hospital."""

    row: CalibrationRecord
    word: Verdict

    @property
    def gap(self) -> float:
        """By how much the mean risk is off the share with the event, in either direction."""
        if self.row.mean_risk is None or self.row.event_rate is None:
            return 0.0
        return abs(self.row.mean_risk - self.row.event_rate)


@dataclass(frozen=True)
class Verdicts:
    """What was seen at a run's hospitals.

    Attributes:
        sentence: How many of each word.
        shown: The hospitals that stand unfolded.
        folded: The others.
    """

    sentence: str
    shown: PageTable
    folded: PageTable


def hospital_verdicts(run: Summary) -> list[HospitalVerdict]:
    """Return a verdict for each hospital with two classes.

    Those that took no part come first, of them those that are clearly off, then the farthest off.
    """
    predictor = headline_predictor(run)
    hospitals = []
    for row in run.calibration:
        word = verdict(row)
        if not row.over and row.predictor == predictor and word is not None:
            hospitals.append(HospitalVerdict(row=row, word=word))
    order = list(ROLES)
    return sorted(
        hospitals, key=lambda hospital: (order.index(hospital.row.role), *_interest(hospital))
    )


def most_telling(hospitals: Sequence[HospitalVerdict]) -> list[HospitalVerdict]:
    """Return those of many hospitals that are clearly off, then the farthest off, in order."""
    if len(hospitals) <= MOST_UNFOLDED:
        return list(hospitals)
    names = {hospital.row.site for hospital in sorted(hospitals, key=_interest)[:MOST_UNFOLDED]}
    return [hospital for hospital in hospitals if hospital.row.site in names]


def _interest(hospital: HospitalVerdict) -> tuple[bool, float]:
    return hospital.word not in CLEARLY_OFF, -hospital.gap


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
        f"Of 100 patients with {event_name}", lambda hospital: _rates(hospital.row), in_words=True
    )
    return (HOSPITAL, SEEN, rates, ORDER, PATIENTS)


def _narrow_rates(row: CalibrationRecord) -> str:
    if row.mean_risk is None or row.event_rate is None:
        return UNDEFINED
    return f"{_of_100(row.mean_risk)}, {_of_100(row.event_rate)}"


def _rates(row: CalibrationRecord) -> Cell:
    """Say how many of 100 patients were predicted to have the event, and how many had it."""
    if row.mean_risk is None or row.event_rate is None:
        return "hidden by noise", ""
    ends = known_ends(row.intervals.get("event_rate"))
    between = "" if ends is None else f"{100 * ends[0]:.0f} to {100 * ends[1]:.0f}"
    return f"predicted {_of_100(row.mean_risk)}, happened {_of_100(row.event_rate)}", between


def _of_100(share: float) -> str:
    """Write how many of 100 patients a share is; between 0 and 1 with one place."""
    return points(share) if 0 < share < 0.01 else f"{100 * share:.0f}"


def verdict_counts(hospitals: Sequence[HospitalVerdict]) -> str:
    """Say how often each word was told where it matters most: at hospitals that did not train."""
    unseen = [hospital for hospital in hospitals if hospital.row.role != "train"]
    counted = Counter(hospital.word for hospital in unseen or hospitals)
    where = "that took no part" if unseen else "that trained"
    parts = [f"{counted[word]} {word}" for word in SIGNS if counted[word]]
    return f"Hospitals {where}: {', '.join(parts)}."


HOSPITAL: Column[HospitalVerdict] = Column(
    "Hospital", lambda hospital: (hospital.row.site, ROLES[hospital.row.role]), in_words=True
)
SEEN: Column[HospitalVerdict] = Column(
    "What was seen", lambda hospital: f"{SIGNS[hospital.word]} {hospital.word}", in_words=True
)
ORDER: Column[HospitalVerdict] = Column(
    "AUROC", lambda hospital: metric_cell(hospital.row, "auroc", two_places)
)
PATIENTS: Column[HospitalVerdict] = Column("n", lambda hospital: count(hospital.row.n))
# Of a terminal.
NARROW_COLUMNS = (
    HOSPITAL,
    SEEN,
    Column[HospitalVerdict](
        "Of 100 predicted, happened", lambda hospital: _narrow_rates(hospital.row)
    ),
    ORDER,
    PATIENTS,
)
