"""What a run found: the rows that are read first, and the sentences that open the report.

The rows are those of sites that never trained, where there are any.
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fl_dpbayes.config import PREDICTORS, CalibrationRecord, PrivacyRecord, Summary, counted
from fl_dpbayes.config.summary import Role
from fl_dpbayes.report.numbers import (
    count,
    decimal,
    interval,
    known,
    points,
    probability,
    rounded_up,
    significant,
)
from fl_dpbayes.report.wording import ROLES, SITE_ROLES, event, neighbours, predictor_name

# With three sites or more the middle one is no worse than an honest one, whatever one of them made
# up.
LEAST_SITES = 3
NOT_COVERED = (
    "The simpler ones were computed from training records without privacy: not covered by epsilon."
)
SEEDED = (
    "Seeded: not private. The noise came from a seed in a file; the epsilons are those "
    "with secret noise."
)
# From which possible error on an interval that holds 0 says that too little is known.
TOO_WIDE = 0.2
# How many sites are told of in words, and from which area on the order of patients is called kept.
MOST_IN_WORDS = 4
GOOD_ORDER = 0.7


def headline_rows(run: Summary, role: Role) -> dict[str, CalibrationRecord]:
    """Return the rows that answer for a role, by predictor, where the calibration error is defined."""
    rows = [row for row in run.calibration if row.over == "pooled"] + median_rows(run)
    found = {row.predictor: row for row in rows if row.role == role}
    return {name: row for name, row in found.items() if row.rms_debiased is not None}


def median_rows(run: Summary) -> list[CalibrationRecord]:
    """Return the median over the sites of each role that is pooled over three or more of them, by predictor.

    One of three sites, whatever it sends, moves a median no further than to another site's value;
    the pooled row it can move anywhere. An interval has the median of the lower ends and that of
    the upper ends.
    """
    pooled = [row for row in run.calibration if row.over == "pooled"]
    sites: dict[tuple[Role, str], list[CalibrationRecord]] = {
        (row.role, row.predictor): [] for row in pooled
    }
    for row in run.places:
        if row.over != "pooled" and row.n and (key := (row.role, row.predictor)) in sites:
            sites[key].append(row)
    return [_median(rows) for rows in sites.values() if len(rows) >= LEAST_SITES]


def _median(rows: Sequence[CalibrationRecord]) -> CalibrationRecord:
    """Take the median of every number and of both ends of every interval that most rows have, n included.

    If one row without a number took it from all, one site could make the headline vanish.
    """
    first = rows[0]
    most = len(rows) // 2 + 1
    names = CalibrationRecord.model_fields.keys() - {"samples"}
    values = {name: [getattr(row, name) for row in rows] for name in names}
    known_values = {
        name: [value for value in of_sites if isinstance(value, float)]
        for name, of_sites in values.items()
    }
    numbers: dict[str, Any] = {
        name: statistics.median(of_sites)
        for name, of_sites in known_values.items()
        if len(of_sites) >= most
    }
    intervals = {}
    for metric in dict.fromkeys(metric for row in rows for metric in row.intervals):
        found = [ends for row in rows if (ends := known(row.intervals.get(metric)))]
        if len(found) >= most:
            intervals[metric] = tuple(map(statistics.median, zip(*found, strict=True)))
    numbers |= {"n": int(statistics.median(row.n or 0 for row in rows)), "intervals": intervals}
    key = {
        "site": f"median:{first.role}",
        "role": first.role,
        "predictor": first.predictor,
        "samples": first.samples,
    }
    return CalibrationRecord.model_validate(key | numbers)


def headline_role(run: Summary) -> Role:
    """Return the role that answers for the run: held-out sites where they were measured, else training sites."""
    return "held_out" if headline_rows(run, "held_out") else "train"


def headline_predictor(run: Summary) -> str:
    """Return the predictor of which details are shown: the posterior where it was measured, else the last iterate."""
    return "posterior" if any(row.predictor == "posterior" for row in run.places) else "last"


STOPPED = {
    "PARTIAL": "stopped early, at the end of the budget",
    "REFUSED": "refused a round",
    "FAILED": "failed in a round",
    "REJECTED": "sent a reply that was rejected",
}


class Answer(NamedTuple):
    """What a run found.

    `who`: how many trained and were tested, and how often the event happens. `calibration`: how far
    the probabilities are off, at sites that never trained where there are any; `elsewhere`: at
    shifted sites, then at training sites; `sites`: at each that did not train, of two classes,
    whether risks are too high or too low, gravest first. `beside`: what simpler predictors reach.
    `privacy`: what was spent. `cautions`: what weakens a conclusion, gravest first.
    """

    who: str
    calibration: str
    elsewhere: tuple[str, ...]
    sites: tuple[str, ...]
    beside: str
    advice: str
    privacy: str
    cautions: tuple[str, ...]


def answer(run: Summary) -> Answer:
    """Say what a run found, in sentences that claim no more than its intervals allow."""
    role = headline_role(run)
    others: tuple[Role, ...] = ("shifted", "train")
    further = [
        (other, rows) for other in others if other != role and (rows := headline_rows(run, other))
    ]
    return Answer(
        who=_who(run, role),
        calibration=_comparison(role, headline_rows(run, role), run.recalibration_noise),
        elsewhere=tuple(_comparison(name, _first(rows), "") for name, rows in further),
        sites=tuple(_levels(run)),
        beside=_beside(run, role),
        advice=_advice(run, role),
        privacy=_privacy(run),
        cautions=tuple(_cautions(run)),
    )


def _who(run: Summary, role: Role) -> str:
    """Say how many trained and were tested, and how often the event happens in the second of two classes."""
    trained = run.trained
    tested = [site for site in run.sites if site.role == role and site.test_n and site.shares]
    kinds = {site.unit for site in trained}
    units = f"{kinds.pop()}s" if len(kinds) == 1 else "units"
    text = (
        f"Trained by {counted(len(trained), 'hospital')} on "
        f"{count(sum(site.n or 0 for site in trained))} {units}"
    )
    if not tested:
        return f"{text}."
    whom = units if all(site.n == site.test_n for site in tested) else "records"
    text += f"; tested on {count(sum(site.test_n or 0 for site in tested))} {whom} of "
    whose = "that did not train" if role != "train" else "that trained, kept from training"
    text += f"{counted(len(tested), 'hospital')} {whose}"
    shares = [100 * site.shares[1] for site in tested if site.shares and len(site.shares) == 2]
    if len(shares) != len(tested):
        return f"{text}."
    mean = statistics.fmean(shares, [site.test_n or 0 for site in tested])
    span = (
        f", {min(shares):.0f}% to {max(shares):.0f}% from hospital to hospital"
        if len(shares) > 1
        else ""
    )
    return f"{text}. In {mean:.0f}% of these the outcome is {event(run)!r}{span}."


def _beside(run: Summary, role: Role) -> str:
    """Hold the model against simpler predictors on the same pooled records.

    Of several, by their median.
    """
    place, predictor = f"pooled:{role}", headline_predictor(run)
    own = next(
        (row.nll for row in run.calibration if (row.site, row.predictor) == (place, predictor)),
        None,
    )
    found: dict[str, list[float]] = {}
    for row in run.baselines.rows if run.baselines else ():
        if row.site == place and row.nll is not None:
            found.setdefault(row.predictor, []).append(row.nll)
    if own is None or not found:
        return ""
    others = (
        f"{PREDICTORS.get(name, name)} {decimal(statistics.median(values))}"
        for name, values in found.items()
    )
    text = f"At all {ROLES[role]} its negative log-likelihood, lower is better, is {decimal(own)}"
    return f"{text}; of simpler predictors {', '.join(others)}. {NOT_COVERED}"


def _advice(run: Summary, role: Role) -> str:
    """Say what follows from the intervals for whoever would use the model at another hospital."""
    first = next(iter(_first(headline_rows(run, role)).values()), None)
    ends = [found for _, found in _intercepts(run)]
    wrong = sum(low > 0 or high < 0 for low, high in ends)
    if (
        first is None
        or one_outcome(first)
        or not (found := known(first.intervals.get("rms_debiased")))
    ):
        return (
            "What to do: measure the risks on patients of each hospital before anyone relies "
            "on them there."
        )
    if wrong:
        where = f"at {wrong} of {len(ends)} hospitals that did not train the level of risk is wrong"
        return (
            f"What to do: {where}. Recalibrate at each hospital on its own patients before "
            "anyone relies on a risk."
        )
    if found[0]:
        seen = "the risks are off"
    elif found[1] > TOO_WIDE or any(_sites_of_one_outcome(run)):
        seen = f"too little is known here, an error of {points(found[1])} points is possible"
    else:
        seen = f"no error was seen, and one of {points(found[1])} points is possible"
    return (
        f"What to do: {seen}. Check the risks on patients of each hospital before anyone "
        "relies on them there."
    )


def _intercepts(run: Summary) -> list[tuple[CalibrationRecord, tuple[float, float]]]:
    """Return the headline predictor's rows of single sites that did not train, each with its intercept's interval."""
    predictor = headline_predictor(run)
    rows = [
        row
        for row in run.places
        if not row.over and row.role != "train" and row.predictor == predictor
    ]
    return [
        (row, ends) for row in rows if (ends := known(row.intervals.get("calibration_intercept")))
    ]


def _sites_of_one_outcome(run: Summary) -> Iterator[str]:
    """Say of each site that did not train, of whose two classes one alone was met, what the mean risk was there."""
    for site in run.sites:
        if (
            site.role == "train"
            or not site.shares
            or len(site.shares) != 2
            or site.shares[1] not in (0.0, 1.0)
        ):
            continue
        where = (
            f"{site.name} ({SITE_ROLES[site.role]}, n = {count(site.test_n)}): the outcome is "
            f"{event(run)!r} in "
        )
        key = (site.name, headline_predictor(run), True)
        rows = [row for row in run.reliability if (row.site, row.predictor, row.risk) == key]
        bins = [one for row in rows for one in row.bins if one.n]
        risk = sum(one.n * (one.confidence or 0.0) for one in bins) / max(
            sum(one.n for one in bins), 1
        )
        risks = f", the mean risk is {100 * risk:.0f}%" if bins else ""
        yield (
            f"{where}{100 * site.shares[1]:.0f}%{risks}. With one outcome alone the level cannot "
            "be estimated."
        )


def _levels(run: Summary) -> Iterator[str]:
    """Say at each site that did not train what to divide the odds of the event by: exp(-calibration intercept)."""
    yield from itertools.islice(_sites_of_one_outcome(run), MOST_IN_WORDS)
    found = sorted(_intercepts(run), key=lambda item: -abs(item[0].calibration_intercept or 0.0))
    for row, (low, high) in found[:MOST_IN_WORDS]:
        curve = row.net_benefit
        if row.calibration_intercept is None or not curve:
            continue
        # Treating everyone has the net benefit pi - (1 - pi) t / (1 - t) at threshold t.
        share = curve[0].all * (1 - curve[0].threshold) + curve[0].threshold
        least, by, most = (
            significant(math.exp(-value), 2) for value in (high, row.calibration_intercept, low)
        )
        by = f"{by} [{least}, {most}]"
        where = (
            f"{row.site} ({SITE_ROLES[row.role]}, n = {count(row.n)}, {event(run)} in "
            f"{100 * share:.0f}%)"
        )
        if high < 0 or low > 0:
            wrong = "high" if high < 0 else "low"
            order = (
                f" It still orders them: AUROC {row.auroc:.2f}."
                if (row.auroc or 0.0) >= GOOD_ORDER
                else ""
            )
            fit = f"risks are too {wrong}, their odds divided by {by} would fit"
            yield f"{where}: {fit}. Do not use them there as they are.{order}"
        else:
            yield (
                f"{where}: no error in the level of risk was seen; odds divided by {by} would fit."
            )


def _cautions(run: Summary) -> Iterator[str]:
    if run.seeded and run.private:
        yield SEEDED
    if headline_role(run) != "held_out":
        why = "No site was held out and measured"
        if any(site.role == "held_out" for site in run.sites):
            sent = any(row.role == "held_out" for row in run.places)
            why = (
                "Results of held-out sites "
                f"{'are too few to measure calibration' if sent else 'were not sent'}"
            )
        yield f"{why}: nothing here says how the model does at a hospital that never trained."
    for status, verb in STOPPED.items():
        if names := [row.site for row in run.privacy if status in row.status]:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            yield f"{len(names)} of {len(run.privacy)} sites {verb}: {shown}."
    # The end of a budget is known beforehand.
    other = [row for row in run.privacy if row.status.startswith(("REFUSED", "FAILED", "REJECTED"))]
    if run.private and any("BUDGET_EXHAUSTED" not in row.status for row in other):
        yield (
            "The epsilon of a site that ended early holds if its end did not depend on what was "
            "seen; if it did, the "
            "whole plan's does, and always its budget."
        )
    if run.configurations_tried is not None and run.configurations_tried > 1:
        said = "is not in the epsilons." if run.private else "flatters the chosen one."
        yield (
            f"{run.configurations_tried} configurations were tried on these records; choosing "
            f"between them {said}"
        )


def one_outcome(row: CalibrationRecord) -> bool:
    """Say whether all records of a row had the same outcome, of which no level of risk can be told.

    False if noised.
    """
    return row.over in ("", "pooled") and row.auroc is None and row.nll is not None


def off_by(row: CalibrationRecord) -> str:
    """Say how far the probabilities of a row are off."""
    if one_outcome(row):
        return "all outcomes are the same: how far the probabilities are off cannot be told"
    return f"the probabilities are off by {_error(row, ' percentage points')}"


def _error(row: CalibrationRecord, unit: str = "") -> str:
    """Say an error with its interval.

    An estimate that is cut at 0 says less than its interval, which stands alone.
    """
    ends = known(row.intervals.get("rms_debiased"))
    if not row.rms_debiased:
        return (
            f"between {points(ends[0])} and {points(ends[1])}{unit}"
            if ends
            else "an unknown amount"
        )
    return f"{points(row.rms_debiased)}{unit} {interval(ends, points)}".strip()


def _first(rows: Mapping[str, CalibrationRecord]) -> dict[str, CalibrationRecord]:
    name = next((name for name in ("posterior", "last", *rows) if name in rows), "")
    return {name: rows[name]} if rows else {}


def _comparison(role: Role, rows: Mapping[str, CalibrationRecord], noise: str) -> str:
    """Compare posterior, last iterate and recalibrated posterior over the sites of one role."""
    if not rows:
        return f"Calibration at {ROLES[role]} was not measured."
    place = (
        f"the median of the {ROLES[role]}"
        if any(row.over == "median" for row in rows.values())
        else ROLES[role]
    )
    posterior, last = rows.get("posterior"), rows.get("last")
    first = posterior or last or next(iter(rows.values()))
    text = f"At {place} {off_by(first)}"
    size = f"n = {count(first.n)}{' at a site' if first.over == 'median' else ''}"
    if one_outcome(first):
        return f"{text} ({size})."
    measure = f"{predictor_name(first)}; debiased RMS calibration error, {size}"
    recalibrated = rows.get("recalibrated")
    after = (
        f" Recalibrated, they are off by {_error(recalibrated)}."
        if posterior and recalibrated
        else ""
    )
    if after and noise:
        after = f"{after[:-1]}, but do not use that: the map is mostly privacy noise."
    if posterior is None or last is None:
        return f"{text} ({measure}).{after}"
    return f"{text} ({measure}); those of the last iterate by {_error(last)}. {_difference(posterior, last)}{after}"


def _difference(posterior: CalibrationRecord, last: CalibrationRecord) -> str:
    first, second = (known(row.intervals.get("rms_debiased")) for row in (posterior, last))
    if not first or not second:
        return "Without intervals, whether they differ is open."
    if first[1] < second[0]:
        better = (
            f"The {predictor_name(posterior)}"
            if posterior.samples == 1
            else "Averaging over the posterior"
        )
        return f"{better} is better calibrated."
    if second[1] < first[0]:
        return "The last iterate is better calibrated."
    return "The intervals overlap: no clear difference."


def _privacy(run: Summary) -> str:
    rows = [row for row in run.privacy if row.steps]
    if not rows:
        return "No privacy cost is recorded: no site trained."
    if not run.private:
        return "Not private: epsilon is infinite. What the sites released may show any of their records."
    epsilons = [row.largest_epsilon for row in rows]
    for value, state in ((math.inf, "infinite"), (None, "not recorded")):
        if number := epsilons.count(value):
            return f"There is no privacy guarantee: epsilon is {state} at {number} of {len(rows)} sites."
    largest = max(row.largest_epsilon or 0.0 for row in rows)
    who = (
        "The hospital that trained"
        if len(rows) == 1
        else f"Every one of the {len(rows)} hospitals that trained"
    )
    text = (
        f"{who} spent at most epsilon {rounded_up(largest)} at {_deltas(rows)} ({neighbours(run)})."
    )
    tested = [row.epsilon for row in run.evaluation_privacy]
    if None in tested:
        return f"{text} What noised test results cost, on other units, is not recorded."
    most = rounded_up(max(filter(None, tested), default=None))
    return (
        f"{text} Noised test results, on other units, cost at most epsilon {most}."
        if tested
        else text
    )


def _deltas(rows: list[PrivacyRecord]) -> str:
    deltas = sorted({row.delta for row in rows if row.delta is not None})
    if len(deltas) > 1:
        return f"its own delta, {probability(deltas[0])} to {probability(deltas[-1])}"
    return f"delta {probability(deltas[0])}" if deltas else "a delta that is not recorded"
