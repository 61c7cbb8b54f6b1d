"""How many test records a site may claim, and what to say where one site decides a pooled result."""

import math
from collections.abc import Iterable, Mapping

from fl_dpbayes.calibration.bins import COUNT
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, sensitivity
from fl_dpbayes.calibration.statistics import CalibrationStatistics
from fl_dpbayes.config.names import Role
from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.data.declared_units import MAX_DECLARATION_ERROR
from fl_dpbayes.protocol.card import SiteCard

Statistics = CalibrationStatistics | NoisedTable
# A site that claims more has claimed the pooled result, not more records.
MAX_RECORDS_PER_UNIT = 1000
# One honest sum in 10^9 lies beyond.
NOISE_DEVIATIONS = 6.0


def record_count(statistics: Statistics) -> float:
    """Return the number of test records; behind noise an estimate, which may be negative."""
    if isinstance(statistics, CalibrationStatistics):
        return statistics.count
    return float(statistics.sums[:, COUNT].sum())


def check_noise(noise_std: float, noise_multiplier: float) -> None:
    """Reject noise that does not follow from the noise multiplier that was asked for.

    Args:
        noise_std: standard deviation that a site states for each sum.
        noise_multiplier: what it was asked for.

    Raises:
        ValueError: if it is too small, or larger than the most records of one unit call for.
    """
    least = noise_multiplier * sensitivity(SENT_COLUMNS)
    if noise_std < least:
        raise ValueError(f"it states noise of {noise_std:.3g}, below the {least:.3g} that was asked for")
    most = noise_multiplier * sensitivity(SENT_COLUMNS, max_records_per_unit=MAX_RECORDS_PER_UNIT)
    if noise_std > most * (1 + 1e-9):
        raise ValueError(
            f"it states noise of {noise_std:.3g}, above the {most:.3g} for {MAX_RECORDS_PER_UNIT} records of one unit"
        )


def check_counts(card: SiteCard, measured: Iterable[Statistics]) -> None:
    """Reject counts that a site of the declared size cannot have.

    Args:
        card: the site. Its declared units may be short of the real ones, and say of a training site how many it trains
            on, of which its test records are another share.
        measured: what it sent, of each predictor.

    Raises:
        ValueError: if a count, or a sum of values in [0, 1], is beyond the site's size.
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


def dominating_site(role: Role, counts: Mapping[str, float]) -> RunWarning | None:
    """Say so where one of three or more sites holds most of what is pooled.

    Args:
        role: whose results are pooled.
        counts: site -> number of test records that it states.

    Returns:
        A warning, or None.
    """
    held = {site: max(count, 0.0) for site, count in counts.items()}
    total = sum(held.values())
    largest = max(held, key=lambda site: held[site])
    if len(held) < 3 or held[largest] <= 0.5 * total:
        return None
    return warning("dominating", largest, held=held[largest], all=total, share=held[largest] / total, role=role)
