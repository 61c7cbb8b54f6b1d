"""The hospitals of a run, each with its verdict, in the order in which they are read."""

from collections.abc import Sequence
from dataclasses import dataclass

from fl_dpbayes.calibration import (
    MOST_SHOWN,
    CalibrationRecord,
    Verdict,
    telling_order,
    verdict,
)
from fl_dpbayes.report.headline import headline_predictor
from fl_dpbayes.report.summary import Summary

# Those that took no part matter most.
READING_ORDER = ("held_out", "shifted", "train")


@dataclass(frozen=True)
class HospitalVerdict:
    """What one predictor showed at one hospital."""

    row: CalibrationRecord
    word: Verdict


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
    return sorted(
        hospitals,
        key=lambda hospital: (
            READING_ORDER.index(hospital.row.role),
            _order(hospital),
        ),
    )


def most_telling(hospitals: Sequence[HospitalVerdict]) -> list[HospitalVerdict]:
    """Return the first by `telling_order`, in the order in which they are read."""
    if len(hospitals) <= MOST_SHOWN:
        return list(hospitals)
    by_interest = sorted(hospitals, key=_order)
    names = {hospital.row.site for hospital in by_interest[:MOST_SHOWN]}
    return [hospital for hospital in hospitals if hospital.row.site in names]


def _order(hospital: HospitalVerdict) -> tuple[bool, bool, float]:
    return telling_order(hospital.row, trained=hospital.row.role == "train")
