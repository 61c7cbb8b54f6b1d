"""How many records a site may claim, and who decides a pooled result or is hidden by noise."""

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate

import numpy as np

from fl_dpbayes.calibration.bins import COUNT, Floats
from fl_dpbayes.calibration.intervals import Measured
from fl_dpbayes.calibration.noised_counts import NoisedCounts
from fl_dpbayes.calibration.noised_measures import accuracy
from fl_dpbayes.calibration.recalibration.isotonic import LARGEST_DEVIATION
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, sensitivity
from fl_dpbayes.calibration.summarise import noised_rms
from fl_dpbayes.calibration.sums import Sums, Total
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

Statistics = Sums | NoisedCounts
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
    if isinstance(statistics, NoisedCounts):
        return statistics.records
    return statistics.count


def check_noise(noise_std: float, of_one_record: float, most_records: int) -> None:
    """Check that the noise that a site states for each sum is what the plan gives.

    Args:
        noise_std: Standard deviation that it states.
        of_one_record: What the plan's noise multiplier gives where one record of a unit is counted.
        most_records: The plan's most records of one unit; a site may count fewer, and then needs
            less noise.

    Raises:
        ValueError: If it is not.
    """
    least = of_one_record
    most = of_one_record * most_records
    if not (1 - NOISE_TOLERANCE) * least <= noise_std <= (1 + NOISE_TOLERANCE) * most:
        planned = f"{least:.3g} to {most:.3g}" if most_records > 1 else f"{least:.3g}"
        raise ValueError(f"it states noise of {noise_std:.3g}, the plan asks for {planned}")


def check_counts(card: SiteCard, measured: Iterable[Statistics]) -> None:
    """Check that no count, and no sum of values in [0, 1], is beyond a site of the declared size.

    The declared units may be short of the real ones, and say of a training site how many it trains
    on, of which its test records are another share.

    Raises:
        ValueError: If one is.
    """
    for statistics in measured:
        if isinstance(statistics, NoisedCounts):
            deviations = np.sqrt(np.diag(statistics.covariance))
            _check_noised(
                card,
                statistics.counts,
                noise_std=deviations[:, None],
                records=statistics.records,
                records_noise_std=statistics.records_noise_std,
            )
        else:
            _check_count(card, statistics.count, slack=0.0)


def _most_records(card: SiteCard) -> float:
    return MAX_RECORDS_PER_UNIT * card.units / (1 - MAX_DECLARATION_ERROR)


def _check_count(card: SiteCard, count: float, slack: float) -> None:
    most = _most_records(card)
    if count > most + slack:
        raise ValueError(
            f"it counts {count:.4g} test records; {card.units} units give at most {most:.4g}"
        )


def _check_noised(
    card: SiteCard,
    sums: Floats,
    *,
    noise_std: Floats | float,
    records: float,
    records_noise_std: float,
) -> None:
    """Check that sums of values in [0, 1] lie where the declared size and their noise put them."""
    slack = np.broadcast_to(NOISE_DEVIATIONS * np.asarray(noise_std), sums.shape)
    possible = (sums >= -slack) & (sums <= _most_records(card) + slack)
    impossible = sums[~possible]
    if impossible.size:
        raise ValueError(
            f"a sum is {impossible[0]:.4g}, which {card.units} units and the stated noise do not "
            "give"
        )
    _check_count(card, records, slack=NOISE_DEVIATIONS * records_noise_std)


def checked_counts(
    arrays: Mapping[str, Floats],
    answer: RecalibrateReply,
    card: SiteCard,
    noise_multiplier: float,
    most_records: int,
) -> NoisedTable:
    """Check the counts for recalibration that a site sent.

    Args:
        arrays: As COUNT_ARRAYS has them.
        answer: The site's record.
        card: Who replies.
        noise_multiplier: That of the plan.
        most_records: The plan's most records of one unit.

    Raises:
        ValueError: If there are none, or the site's size or the plan's noise does not allow them.
    """
    if answer.noise_std is None:
        raise ValueError("it sent parameters, not counts")
    check_noise(answer.noise_std, noise_multiplier * sensitivity(), most_records)
    table = NoisedTable(arrays["noised"], answer.noise_std)
    _check_noised(
        card,
        table.sums,
        noise_std=table.noise_std,
        records=float(table.sums[:, COUNT].sum()),
        records_noise_std=table.noise_std * math.sqrt(len(table.sums)),
    )
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
    """Name the sites in whose counts noise hides the bins, so that the map changes nothing.

    Args:
        fitted: Site -> its map, None where it changes nothing.
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
    """Name the one of three or more sites that states most of the test records that are pooled.

    Args:
        role: Of the sites.
        counts: Site -> its number of test records, of one site at least.
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
    """Name a site whose results hold no record, or none that stands clear of noise on the count."""
    noise = 0.0
    if isinstance(statistics, NoisedCounts):
        noise = CLEAR_DEVIATIONS * statistics.records_noise_std
    return warning("empty-results", site) if record_count(statistics) <= noise else None


def decisive_sites(role: Role, tables: Mapping[str, NoisedCounts]) -> list[RunWarning]:
    """Name the sites that decide a pooled result.

    Without such a site it differs by more than the width of its 95 % interval, or is there.

    Args:
        role: Of the sites.
        tables: Site -> sums of the predictor that is read first, noise 0 where they are exact.
    """
    if len(tables) < 2:
        return []
    # Of sites 0 .. k - 1, and of k .. K - 1: each of the two in one pass, whatever their number.
    before = list(accumulate(tables.values(), NoisedCounts.plus))
    after = list(accumulate(reversed([*tables.values()]), NoisedCounts.plus))[::-1]
    pooled = _told(before[-1])
    remaining = [after[1], *map(NoisedCounts.plus, before, after[2:]), before[-2]]
    without = {site: _told(table) for site, table in zip(tables, remaining, strict=True)}
    warnings: list[RunWarning] = []
    for metric, name in DECIDED.items():
        of_all = pooled.get(metric)
        values_without = {
            site: told[metric].value for site, told in without.items() if metric in told
        }
        if of_all is None:
            warnings += [
                warning("vanished", site, role=role, metric=name, without=metric_without)
                for site, metric_without in values_without.items()
            ]
            continue
        value = of_all.value
        if of_all.interval is None or not values_without:
            continue
        low, high = of_all.interval
        changes = {site: abs(changed - value) for site, changed in values_without.items()}
        decisive = max(changes, key=lambda site: changes[site])
        if changes[decisive] > high - low:
            warnings.append(
                warning(
                    "decisive",
                    decisive,
                    sites=len(tables),
                    role=role,
                    metric=name,
                    value=value,
                    low=low,
                    high=high,
                    without=values_without[decisive],
                )
            )
    return warnings


def decisive_means(role: Role, metric: str, totals: Mapping[str, Total]) -> RunWarning | None:
    """Name the site without which a pooled mean differs by more than two widths of its interval.

    Of what is not read first a smaller difference is not worth a line: of two honest sites with
    other patients one nearly always makes more than one width.

    Args:
        role: Of the sites.
        metric: The mean's name in words.
        totals: Site -> its sums; sites without records are left out.
    """
    measured = {site: total for site, total in totals.items() if total.records > 0}
    if len(measured) < 2:
        return None
    sums = np.array(list(measured.values()))
    records, total, _ = sums.sum(axis=0)
    remaining = sums.sum(axis=0) - sums
    mean = total / records
    without = remaining[:, 1] / remaining[:, 0]
    decisive = int(np.abs(without - mean).argmax())
    # The spread of the other sites' records, which the site in question cannot widen.
    remaining_records, _, squares = remaining[decisive]
    variance = (
        max(0.0, squares / remaining_records - without[decisive] ** 2) + 1 / remaining_records
    )
    half = NORMAL_95 * math.sqrt(variance / records)
    if abs(without[decisive] - mean) <= MOST_WIDTHS * 2 * half:
        return None
    return warning(
        "decisive",
        list(measured)[decisive],
        sites=len(measured),
        role=role,
        metric=metric,
        value=float(mean),
        low=float(mean - half),
        high=float(mean + half),
        without=float(without[decisive]),
    )


def _told(table: NoisedCounts) -> dict[str, Measured]:
    """Return what one site may decide, as far as the noise does not hide it."""
    measured = {"accuracy": accuracy(table), "rms_debiased": noised_rms(table)}
    return {
        metric: of_metric
        for metric, of_metric in measured.items()
        if of_metric is not None and of_metric.interval is not None
    }
