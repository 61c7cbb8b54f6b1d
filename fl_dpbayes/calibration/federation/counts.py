"""How many records a site may claim, and what to say where one site decides a pooled result or noise hides it."""

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from fl_dpbayes.calibration.bins import COUNT, OUTCOME, Floats
from fl_dpbayes.calibration.recalibration.isotonic import LARGEST_DEVIATION
from fl_dpbayes.calibration.records import CalibrationValues
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, merge_noised, sensitivity
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.calibration.summarise import summarise_noised
from fl_dpbayes.config import (
    ISOTONIC_BINS,
    AnyRecalibrationPlan,
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
    """Raise a ValueError where the noise that a site states for each sum is not what the plan gives.

    Args:
        noise_std: standard deviation that it states.
        noise_multiplier: that of the plan.
        most_records: the plan's most records of one unit; a site may count fewer, and then needs less noise.
    """
    least, most = (noise_multiplier * sensitivity(records) for records in (1, most_records))
    if not (1 - NOISE_TOLERANCE) * least <= noise_std <= (1 + NOISE_TOLERANCE) * most:
        planned = f"{least:.3g} to {most:.3g}" if most_records > 1 else f"{least:.3g}"
        raise ValueError(f"it states noise of {noise_std:.3g}, the plan asks for {planned}")


def check_counts(card: SiteCard, measured: Iterable[Statistics]) -> None:
    """Raise a ValueError where a count, or a sum of values in [0, 1], is beyond a site of the declared size.

    The declared units may be short of the real ones, and say of a training site how many it trains
    on, of which its test records are another share.
    """
    most = MAX_RECORDS_PER_UNIT * card.units / (1 - MAX_DECLARATION_ERROR)
    for statistics in measured:
        count, slack = record_count(statistics), 0.0
        if isinstance(statistics, NoisedTable):
            slack = NOISE_DEVIATIONS * statistics.noise_std
            lowest, highest = float(statistics.sums.min()), float(statistics.sums.max())
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
    """Check the counts for recalibration that a site sent, as COUNT_ARRAYS has them.

    Raises ValueError if there are none, or the site's size or the plan's noise (`check_noise`) does
    not allow them.
    """
    if answer.noise_std is None:
        raise ValueError("it sent parameters, not counts")
    check_noise(answer.noise_std, noise_multiplier, most_records)
    check_counts(card, [table := NoisedTable(arrays["noised"], answer.noise_std)])
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
    """Say so where noise hides the bins of a site's counts, whose map is then None and changes nothing.

    Args:
        fitted: site -> its map.
        together: whether the median of all maps is used, which still changes something while most of them do.

    Returns:
        A warning that names the sites, or None.
    """
    hidden = [name for name, mapping in fitted.items() if mapping is None]
    needed = len(fitted) / 2 if together else 1
    if len(hidden) < max(1.0, needed):
        return None
    return warning("counts-noise", where=", ".join(hidden), largest=LARGEST_DEVIATION)


def dominating_site(role: Role, counts: Mapping[str, float]) -> RunWarning | None:
    """Say so where one of three or more sites states most of the test records that are pooled.

    `counts` by site.
    """
    held = {site: max(count, 0.0) for site, count in counts.items()}
    total = sum(held.values())
    largest = max(held, key=lambda site: held[site])
    if len(held) < 3 or held[largest] <= 0.5 * total:
        return None
    return warning(
        "dominating", largest, held=held[largest], all=total, share=held[largest] / total, role=role
    )


def empty_site(site: str, statistics: Statistics) -> RunWarning | None:
    """Say so where a site's test results hold no record, or none that stands clear of the noise on their count."""
    noise = 0.0
    if isinstance(statistics, NoisedTable):
        noise = CLEAR_DEVIATIONS * statistics.noise_std * math.sqrt(len(statistics.sums))
    return warning("empty-results", site) if record_count(statistics) <= noise else None


def decisive_sites(role: Role, tables: Mapping[str, NoisedTable]) -> list[RunWarning]:
    """Say so where a pooled result without one site differs by more than the width of its 95 % interval, or is there.

    `tables`: site -> sums of the predictor that is read first, noise 0 where they are exact.
    """
    if len(tables) < 2:
        return []
    # Of sites 0 .. k - 1, and of k .. K - 1: each of the two in one pass, whatever their number.
    before = list(accumulate(tables.values(), merge_noised))
    after = list(accumulate(reversed([*tables.values()]), merge_noised))[::-1]
    pooled = _summary_of(before[-1])
    others = [after[1], *map(merge_noised, before, after[2:]), before[-2]]
    without = {site: _summary_of(rest) for site, rest in zip(tables, others, strict=True)}
    found = []
    for metric, name in DECIDED.items():
        value, (low, high) = getattr(pooled, metric), pooled.intervals.get(metric) or (None, None)
        rests = {
            site: getattr(rest, metric)
            for site, rest in without.items()
            if getattr(rest, metric) is not None
        }
        if value is None:
            found += [
                warning("vanished", site, role=role, metric=name, without=rest)
                for site, rest in rests.items()
            ]
        if value is None or low is None or high is None or not rests:
            continue
        site = max(rests, key=lambda site: abs(rests[site] - value))
        if abs(rests[site] - value) > high - low:
            measured = {"value": value, "low": low, "high": high, "without": rests[site]}
            found.append(
                warning("decisive", site, sites=len(tables), role=role, metric=name, **measured)
            )
    return found


class Total(NamedTuple):
    """Of a site's test records their number, and the sums of a value of each and of its square."""

    records: float
    total: float
    squares: float


def decisive_means(role: Role, metric: str, totals: Mapping[str, Total]) -> RunWarning | None:
    """Name the site without which a pooled mean differs most, if by more than two widths of a 95 % interval.

    Of what is not read first a smaller difference is not worth a line: of two honest sites with
    other patients one nearly always makes more than one width. Sites without records are left out.
    """
    held = {site: total for site, total in totals.items() if total.records > 0}
    if len(held) < 2:
        return None
    sums = np.array(list(held.values()))
    count, total, _ = sums.sum(axis=0)
    rest = sums.sum(axis=0) - sums
    mean, without = total / count, rest[:, 1] / rest[:, 0]
    most = int(np.abs(without - mean).argmax())
    # The spread of the others' records, which the site in question cannot widen.
    left, _, squares = rest[most]
    variance = max(0.0, squares / left - without[most] ** 2) + 1 / left
    half = NORMAL_95 * math.sqrt(variance / count)
    if abs(without[most] - mean) <= MOST_WIDTHS * 2 * half:
        return None
    return warning(
        "decisive",
        list(held)[most],
        sites=len(held),
        role=role,
        metric=metric,
        value=float(mean),
        low=float(mean - half),
        high=float(mean + half),
        without=float(without[most]),
    )


def _summary_of(table: NoisedTable) -> CalibrationValues:
    return summarise_noised(table, np.random.default_rng(0))
