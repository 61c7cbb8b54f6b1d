"""The rows that answer for a run: those of sites that never trained, where there are any."""

import statistics
from collections.abc import Sequence

from fl_dpbayes.calibration import (
    CalibrationRecord,
    CalibrationValues,
    metrics_hidden_by_noise,
    recommended_predictor,
)
from fl_dpbayes.config import Role
from fl_dpbayes.report.numbers import known_ends
from fl_dpbayes.report.summary import Summary

# Of three sites or more the middle one is no worse than an honest one, whatever one of them made
# up.
LEAST_SITES = 3


def headline_rows(run: Summary, role: Role) -> dict[str, CalibrationRecord]:
    """Return the rows that answer for a role, by predictor, where its first measure is defined.

    A median over sites takes the place of the pooled row.
    """
    pooled = [row for row in run.calibration if row.over == "pooled"]
    by_predictor = {row.predictor: row for row in [*pooled, *median_rows(run)] if row.role == role}
    key = run.measures.first[0]
    return {
        predictor: row for predictor, row in by_predictor.items() if row.metric(key) is not None
    }


def median_rows(run: Summary) -> list[CalibrationRecord]:
    """Return the median over the sites of each role and predictor pooled over three or more.

    One of three sites, whatever it sends, moves a median no further than to another site's value;
    the pooled row it can move anywhere. An interval has the median of the lower ends and that of
    the upper ends.
    """
    sites: dict[tuple[Role, str], list[CalibrationRecord]] = {
        (row.role, row.predictor): [] for row in run.calibration if row.over == "pooled"
    }
    for row in run.places:
        key = (row.role, row.predictor)
        if row.over != "pooled" and row.n and key in sites:
            sites[key].append(row)
    return [_median_row(rows) for rows in sites.values() if len(rows) >= LEAST_SITES]


def _median_row(rows: Sequence[CalibrationRecord]) -> CalibrationRecord:
    """Take the median of every number, and of both ends of every interval, that most rows have.

    If one row without a number took it from all, one site could make the headline vanish.
    """
    first = rows[0]
    majority = len(rows) // 2 + 1
    medians: dict[str, float] = {}
    for name in CalibrationValues.model_fields:
        values = [getattr(row, name) for row in rows]
        numbers = [value for value in values if isinstance(value, float)]
        if len(numbers) >= majority:
            medians[name] = statistics.median(numbers)
    intervals: dict[str, tuple[float, float]] = {}
    for metric in dict.fromkeys(metric for row in rows for metric in row.intervals):
        optional_ends = [known_ends(row.intervals.get(metric)) for row in rows]
        ends = [pair for pair in optional_ends if pair is not None]
        if len(ends) >= majority:
            lows, highs = zip(*ends, strict=True)
            intervals[metric] = (statistics.median(lows), statistics.median(highs))
    return CalibrationRecord.model_validate(
        {
            "site": f"median:{first.role}",
            "role": first.role,
            "predictor": first.predictor,
            "samples": first.samples,
            "n": int(statistics.median(row.n or 0 for row in rows)),
            "intervals": intervals,
            "cannot_tell": metrics_hidden_by_noise(rows, medians),
            **medians,
        }
    )


def headline_role(run: Summary) -> Role:
    """Return the role that answers for the run: held-out sites if measured, else training ones."""
    return "held_out" if headline_rows(run, "held_out") else "train"


def headline_predictor(run: Summary) -> str:
    """Return whose risks a hospital would take, chosen without a look at any outcome."""
    return recommended_predictor({row.predictor for row in run.places})
