"""The answer of a run in plain words, as the report opens."""

from collections.abc import Mapping
from dataclasses import dataclass

from fl_dpbayes.config.summary import CalibrationRecord, PrivacyRecord, Role, Summary
from fl_dpbayes.report.headline import headline_place, headline_role, headline_rows
from fl_dpbayes.report.numbers import count, interval, points, probability, rounded_up
from fl_dpbayes.report.wording import neighbours, predictor_name

STOPPED = {
    "PARTIAL": "stopped early, at the end of the budget",
    "REFUSED": "refused a round",
    "FAILED": "failed in a round",
    "REJECTED": "sent a reply that was rejected",
}


@dataclass(frozen=True)
class Answer:
    """What a run found.

    `calibration`: how far the probabilities are off, at sites that never trained where there are any. `elsewhere`:
    the same at shifted sites; empty where there are none. `privacy`: what was spent. `cautions`: what forbids or
    weakens a conclusion, the gravest first.
    """

    calibration: str
    elsewhere: str
    privacy: str
    cautions: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(part for part in (self.calibration, self.elsewhere, self.privacy, *self.cautions) if part)


def answer(run: Summary) -> Answer:
    """Say what a run found, in sentences that claim no more than its intervals allow."""
    cautions = []
    if run.seeded and run.private:
        cautions.append(
            "Seeded: not private. The noise came from a seed that is written in a file, so the epsilons are what the "
            "same run without a seed would cost."
        )
    role = headline_role(run)
    if role != "held_out":
        cautions.append(
            "No site was held out and measured: nothing here says how the model does at a hospital that never trained."
        )
    cautions += _stopped(run)
    if run.configurations_tried is not None and run.configurations_tried > 1:
        cautions.append(
            f"{run.configurations_tried} configurations were tried on these records; choosing between them "
            + ("is not in the epsilons." if run.private else "flatters the chosen one.")
        )
    shifted = headline_rows(run, "shifted")
    return Answer(
        calibration=_comparison(role, headline_rows(run, role), run.recalibration_noise),
        elsewhere=_comparison("shifted", shifted, run.recalibration_noise) if shifted else "",
        privacy=_privacy(run),
        cautions=tuple(cautions),
    )


def _error(row: CalibrationRecord, unit: str = "") -> str:
    return f"{points(row.rms_debiased)}{unit} {interval(row.intervals.get('rms_debiased'), points)}".strip()


def _comparison(role: Role, rows: Mapping[str, CalibrationRecord], noise: str) -> str:
    """Compare posterior, last iterate and recalibrated posterior over the sites of one role."""
    place = headline_place(role, rows)
    if not rows:
        return f"Calibration at {place} was not measured."
    posterior, last = rows.get("posterior"), rows.get("last")
    first = posterior or last or next(iter(rows.values()))
    name, error = predictor_name(first), _error(first, " percentage points")
    text = f"At {place} the {name}'s probabilities are off by {error}"
    measure = f"debiased RMS calibration error, n = {count(first.n)}{' at a site' if first.median_of_sites else ''}"
    recalibrated = rows.get("recalibrated")
    after = f" Recalibrated, they are off by {_error(recalibrated)}." if posterior and recalibrated else ""
    if after and noise:
        after = f"{after[:-1]}, but do not use that: the map is mostly privacy noise."
    if posterior is None or last is None:
        return f"{text} ({measure}).{after}"
    return f"{text}; the last iterate's by {_error(last)} ({measure}). {_difference(posterior, last)}{after}"


def _difference(posterior: CalibrationRecord, last: CalibrationRecord) -> str:
    first, second = posterior.intervals.get("rms_debiased"), last.intervals.get("rms_debiased")
    if first is None or second is None or None in (*first, *second):
        return "Without intervals, whether they differ is open."
    if first[1] < second[0]:  # type: ignore[operator]
        better = f"The {predictor_name(posterior)}" if posterior.samples == 1 else "Averaging over the posterior"
        return f"{better} is better calibrated."
    if second[1] < first[0]:  # type: ignore[operator]
        return "The last iterate is better calibrated."
    return "The intervals overlap: no clear difference."


def _privacy(run: Summary) -> str:
    """Say the largest epsilon, and every delta it holds at."""
    rows = [row for row in run.privacy if row.steps]
    if not rows:
        return "No privacy cost is recorded: no site trained."
    if not run.private:
        return "Not private: epsilon is infinite. What the sites released may show any of their records."
    unknown = [row for row in rows if row.largest_epsilon is None]
    infinite = [row for row in rows if row.largest_epsilon == float("inf")]
    if infinite or unknown:
        open_rows = infinite or unknown
        state = "infinite" if infinite else "not recorded"
        return f"There is no privacy guarantee: epsilon is {state} at {len(open_rows)} of {len(rows)} sites."
    largest = max(rows, key=lambda row: row.largest_epsilon or 0.0)
    who = "The hospital that trained" if len(rows) == 1 else f"Every one of the {len(rows)} hospitals that trained"
    text = f"{who} spent at most epsilon {rounded_up(largest.largest_epsilon)} at {_deltas(rows)} ({neighbours(run)})."
    tested = [row.epsilon for row in run.evaluation_privacy]
    if not tested:
        return text
    if None in tested:
        return f"{text} What noised test results cost, on other units, is not recorded."
    return f"{text} Noised test results, on other units, cost at most epsilon {rounded_up(max(filter(None, tested)))}."


def _deltas(rows: list[PrivacyRecord]) -> str:
    deltas = sorted({row.delta for row in rows if row.delta is not None})
    if not deltas:
        return "a delta that is not recorded"
    if len(deltas) == 1:
        return f"delta {probability(deltas[0])}"
    return f"its own delta, {probability(deltas[0])} to {probability(deltas[-1])}"


def _stopped(run: Summary) -> list[str]:
    """Say which sites did not run the whole plan."""
    texts = []
    for status, verb in STOPPED.items():
        names = [row.site for row in run.privacy if row.status.startswith(status)]
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            texts.append(f"{len(names)} of {len(run.privacy)} sites {verb}: {shown}.")
    # The end of a budget is known beforehand.
    other = [row for row in run.privacy if row.status.startswith(("REFUSED", "FAILED", "REJECTED"))]
    if run.private and any("BUDGET_EXHAUSTED" not in row.status for row in other):
        texts.append(
            "The epsilon of a site that ended early holds if its end did not depend on what was seen; if it did, the "
            "whole plan's does, and always its budget."
        )
    return texts
