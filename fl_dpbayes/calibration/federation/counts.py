"""How many records a site may claim, and what to warn of.

It warns where one site decides a pooled result, or noise hides it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from fl_dpbayes.calibration.bins import COUNT, OUTCOME, Floats
from fl_dpbayes.calibration.recalibration.isotonic import LARGEST_DEVIATION
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, merge_noised, sensitivity
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.calibration.summarise import summarise_noised
from fl_dpbayes.config import (
    ISOTONIC_BINS,
    AnyRecalibrationPlan,
    CalibrationValues,
    RecalibrationMap,
    Role,
    RunWarning,
    warning,
)
from fl_dpbayes.data import MAX_DECLARATION_ERROR
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy import NOISE_TOLERANCE, solve_multiplier
from fl_dpbayes.protocol import RecalibrateReply, SiteCard

Statistics = CalibrationStatistics | NoisedTable
# A site that claims more has claimed the pooled result, not more records.
MAX_RECORDS_PER_UNIT = 1000
# One honest sum in 10^9 lies beyond.
NOISE_DEVIATIONS = 6.0
# One count in 40 of no record at all lies beyond.
CLEAR_DEVIATIONS = 2.0
NORMAL_95 = 1.96
MOST_WIDTHS = 2.0
DECIDED = {"accuracy": "accuracy", "rms_debiased": "calibration error (debiased RMS)"}
COUNT_ARRAYS = {"noised": (ISOTONIC_BINS, SENT_COLUMNS)}


def record_count(statistics: Statistics) -> float:
    """Return the number of test records; behind noise an estimate, which may be negative."""
    if isinstance(statistics, CalibrationStatistics):
        return statistics.count
    return float(statistics.sums[:, COUNT].sum())


def labels_of(statistics: CalibrationStatistics) -> tuple[float, ...]:
    """Count the records of each class, which are the same for every predictor of one site."""
    return tuple(map(float, statistics.class_wise[..., OUTCOME].sum(axis=1)))


def check_noise(noise_std: float, noise_multiplier: float, most_records: int) -> None:
    """Check that the noise that a site states for each sum is what the plan gives.

    Args:
        noise_std: Standard deviation that it states.
        noise_multiplier: That of the plan.
        most_records: The plan's most records of one unit; a site may count fewer, and then needs
            less noise.

    Raises:
        ValueError: If it is not.
    """
    least = noise_multiplier * sensitivity(1)
    most = noise_multiplier * sensitivity(most_records)
    if not (1 - NOISE_TOLERANCE) * least <= noise_std <= (1 + NOISE_TOLERANCE) * most:
        planned = f"{least:.3g} to {most:.3g}" if most_records > 1 else f"{least:.3g}"
        raise ValueError(f"it states noise of {noise_std:.3g}, the plan asks for {planned}")


def check_counts(card: SiteCard, measured: Iterable[Statistics]) -> None:
    """Check counts, and sums of values in [0, 1], against a site's declared size.

    The declared units may be short of the real ones, and say of a training site how many it trains
    on, of which its test records are another share.

    Args:
        card: What the site declared.
        measured: What it sent.

    Raises:
        ValueError: If one is beyond a site of that size.
    """
    most = MAX_RECORDS_PER_UNIT * card.units / (1 - MAX_DECLARATION_ERROR)
    for statistics in measured:
        count = record_count(statistics)
        slack = 0.0
        if isinstance(statistics, NoisedTable):
            slack = NOISE_DEVIATIONS * statistics.noise_std
            lowest = float(statistics.sums.min())
            highest = float(statistics.sums.max())
            if lowest < -slack or highest > most + slack:
                extreme = lowest if lowest < -slack else highest
                raise ValueError(
                    f"a sum is {extreme:.4g}, which {card.units} units and the stated "
                    "noise do not give"
                )
            slack *= math.sqrt(len(statistics.sums))
        if count > most + slack:
            raise ValueError(
                f"it counts {count:.4g} test records; {card.units} units give at most {most:.4g}"
            )


def checked_counts(
    arrays: Mapping[str, Floats],
    answer: RecalibrateReply,
    card: SiteCard,
    noise_multiplier: float,
    most_records: int,
) -> NoisedTable:
    """Check the counts for recalibration that a site sent.

    Args:
        arrays: What it sent, as COUNT_ARRAYS has them.
        answer: Its message.
        card: What it declared.
        noise_multiplier: That of the plan.
        most_records: As for `check_noise`.

    Returns:
        The counts.

    Raises:
        ValueError: If there are none, or the site's size or the plan's noise does not allow them.
    """
    if answer.noise_std is None:
        raise ValueError("it sent parameters, not counts")
    check_noise(answer.noise_std, noise_multiplier, most_records)
    table = NoisedTable(arrays["noised"], answer.noise_std)
    check_counts(card, [table])
    return table


def planned_multiplier(plan: AnyRecalibrationPlan) -> float:
    """Return the noise multiplier that follows from a plan.

    0 without privacy, or where no noise meets its budget.
    """
    if plan.epsilon is None:
        return 0.0
    try:
        return solve_multiplier(plan.epsilon, plan.delta, 1.0, plan.steps, plan.adjacency)
    except UserError:
        # Every site then refuses, and what was trained is not lost.
        return 0.0


def counts_warning(
    fitted: Mapping[str, RecalibrationMap | None], *, together: bool
) -> RunWarning | None:
    """Warn where noise hides the bins of a site's counts, whose map then changes nothing.

    Args:
        fitted: Site -> its map, None where noise hides it.
        together: Whether the median of all maps is used, which still changes something while most
            of them do.

    Returns:
        A warning that names the sites, or None.
    """
    hidden = [name for name, mapping in fitted.items() if mapping is None]
    needed = len(fitted) / 2 if together else 1
    if len(hidden) < max(1.0, needed):
        return None
    return warning("counts-noise", where=", ".join(hidden), largest=LARGEST_DEVIATION)


def dominating_site(role: Role, counts: Mapping[str, float]) -> RunWarning | None:
    """Warn where one of three or more sites states most of the test records that are pooled.

    Args:
        role: Of the sites.
        counts: Site -> its records; behind noise an estimate.

    Returns:
        A warning that names the site, or None.
    """
    records = {site: max(count, 0.0) for site, count in counts.items()}
    total = sum(records.values())
    largest = max(records, key=lambda site: records[site])
    if len(records) < 3 or records[largest] <= 0.5 * total:
        return None
    return warning(
        "dominating",
        largest,
        held=records[largest],
        all=total,
        share=records[largest] / total,
        role=role,
    )


def empty_site(site: str, statistics: Statistics) -> RunWarning | None:
    """Warn where a site's test results hold no record that stands clear of noise on their count.

    Args:
        site: Its name.
        statistics: Of one predictor.

    Returns:
        A warning, or None.
    """
    noise = 0.0
    if isinstance(statistics, NoisedTable):
        noise = CLEAR_DEVIATIONS * statistics.noise_std * math.sqrt(len(statistics.sums))
    if record_count(statistics) > noise:
        return None
    return warning("empty-results", site)


def decisive_sites(role: Role, tables: Mapping[str, NoisedTable]) -> list[RunWarning]:
    """Warn where a pooled result hangs on one site.

    Without it the result differs by more than the width of its 95 % interval, or is there at all.

    Args:
        role: Of the sites.
        tables: Site -> sums of the predictor that is read first, noise 0 where they are exact.

    Returns:
        The warnings, metric by metric.
    """
    if len(tables) < 2:
        return []
    pooled, without = _pooled_without_each(list(tables.values()))
    warnings = []
    for metric, name in DECIDED.items():
        value = getattr(pooled, metric)
        values_without = {
            site: getattr(values, metric)
            for site, values in zip(tables, without, strict=True)
            if getattr(values, metric) is not None
        }
        if value is None:
            warnings += [
                warning("vanished", site, role=role, metric=name, without=value_without)
                for site, value_without in values_without.items()
            ]
            continue
        low, high = pooled.intervals.get(metric) or (None, None)
        if low is None or high is None or not values_without:
            continue
        changes = {site: abs(changed - value) for site, changed in values_without.items()}
        site = max(changes, key=lambda site: changes[site])
        if changes[site] > high - low:
            warnings.append(
                warning(
                    "decisive",
                    site,
                    sites=len(tables),
                    role=role,
                    metric=name,
                    value=value,
                    low=low,
                    high=high,
                    without=values_without[site],
                )
            )
    return warnings


def _pooled_without_each(
    tables: Sequence[NoisedTable],
) -> tuple[CalibrationValues, list[CalibrationValues]]:
    """Summarise all of two tables or more, and all but each."""
    # Of tables 0 .. k - 1, and of k .. K - 1: each of the two in one pass, whatever their number.
    before = list(accumulate(tables, merge_noised))
    after = list(accumulate(reversed(tables), merge_noised))[::-1]
    without = [after[1], *map(merge_noised, before, after[2:]), before[-2]]
    return _summary_of(before[-1]), [_summary_of(table) for table in without]


class Total(NamedTuple):
    """Sums over a site's test records.

    Attributes:
        records: Their number.
        total: Sum of a value of each.
        squares: Sum of its square.
    """

    records: float
    total: float
    squares: float


def decisive_means(role: Role, metric: str, totals: Mapping[str, Total]) -> RunWarning | None:
    """Name the site without which a pooled mean differs most, if by more than two interval widths.

    The interval is one of 95 %. Of what is not read first a smaller difference is not worth a line:
    of two honest sites with other patients one nearly always makes more than one width.

    Args:
        role: Of the sites.
        metric: What the mean is called.
        totals: Site -> its sums; sites without records are left out.

    Returns:
        A warning, or None.
    """
    with_records = {site: total for site, total in totals.items() if total.records > 0}
    if len(with_records) < 2:
        return None
    sums = np.array(list(with_records.values()))
    count, total, _ = sums.sum(axis=0)
    sums_without = sums.sum(axis=0) - sums
    mean = total / count
    means_without = sums_without[:, 1] / sums_without[:, 0]
    place = int(np.abs(means_without - mean).argmax())
    mean_without = means_without[place]
    # The spread of all other records, which the site in question cannot widen.
    count_without, _, squares_without = sums_without[place]
    variance = max(0.0, squares_without / count_without - mean_without**2) + 1 / count_without
    half = NORMAL_95 * math.sqrt(variance / count)
    if abs(mean_without - mean) <= MOST_WIDTHS * 2 * half:
        return None
    return warning(
        "decisive",
        list(with_records)[place],
        sites=len(with_records),
        role=role,
        metric=metric,
        value=float(mean),
        low=float(mean - half),
        high=float(mean + half),
        without=float(mean_without),
    )


def _summary_of(table: NoisedTable) -> CalibrationValues:
    return summarise_noised(table, np.random.default_rng(0))
