"""Which numbers of a run come first: those of sites that never trained, where there are any."""

from fl_dpbayes.report.numbers import interval, points, probability, rounded_up, significant
from fl_dpbayes.report.summary import CalibrationRecord, Role, Summary
from fl_dpbayes.report.wording import ROLES, predictor_name


def pooled_rows(run: Summary, role: Role) -> dict[str, CalibrationRecord]:
    """Return the rows over all sites of a role whose calibration error is defined, by predictor."""
    rows = (row for row in run.calibration if row.pooled and row.role == role)
    return {row.predictor: row for row in rows if row.rms_debiased is not None}


def headline_role(run: Summary) -> Role:
    """Return the role that answers for the run: held-out sites where they were measured, else training sites."""
    return "held_out" if pooled_rows(run, "held_out") else "train"


def headline_predictor(run: Summary) -> str:
    """Return the predictor of which details are shown: the posterior where it was measured, else the last iterate."""
    return "posterior" if any(row.predictor == "posterior" for row in run.places) else "last"


def key_figures(run: Summary) -> list[tuple[str, str]]:
    """Return the few numbers that stand largest, each with what it is.

    Args:
        run: a run's summary.

    Returns:
        (value, meaning) of the calibration error of each of recalibrated posterior, posterior and last iterate (the
        recalibrated one last where its map is mostly noise), the accuracy, and the largest epsilon.
    """
    role = headline_role(run)
    rows = pooled_rows(run, role)
    figures = []
    order = ["posterior", "last"]
    order.insert(len(order) if run.recalibration_noise else 0, "recalibrated")
    for predictor in order:
        if predictor in rows:
            row = rows[predictor]
            ends = interval(row.intervals.get("rms_debiased"), points)
            meaning = f"points off at {ROLES[role]}, {predictor_name(row)} {ends}".rstrip()
            if predictor == "recalibrated" and run.recalibration_noise:
                meaning += "; its map is mostly privacy noise: do not use it"
            figures.append((points(row.rms_debiased), meaning))
    shown = rows.get("posterior") or rows.get("last")
    if shown is not None and shown.accuracy is not None:
        figures.append((f"{points(shown.accuracy)}%", f"accuracy at {ROLES[role]}, {predictor_name(shown)}"))
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
