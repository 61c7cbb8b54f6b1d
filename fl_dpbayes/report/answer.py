"""What a run found, in sentences that open the report."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fl_dpbayes.calibration import METRICS, CalibrationRecord, Verdict, says_nothing
from fl_dpbayes.config import PREDICTORS, Role, counted
from fl_dpbayes.report.headline import headline_predictor, headline_role, headline_rows
from fl_dpbayes.report.hospitals import HospitalVerdict, hospital_verdicts
from fl_dpbayes.report.numbers import (
    count,
    decimal,
    interval,
    known_ends,
    metric_writer,
    points,
    probability,
    rounded_up,
)
from fl_dpbayes.report.summary import PrivacyRecord, SiteRecord, Summary
from fl_dpbayes.report.wording import (
    FOR_RESEARCH,
    NOT_PRIVATE,
    ROLES,
    event,
    neighbours,
    predictor_name,
)

NOT_COVERED = (
    "The simpler ones were computed from training records without privacy: not covered by epsilon."
)
SEEDED = (
    "Seeded: not private. The noise came from a seed in a file; the epsilons are those "
    "with secret noise."
)
MOST_NAMES = 3
MOST_HOSPITALS = 6
# The largest probability of a prediction, so risks above and below 50% may cancel.
CERTAINTY_ERROR = "debiased RMS error of the certainty of the predicted class"
HIDDEN = "the noise on the test results hides how far the probabilities are off: cannot tell"
STOPPED = {
    "PARTIAL": "stopped early, at the end of the budget",
    "REFUSED": "refused a round",
    "FAILED": "failed in a round",
    "REJECTED": "sent a reply that was rejected",
}


@dataclass(frozen=True)
class Answer:
    """What a run found.

    Attributes:
        lead: How many trained and were tested, and how often the event happens.
        calibration: How far the probabilities are off, at sites that never trained if possible.
        elsewhere: The same at shifted sites, then at training sites.
        comparison: How far those of other predictors are off.
        baselines: What simpler predictors reach.
        advice: What follows for whoever would use the model elsewhere.
        privacy: What was spent.
        cautions: What weakens a conclusion, gravest first.
    """

    lead: str
    calibration: str
    elsewhere: tuple[str, ...]
    comparison: str
    baselines: str
    advice: str
    privacy: str
    cautions: tuple[str, ...]


def answer(run: Summary) -> Answer:
    """Say what a run found, in sentences that claim no more than its intervals allow."""
    role = headline_role(run)
    return Answer(
        lead=_lead(run, role),
        calibration=_calibration(run, role),
        elsewhere=tuple(_elsewhere(run, role)),
        comparison=_comparison(run, role),
        baselines=_baselines(run, role),
        advice=_advice(run, role),
        privacy=_privacy(run),
        cautions=tuple(_cautions(run)),
    )


def _calibration(run: Summary, role: Role) -> str:
    """Say how far the probabilities of a role's sites are off, or that noise hides it."""
    first = _first_row(run, role)
    if first is not None:
        return _measured(run, first)
    if _is_hidden(run, role):
        return f"At {ROLES[role]} {HIDDEN}."
    return f"Calibration at {ROLES[role]} was not measured."


def _is_hidden(run: Summary, role: Role) -> bool:
    """Say whether noise hides the calibration error of a role's pooled records."""
    return any(
        "rms_debiased" in (row.cannot_tell or ())
        for row in run.calibration
        if row.over == "pooled" and row.role == role
    )


def _lead(run: Summary, role: Role) -> str:
    """Say how many trained and were tested, and how often the second of two classes happens."""
    trained = run.trained
    tested = [site for site in run.sites if site.role == role and site.test_n and site.shares]
    units = _units(trained)
    text = (
        f"Trained by {counted(len(trained), 'hospital')} on "
        f"{count(sum(site.n or 0 for site in trained))} {units}"
    )
    if not tested:
        return f"{text}."
    tested_units = units if all(site.n == site.test_n for site in tested) else "records"
    which = "that trained, kept from training" if role == "train" else "that did not train"
    text = (
        f"{text}; tested on {count(sum(site.test_n or 0 for site in tested))} {tested_units} of "
        f"{counted(len(tested), 'hospital')} {which}"
    )
    percents = [100 * site.shares[1] for site in tested if site.shares and len(site.shares) == 2]
    if len(percents) != len(tested):
        return f"{text}."
    mean = statistics.fmean(percents, [site.test_n or 0 for site in tested])
    span = ""
    if len(percents) > 1:
        span = f", {min(percents):.0f}% to {max(percents):.0f}% from hospital to hospital"
    return f"{text}. In {mean:.0f}% of these the outcome is {event(run)!r}{span}."


def _units(sites: Sequence[SiteRecord]) -> str:
    """Name the privacy units of some sites in the plural."""
    units = {site.unit for site in sites}
    return f"{units.pop()}s" if len(units) == 1 else "units"


def _elsewhere(run: Summary, headline: Role) -> Iterator[str]:
    further: tuple[Role, ...] = ("shifted", "train")
    for role in further:
        first = _first_row(run, role)
        if role != headline and first is not None:
            yield _measured(run, first)


def _first_row(run: Summary, role: Role) -> CalibrationRecord | None:
    """Return the row that answers for a role: of the predictor that a hospital would take."""
    rows = headline_rows(run, role)
    for predictor in (headline_predictor(run), "posterior", "last", *rows):
        if predictor in rows:
            return rows[predictor]
    return None


def _baselines(run: Summary, role: Role) -> str:
    """Hold the model against simpler predictors on the same pooled records.

    Of a predictor that several sites trained alone it gives the median.
    """
    place = f"pooled:{role}"
    measured = run.measured(place, headline_predictor(run))
    simpler: dict[str, list[float]] = {}
    for row in run.baselines.rows if run.baselines else ():
        if row.site == place and row.nll is not None:
            simpler.setdefault(row.predictor, []).append(row.nll)
    if measured is None or measured.nll is None or not simpler:
        return ""
    parts = [
        f"{PREDICTORS.get(name, name)} {decimal(statistics.median(losses))}"
        for name, losses in simpler.items()
    ]
    return (
        f"At all {ROLES[role]} its negative log-likelihood, lower is better, is "
        f"{decimal(measured.nll)}; of simpler predictors {', '.join(parts)}. {NOT_COVERED}"
    )


def _advice(run: Summary, role: Role) -> str:
    """Say what follows for a hospital that would rely on the model."""
    hospitals = hospital_verdicts(run)
    if hospitals:
        return f"{FOR_RESEARCH} {_advice_by_verdicts(hospitals)}"
    return f"{FOR_RESEARCH} {_advice_by_error(run, role)}"


def _advice_by_error(run: Summary, role: Role) -> str:
    """Say what follows from the error of the probabilities at a role's sites."""
    first = _first_row(run, role)
    ends = None
    if first is not None and not one_outcome(first):
        ends = known_ends(first.intervals.get("rms_debiased"))
    if ends is None:
        return (
            f"What to do: measure the {run.measures.predictions} on patients of each hospital "
            "before anyone relies on them there."
        )
    low, high = ends
    if low:
        finding = "the risks are off"
    elif says_nothing(METRICS["rms_debiased"], ends):
        finding = f"too little is known here, an error of {points(high)} points is possible"
    else:
        finding = f"no error was seen, and one of {points(high)} points is possible"
    return (
        f"What to do: {finding}. Check the risks on patients of each hospital before anyone "
        "relies on them there."
    )


def _advice_by_verdicts(hospitals: Sequence[HospitalVerdict]) -> str:
    """Say what to do at which hospitals; of each word those that took no part come first."""
    steps: dict[Verdict, str] = {
        "does not fit": "Do not rely on the model",
        "recalibrate first": "Recalibrate first, then measure again",
        "fits here": "Watch",
        "too few to tell": "Look at more patients",
    }
    sentences = []
    for word, step in steps.items():
        names = [hospital.row.site for hospital in hospitals if hospital.word == word]
        if names:
            sentences.append(f"{step}: {_listed(names, MOST_HOSPITALS)}.")
    return " ".join([*sentences, "Anywhere else: measure first."])


def _listed(names: Sequence[str], most: int) -> str:
    """Write the first of some names, and how many more there are."""
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most} more"


def _cautions(run: Summary) -> Iterator[str]:
    if run.seeded and run.private:
        yield SEEDED
    if headline_role(run) != "held_out":
        yield (
            f"{_why_not_held_out(run)}: nothing here says how the model does at a hospital that "
            "never trained."
        )
    for status, verb in STOPPED.items():
        names = [row.site for row in run.privacy if status in row.status]
        if names:
            yield f"{len(names)} of {len(run.privacy)} sites {verb}: {_listed(names, MOST_NAMES)}."
    if run.private and _ended_unforeseen(run):
        yield (
            "The epsilon of a site that ended early holds if its end did not depend on what was "
            "seen. If it did, count the whole plan's."
        )
    if run.configurations_tried is not None and run.configurations_tried > 1:
        effect = "; epsilon does not count that choice." if run.private else "."
        yield (
            f"{run.configurations_tried} versions were tried on these records, so results may "
            f"look better than they will be{effect}"
        )


def _why_not_held_out(run: Summary) -> str:
    if not any(site.role == "held_out" for site in run.sites):
        return "No site was held out and measured"
    if _is_hidden(run, "held_out"):
        return "Privacy noise hides how far probabilities are off at held-out sites"
    if any(row.role == "held_out" for row in run.places):
        return "Results of held-out sites are too few to measure calibration"
    return "Results of held-out sites were not sent"


def _ended_unforeseen(run: Summary) -> bool:
    """Say whether a site ended early otherwise than by its budget, which is known beforehand."""
    return any(
        row.status.startswith(("REFUSED", "FAILED", "REJECTED"))
        and "BUDGET_EXHAUSTED" not in row.status
        for row in run.privacy
    )


def one_outcome(row: CalibrationRecord) -> bool:
    """Say whether all records of a row had the same outcome, so that no level can be told.

    False if the row's sums are noised.
    """
    measured = not row.noised and row.nll is not None
    return row.over in ("", "pooled") and row.auroc is None and measured


def off_by(row: CalibrationRecord) -> str:
    """Say how far the probabilities of a row are off."""
    if one_outcome(row):
        return "all outcomes are the same: how far the probabilities are off cannot be told"
    return f"the probabilities are off by {_error(row, unit=' percentage points')}"


def _error(row: CalibrationRecord, unit: str = "") -> str:
    """Say an error with its interval, which stands alone where the estimate is cut at 0."""
    ends = known_ends(row.intervals.get("rms_debiased"))
    if row.rms_debiased:
        return f"{points(row.rms_debiased)}{unit} {interval(ends, points)}".strip()
    if ends is None:
        return "an unknown amount"
    return f"between {points(ends[0])} and {points(ends[1])}{unit}"


def _measured(run: Summary, row: CalibrationRecord) -> str:
    """Say how far the probabilities of a role's sites are off, by its row."""
    place = ROLES[row.role]
    size = f"n = {count(row.n)}"
    if row.over == "median":
        place = f"the median of the {place}"
        size = f"median {size}"
    metric = METRICS[run.measures.first[0]]
    if not metric.calibration_error:
        write = metric_writer(metric)
        value = write(row.metric(metric.key))
        ends = interval(row.intervals.get(metric.key), write)
        text = f"At {place} {metric.name} is {value} {ends}".rstrip()
        return f"{text} ({predictor_name(row)}; {size})."
    text = f"At {place} {off_by(row)}"
    if one_outcome(row):
        return f"{text} ({size})."
    return f"{text} ({predictor_name(row)}; {CERTAINTY_ERROR}, {size})."


def _comparison(run: Summary, role: Role) -> str:
    """Compare the probabilities of the other predictors at the sites of a role, where measured."""
    first = _first_row(run, role)
    is_error = METRICS[run.measures.first[0]].calibration_error
    if first is None or not is_error or one_outcome(first):
        return ""
    rows = headline_rows(run, role)
    sentences = []
    last = rows.get("last")
    if last and last is not first:
        sentences.append(f"Those of the last iterate are off by {_error(last)}.")
        sentences.append(_difference(first, last))
    recalibrated = rows.get("recalibrated")
    if recalibrated and rows.get("posterior"):
        after = f"Recalibrated, they are off by {_error(recalibrated)}"
        if run.recalibration_noise:
            after += ", but do not use that: the map is mostly privacy noise"
        sentences.append(f"{after}.")
    return " ".join([_measured(run, first), *sentences]) if sentences else ""


def _difference(first: CalibrationRecord, last: CalibrationRecord) -> str:
    """Say which of two rows is better calibrated, by the intervals that stand beside them."""
    first_ends = known_ends(first.intervals.get("rms_debiased"))
    last_ends = known_ends(last.intervals.get("rms_debiased"))
    if first_ends is None or last_ends is None:
        return "Without intervals, whether they differ is open."
    if first_ends[1] < last_ends[0]:
        return f"Better calibrated: the {predictor_name(first)}."
    if last_ends[1] < first_ends[0]:
        return "Better calibrated: the last iterate."
    return "The intervals overlap: no clear difference."


def _privacy(run: Summary) -> str:
    rows = [row for row in run.privacy if row.steps]
    if not rows:
        return "No privacy cost is recorded: no site trained."
    if not run.private:
        return NOT_PRIVATE
    epsilons = [row.largest_epsilon for row in rows]
    for value, state in ((math.inf, "infinite"), (None, "not recorded")):
        number = epsilons.count(value)
        if number:
            return (
                f"There is no privacy guarantee: epsilon is {state} at {number} of "
                f"{len(rows)} sites."
            )
    largest = max(epsilon or 0.0 for epsilon in epsilons)
    hospitals = "The hospital that trained"
    if len(rows) > 1:
        hospitals = f"Every one of the {len(rows)} hospitals that trained"
    text = (
        f"{hospitals} spent at most epsilon {rounded_up(largest)} at {_deltas(rows)} "
        f"({neighbours(run)})."
    )
    small = run.small_delta
    if small is not None and small.epsilon is not None:
        text += (
            f" At delta {probability(small.delta)} the costliest, {small.site}, spent "
            f"{rounded_up(small.epsilon)}."
        )
    tested = [row.epsilon for row in run.evaluation_privacy]
    if not tested:
        return text
    if None in tested:
        return f"{text} What noised test results cost, on other units, is not recorded."
    most = rounded_up(max(filter(None, tested), default=None))
    return f"{text} Noised test results, on other units, cost at most epsilon {most}."


def _deltas(rows: Sequence[PrivacyRecord]) -> str:
    deltas = sorted({row.delta for row in rows if row.delta is not None})
    if not deltas:
        return "a delta that is not recorded"
    if len(deltas) == 1:
        return f"delta {probability(deltas[0])}"
    return f"its own delta, {probability(deltas[0])} to {probability(deltas[-1])}"
