"""How many records a site may claim, and what to say where one site decides a pooled result or noise hides it."""

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate

import numpy as np

from fl_dpbayes.calibration.bins import COUNT, Floats
from fl_dpbayes.calibration.recalibration.isotonic import LARGEST_DEVIATION
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, merge_noised, sensitivity
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.calibration.summarise import summarise_noised
from fl_dpbayes.config.errors import RunWarning, UserError, warning
from fl_dpbayes.config.names import Role
from fl_dpbayes.config.recalibration import ISOTONIC_BINS, AnyRecalibrationPlan, RecalibrationMap
from fl_dpbayes.config.summary import CalibrationValues
from fl_dpbayes.data.site import MAX_DECLARATION_ERROR
from fl_dpbayes.privacy.planned_noise import solve_multiplier
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.recalibrate import RecalibrateReply

Statistics = CalibrationStatistics | NoisedTable
# A site that claims more has claimed the pooled result, not more records.
MAX_RECORDS_PER_UNIT = 1000
# One honest sum in 10^9 lies beyond.
NOISE_DEVIATIONS = 6.0
DECIDED = {"accuracy": "accuracy", "rms_debiased": "calibration error (debiased RMS)"}
COUNT_ARRAYS = {"noised": (ISOTONIC_BINS, SENT_COLUMNS)}


def record_count(statistics: Statistics) -> float:
    """Return the number of test records; behind noise an estimate, which may be negative."""
    if isinstance(statistics, CalibrationStatistics):
        return statistics.count
    return float(statistics.sums[:, COUNT].sum())


def check_noise(noise_std: float, noise_multiplier: float) -> None:
    """Raise a ValueError where the noise that a site states for each sum does not follow from the multiplier asked for.

    It may be as large as the most records of one unit call for.
    """
    least, most = (noise_multiplier * sensitivity(records) for records in (1, MAX_RECORDS_PER_UNIT))
    if not least <= noise_std <= most * (1 + 1e-9):
        raise ValueError(f"it states noise of {noise_std:.3g}, not the {least:.3g} to {most:.3g} that was asked for")


def check_counts(card: SiteCard, measured: Iterable[Statistics]) -> None:
    """Raise a ValueError where a count, or a sum of values in [0, 1], is beyond a site of the declared size.

    The declared units may be short of the real ones, and say of a training site how many it trains on, of which its
    test records are another share.
    """
    most = MAX_RECORDS_PER_UNIT * card.units / (1 - MAX_DECLARATION_ERROR)
    for statistics in measured:
        count, slack = record_count(statistics), 0.0
        if isinstance(statistics, NoisedTable):
            slack = NOISE_DEVIATIONS * statistics.noise_std
            lowest, highest = float(statistics.sums.min()), float(statistics.sums.max())
            if lowest < -slack or highest > most + slack:
                extreme = lowest if lowest < -slack else highest
                raise ValueError(f"a sum is {extreme:.4g}, which {card.units} units and the stated noise do not give")
            slack *= math.sqrt(len(statistics.sums))
        if count > most + slack:
            raise ValueError(f"it counts {count:.4g} test records; {card.units} units give at most {most:.4g}")


def checked_counts(
    arrays: Mapping[str, Floats], answer: RecalibrateReply, card: SiteCard, noise_multiplier: float
) -> NoisedTable:
    """Check the counts for recalibration that a site sent, as COUNT_ARRAYS has them.

    Raises ValueError if there are none, or the site's size or the noise multiplier does not allow them.
    """
    if answer.noise_std is None:
        raise ValueError("it sent parameters, not counts")
    check_noise(answer.noise_std, noise_multiplier)
    check_counts(card, [table := NoisedTable(arrays["noised"], answer.noise_std)])
    return table


def planned_multiplier(plan: AnyRecalibrationPlan) -> float:
    """Return the noise multiplier that follows from a plan; 0 without privacy, or where no noise meets its budget."""
    if plan.epsilon is None:
        return 0.0
    try:
        return solve_multiplier(plan.epsilon, plan.delta, 1.0, plan.steps, plan.adjacency)
    except UserError:
        # Every site then refuses, and what was trained is not lost.
        return 0.0


def counts_warning(together: RecalibrationMap | None, own: Mapping[str, RecalibrationMap | None]) -> RunWarning | None:
    """Say so where noise hides the bins of the merged counts, or of a site that is to use its own map: it is None."""
    hidden = [name for name, fitted in own.items() if fitted is None]
    if together is not None and not hidden:
        return None
    where = "the sum of all sites" if together is None else ", ".join(hidden)
    return warning("counts-noise", where=where, largest=LARGEST_DEVIATION)


def dominating_site(role: Role, counts: Mapping[str, float]) -> RunWarning | None:
    """Say so where one of three or more sites states most of the test records that are pooled; `counts` by site."""
    held = {site: max(count, 0.0) for site, count in counts.items()}
    total = sum(held.values())
    largest = max(held, key=lambda site: held[site])
    if len(held) < 3 or held[largest] <= 0.5 * total:
        return None
    return warning("dominating", largest, held=held[largest], all=total, share=held[largest] / total, role=role)


def decisive_sites(role: Role, tables: Mapping[str, NoisedTable]) -> list[RunWarning]:
    """Say so where a pooled result without one site differs by more than the width of its 95 % interval.

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
        rests = {site: getattr(rest, metric) for site, rest in without.items() if getattr(rest, metric) is not None}
        if value is None or low is None or high is None or not rests:
            continue
        site = max(rests, key=lambda site: abs(rests[site] - value))
        if abs(rests[site] - value) > high - low:
            measured = {"value": value, "low": low, "high": high, "without": rests[site]}
            found.append(warning("decisive", site, sites=len(tables), role=role, metric=name, **measured))
    return found


def _summary_of(table: NoisedTable) -> CalibrationValues:
    return summarise_noised(table, np.random.default_rng(0))
