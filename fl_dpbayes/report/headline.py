"""Which numbers of a run come first: those of sites that never trained, where there are any."""

import statistics
from collections.abc import Mapping, Sequence

from fl_dpbayes.config.summary import CalibrationRecord, Role, Summary
from fl_dpbayes.report.numbers import interval, points, probability, rounded_up, significant
from fl_dpbayes.report.wording import ROLES, predictor_name

# With three sites or more the middle one is no worse than an honest one, whatever one of them made up.
LEAST_SITES = 3


def headline_rows(run: Summary, role: Role) -> dict[str, CalibrationRecord]:
    """Return the rows that answer for a role, by predictor, where the calibration error is defined."""
    medians = {row.predictor: row for row in median_rows(run) if row.role == role}
    rows = (medians.get(row.predictor, row) for row in run.calibration if row.pooled and row.role == role)
    return {row.predictor: row for row in rows if row.rms_debiased is not None}


def median_rows(run: Summary) -> list[CalibrationRecord]:
    """Return the median over the sites of each role that is pooled over three or more of them, by predictor.

    One of three sites, whatever it sends, moves a median no further than to another site's value; the pooled row it
    can move anywhere. An interval is the median of the sites' lower ends and that of their upper ends: where every
    site's interval holds its own error, it holds the median error.
    """
    medians = []
    for pooled in (row for row in run.calibration if row.pooled):
        key = (pooled.role, pooled.predictor)
        sites = [row for row in run.places if not row.pooled and row.n and (row.role, row.predictor) == key]
        if len(sites) >= LEAST_SITES:
            medians.append(_median(sites))
    return medians


def _median(rows: Sequence[CalibrationRecord]) -> CalibrationRecord:
    """Take the median of every number and of both ends of every interval that all rows have, n included."""
    first = rows[0]
    values = {name: [getattr(row, name) for row in rows] for name in CalibrationRecord.model_fields}
    numbers = {
        name: statistics.median(found)
        for name, found in values.items()
        if name != "samples" and all(isinstance(value, float) for value in found)
    }
    intervals = {}
    for metric in first.intervals:
        found = [ends for row in rows if (ends := row.intervals.get(metric)) and None not in ends]
        if len(found) == len(rows):
            intervals[metric] = tuple(statistics.median(ends) for ends in zip(*found, strict=True))
    key = {"site": f"median:{first.role}", "role": first.role, "predictor": first.predictor, "samples": first.samples}
    middle = int(statistics.median(row.n or 0 for row in rows))
    return CalibrationRecord.model_validate({**key, **numbers, "n": middle, "intervals": intervals})


def headline_role(run: Summary) -> Role:
    """Return the role that answers for the run: held-out sites where they were measured, else training sites."""
    return "held_out" if headline_rows(run, "held_out") else "train"


def headline_place(role: Role, rows: Mapping[str, CalibrationRecord]) -> str:
    """Say in words over what a role's headline rows are taken."""
    return f"the median of the {ROLES[role]}" if any(row.median_of_sites for row in rows.values()) else ROLES[role]


def headline_predictor(run: Summary) -> str:
    """Return the predictor of which details are shown: the posterior where it was measured, else the last iterate."""
    return "posterior" if any(row.predictor == "posterior" for row in run.places) else "last"


def key_figures(run: Summary) -> list[tuple[str, str]]:
    """Return the few numbers that stand largest, each with what it is."""
    role = headline_role(run)
    rows = headline_rows(run, role)
    place = headline_place(role, rows)
    figures = []
    order = ["posterior", "last"]
    order.insert(len(order) if run.recalibration_noise else 0, "recalibrated")
    for predictor in order:
        if predictor in rows:
            row = rows[predictor]
            ends = interval(row.intervals.get("rms_debiased"), points)
            meaning = f"points off at {place}, {predictor_name(row)} {ends}".rstrip()
            if predictor == "recalibrated" and run.recalibration_noise:
                meaning += "; its map is mostly privacy noise: do not use it"
            figures.append((points(row.rms_debiased), meaning))
    shown = rows.get("posterior") or rows.get("last")
    if shown is not None and shown.accuracy is not None:
        figures.append((f"{points(shown.accuracy)}%", f"accuracy at {place}, {predictor_name(shown)}"))
    spent = [record for record in run.privacy if record.steps and record.largest_epsilon is not None]
    if spent:
        largest = max(spent, key=lambda record: record.largest_epsilon or 0.0)
        if not run.private:
            return [*figures, (rounded_up(float("inf")), "epsilon: not private")]
        meaning = f"largest ε spent, budget {significant(largest.budget)}, δ {probability(largest.delta)}"
        figures.append(
            (rounded_up(largest.largest_epsilon), f"not private (seeded); {meaning}" if run.seeded else meaning)
        )
    return figures
