"""Rows of a run's summary that hold sites against each other: means over sites, prediction sets, detected shifts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.calibration.check import MEASURES
from fl_dpbayes.calibration.conformal import LEVEL, measure_sets, set_thresholds
from fl_dpbayes.calibration.federation.counts import Statistics
from fl_dpbayes.calibration.intervals import Interval, Measured, wilson_interval
from fl_dpbayes.calibration.prior_shift import (
    label_shift_weights,
    prevalence,
    prevalence_from_means,
)
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.config import Role

SHIFT_PREDICTOR = "posterior"
CONFORMAL_PREDICTORS = ("posterior", "last")
CALIBRATED_ON = "pooled training sites' test records"
# The mean of quantiles is no quantile of the mean.
NOT_AVERAGED = ("site", "role", "predictor", "samples", "n", "ece_if_calibrated_high", "intervals")


def mean_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Average the rows of each role with two or more sites, of each predictor that was measured at all of them.

    Errors of opposite sign at two sites cancel where their records are pooled, and do not here. `n`
    is the total, a metric the unweighted mean over the sites, None where it is undefined at one of
    them or no real number; bounds [low, high] are averaged end by end, so that they hold for the
    mean. There are no intervals.
    """
    averaged = []
    for role, predictor in dict.fromkeys((row["role"], row["predictor"]) for row in rows):
        members = [row for row in rows if (row["role"], row["predictor"]) == (role, predictor)]
        sites = {row["site"] for row in rows if row["role"] == role}
        # Over some of the sites only it could not be held against the other predictors.
        if len(members) < 2 or len(members) < len(sites):
            continue
        key = {
            "site": f"mean:{role}",
            "role": role,
            "predictor": predictor,
            "samples": members[0]["samples"],
        }
        metrics = {
            name: _mean([row[name] for row in members])
            for name in members[0]
            if name not in NOT_AVERAGED
        }
        averaged.append({**key, "n": sum(row["n"] for row in members), **metrics, "intervals": {}})
    return averaged


def _mean(values: Sequence[object]) -> float | list[float | None] | None:
    ends = [
        value
        for value in values
        if isinstance(value, list) and all(isinstance(end, float) for end in value)
    ]
    if len(ends) == len(values) and {len(pair) for pair in ends} == {2}:
        return [_mean_number(side) for side in zip(*ends, strict=True)]
    return _mean_number(values)


def _mean_number(values: Sequence[object]) -> float | None:
    numbers = [value for value in values if isinstance(value, float)]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else None


def shift_detection_rows(
    reference: CalibrationStatistics | None,
    places: Iterable[tuple[str, CalibrationStatistics | None]],
    samples: int,
) -> list[dict[str, Any]]:
    """Compare the uncertainty of each place's test records with that of the training sites', pooled: the `reference`.

    None where sums are noised or absent. Returns two rows for each place, by epistemic and by total
    uncertainty.
    """
    rows = []
    for site, statistics in places:
        for number, measure in enumerate(MEASURES):
            found = None
            if reference and statistics and (samples > 1 or measure != "epistemic"):
                found = separation(reference.uncertainty[number], statistics.uncertainty[number])
            low, high = found.bounds if found and found.bounds else (None, None)
            row: dict[str, Any] = {"site": site, "predictor": SHIFT_PREDICTOR, "measure": measure}
            row |= {"auroc": found.value if found else None, "low": low, "high": high}
            row["interval"] = list(found.interval) if found and found.interval else None
            row["n_reference"] = int(reference.count) if reference else None
            rows.append(row | {"n": int(statistics.count) if statistics else None})
    return rows


def separation(reference: Floats, shifted: Floats) -> Measured | None:
    """Return the area under the ROC curve of "this record is of the second group", from two histograms (B,).

    P(number of the second group > number of the first) + ties / 2, pairs of the same bin as ties;
    its bounds order all of these wrongly, or rightly. The interval is that of the area which
    unbinned numbers would show.

    With m and n records the Mann-Whitney estimate of an area A has a variance of at most A (1 - A)
    / min(m, n), whatever the two laws are. So the interval is Wilson's for a share of min(m, n):
    from the lower end at `low` to the upper end at `high`. On simulated laws it covers 95 to 100 %,
    at one to two times the width of those of Hanley and McNeil or DeLong, which miss too often
    where one group's numbers spread far more than the other's. None where a group has no records.

    Source: Birnbaum and Klose, Annals of Mathematical Statistics 28 (1957), 933-945; Wilson, JASA
    22 (1927).
    """
    first, second = float(reference.sum()), float(shifted.sum())
    if first == 0 or second == 0:
        return None
    below = reference.cumsum() - reference
    low = float(shifted @ below) / (first * second)
    ties = float(shifted @ reference) / (first * second)
    high, fewer = min(1.0, low + ties), min(first, second)
    least, most = wilson_interval(low * fewer, fewer), wilson_interval(high * fewer, fewer)
    if least is None or most is None:
        return None
    return Measured(low + ties / 2, Interval(least.low, most.high), Interval(low, high))


def conformal_rows(places: Iterable[tuple[str, Role, str, Statistics]]) -> list[dict[str, Any]]:
    """Measure prediction sets at held-out and shifted sites, one by one and pooled per role.

    Weights are "none", "label-shift" (from the place's own labels, which a hospital that only
    predicts does not have) and, for two classes, "label-shift-estimated" (from its mean prediction,
    no label needed). `places`: name (of a site, or pooled:<role>), role, predictor and statistics,
    looked at one by one, those of pooled:train first.
    """
    sources, rows = dict[str, CalibrationStatistics](), list[dict[str, Any]]()
    for name, role, predictor, statistics in places:
        if (
            predictor in CONFORMAL_PREDICTORS
            and isinstance(statistics, CalibrationStatistics)
            and statistics.count
        ):
            if name == "pooled:train":
                sources[predictor] = statistics
            elif role != "train" and predictor in sources:
                key = {"site": name, "role": role, "predictor": predictor}
                rows += [key | row for row in _place_rows(sources[predictor], statistics)]
    return rows


def _place_rows(
    source: CalibrationStatistics, target: CalibrationStatistics
) -> list[dict[str, Any]]:
    shares = {
        "label-shift": prevalence(target),
        "label-shift-estimated": prevalence_from_means(source, target),
    }
    thresholds = {"none": set_thresholds(source, LEVEL)}
    for name, share in shares.items():
        weights = None if share is None else label_shift_weights(prevalence(source), share)
        if weights is not None:
            thresholds[name] = set_thresholds(source, LEVEL, weights)
    rows = []
    for name, first in thresholds.items():
        if quality := measure_sets(target, first):
            row: dict[str, Any] = {"level": LEVEL, "weights": name, "calibrated_on": CALIBRATED_ON}
            row |= quality._asdict() | {"interval": quality.interval and list(quality.interval)}
            rows.append(row | {"n": int(target.count), "n_calibration": int(source.count)})
    return rows
