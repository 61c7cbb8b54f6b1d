"""Rows of a run's summary that hold sites against each other.

Means over sites, prediction sets, detected shifts.
"""

from collections.abc import Iterable, Sequence

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.calibration.conformal import LEVEL, FirstBins, measure_sets, set_thresholds
from fl_dpbayes.calibration.federation.subgroups import Place
from fl_dpbayes.calibration.intervals import Interval, Measured, wilson_interval
from fl_dpbayes.calibration.prior_shift import (
    label_shift_weights,
    prevalence,
    prevalence_from_means,
)
from fl_dpbayes.calibration.records import (
    CalibrationRecord,
    CalibrationValues,
    ConformalRecord,
    ShiftDetectionRecord,
    metrics_hidden_by_noise,
)
from fl_dpbayes.calibration.statistics import MEASURES, CalibrationStatistics
from fl_dpbayes.config import Role

SHIFT_PREDICTOR = "posterior"
CONFORMAL_PREDICTORS = ("posterior", "last")
CALIBRATED_ON = "pooled training sites' test records"
# The mean of quantiles is no quantile of the mean.
NOT_AVERAGED = ("n", "ece_if_calibrated_high", "intervals", "cannot_tell")


def mean_rows(rows: Sequence[CalibrationRecord]) -> list[CalibrationRecord]:
    """Average the sites' rows of each role with two or more sites, for each predictor.

    Errors of opposite sign at two sites cancel where their records are pooled, and do not here.

    Args:
        rows: Those of single sites.

    Returns:
        A row `mean:<role>` for each predictor that was measured at all sites of the role. `n` is
        the total, a metric the unweighted mean over the sites, None where it is undefined at one
        of them. Bounds are averaged end by end, so that they hold for the mean. There are no
        intervals.
    """
    by_role: dict[Role, set[str]] = {}
    by_predictor: dict[tuple[Role, str], list[CalibrationRecord]] = {}
    for row in rows:
        by_role.setdefault(row.role, set()).add(row.site)
        by_predictor.setdefault((row.role, row.predictor), []).append(row)
    # Over some of the sites only it could not be held against the other predictors.
    return [
        _mean_row(members)
        for (role, _), members in by_predictor.items()
        if len(members) >= max(2, len(by_role[role]))
    ]


def _mean_row(members: Sequence[CalibrationRecord]) -> CalibrationRecord:
    first = members[0]
    means = {
        name: _mean([getattr(row, name) for row in members])
        for name in CalibrationValues.model_fields
        if name not in NOT_AVERAGED
    }
    return CalibrationRecord.model_validate(
        {
            "site": f"mean:{first.role}",
            "role": first.role,
            "predictor": first.predictor,
            "samples": first.samples,
            "n": sum(row.n or 0 for row in members),
            **means,
            "intervals": {},
            "cannot_tell": metrics_hidden_by_noise(members, means),
        }
    )


def _mean(values: Sequence[object]) -> float | tuple[float, float] | None:
    """Average numbers, or intervals end by end; None if a value is neither."""
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) == len(values):
        return sum(numbers) / len(numbers)
    lows, highs = [], []
    for value in values:
        match value:
            case (float(low), float(high)):
                lows.append(low)
                highs.append(high)
            case _:
                return None
    return sum(lows) / len(lows), sum(highs) / len(highs)


def shift_detection_rows(
    reference: CalibrationStatistics | None, places: Iterable[Place], samples: int
) -> list[ShiftDetectionRecord]:
    """Compare the uncertainty of each place's test records with that of the training sites'.

    Args:
        reference: The training sites' test records, pooled; None where sums are noised or absent.
        places: Pools and sites that did not train.
        samples: How many samples the posterior has; one has no epistemic uncertainty.

    Returns:
        Two rows for each place, by epistemic and by total uncertainty.
    """
    rows = []
    for place in places:
        statistics = place.of_classes
        for number, measure in enumerate(MEASURES):
            area = None
            if reference and statistics and (samples > 1 or measure != "epistemic"):
                area = separation(
                    reference=reference.uncertainty[number],
                    shifted=statistics.uncertainty[number],
                )
            bounds = area.bounds if area else None
            rows.append(
                ShiftDetectionRecord(
                    site=place.site,
                    predictor=SHIFT_PREDICTOR,
                    measure=measure,
                    auroc=area.value if area else None,
                    low=bounds.low if bounds else None,
                    high=bounds.high if bounds else None,
                    interval=area.interval if area else None,
                    n_reference=int(reference.count) if reference else None,
                    n=int(statistics.count) if statistics else None,
                )
            )
    return rows


def separation(reference: Floats, shifted: Floats) -> Measured | None:
    """Return the area under the ROC curve of "this record is of the second group".

    P(number of the second group > number of the first) + ties / 2, pairs of the same bin as ties;
    its bounds order all of these wrongly, or rightly. The interval is that of the area which
    unbinned numbers would show.

    With m and n records the Mann-Whitney estimate of an area A has a variance of at most A (1 - A)
    / min(m, n), whatever the two laws are. So the interval is Wilson's for a share of min(m, n):
    from the lower end at `low` to the upper end at `high`. On simulated laws it covers 95 to 100 %,
    at one to two times the width of those of Hanley and McNeil or DeLong, which miss too often
    where one group's numbers spread far more than the other's.

    Args:
        reference: Histogram of the first group's numbers, shape (B,).
        shifted: Histogram of the second group's numbers, shape (B,).

    Returns:
        The area with interval and bounds; None where a group has no records.

    Source:
        Birnbaum and Klose, Annals of Mathematical Statistics 28 (1957), 933-945; Wilson, JASA
        22 (1927).
    """
    first = float(reference.sum())
    second = float(shifted.sum())
    if first == 0 or second == 0:
        return None
    below = reference.cumsum() - reference
    low = float(shifted @ below) / (first * second)
    ties = float(shifted @ reference) / (first * second)
    high = min(1.0, low + ties)
    fewer = min(first, second)
    least = wilson_interval(low * fewer, fewer)
    most = wilson_interval(high * fewer, fewer)
    if least is None or most is None:
        return None
    return Measured(
        value=low + ties / 2,
        interval=Interval(least.low, most.high),
        bounds=Interval(low, high),
    )


def conformal_rows(places: Iterable[Place]) -> list[ConformalRecord]:
    """Measure prediction sets at held-out and shifted sites, one by one and pooled per role.

    Weights are "none", "label-shift" (from the place's own labels, which a hospital that only
    predicts does not have) and, for two classes, "label-shift-estimated" (from its mean prediction,
    no label needed).

    Args:
        places: Sites and pools of them, those of pooled:train first; looked at one by one.
    """
    sources: dict[str, CalibrationStatistics] = {}
    rows: list[ConformalRecord] = []
    for place in places:
        if place.predictor not in CONFORMAL_PREDICTORS:
            continue
        statistics = place.of_classes
        if statistics is None or not statistics.count:
            continue
        if place.site == "pooled:train":
            sources[place.predictor] = statistics
        elif place.role != "train" and place.predictor in sources:
            rows += _place_rows(place, source=sources[place.predictor], target=statistics)
    return rows


def _place_rows(
    place: Place, source: CalibrationStatistics, target: CalibrationStatistics
) -> list[ConformalRecord]:
    rows = []
    for weights, thresholds in _thresholds(source, target).items():
        quality = measure_sets(target, thresholds)
        rows.append(
            ConformalRecord(
                site=place.site,
                role=place.role,
                predictor=place.predictor,
                level=LEVEL,
                weights=weights,
                calibrated_on=CALIBRATED_ON,
                coverage=quality.coverage,
                interval=quality.interval,
                size=quality.size,
                n=int(target.count),
                n_calibration=int(source.count),
            )
        )
    return rows


def _thresholds(
    source: CalibrationStatistics, target: CalibrationStatistics
) -> dict[str, FirstBins]:
    """Return the thresholds of prediction sets by the name of their weights."""
    thresholds = {"none": set_thresholds(source, LEVEL)}
    shares = {
        "label-shift": prevalence(target),
        "label-shift-estimated": prevalence_from_means(source, target),
    }
    for name, share in shares.items():
        weights = None if share is None else label_shift_weights(prevalence(source), share)
        if weights is not None:
            thresholds[name] = set_thresholds(source, LEVEL, weights)
    return thresholds
