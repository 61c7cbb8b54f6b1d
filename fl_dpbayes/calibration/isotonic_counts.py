"""Counts of bins that sites release for an isotonic map: what is accepted, and when the map is not to be used."""

from collections.abc import Mapping

from fl_dpbayes.calibration.evaluation_counts import check_counts, check_noise
from fl_dpbayes.calibration.isotonic import LARGEST_DEVIATION
from fl_dpbayes.calibration.release import SENT_COLUMNS, NoisedTable, noised_from_arrays
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.recalibration import ISOTONIC_BINS, AnyRecalibrationPlan, RecalibrationMap
from fl_dpbayes.config.warning import RunWarning, warning
from fl_dpbayes.privacy.solve import solve_multiplier
from fl_dpbayes.protocol.arrays import Arrays
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.recalibrate import RecalibrateReply

COUNT_ARRAYS = {"noised": (ISOTONIC_BINS, SENT_COLUMNS)}


def planned_multiplier(plan: AnyRecalibrationPlan) -> float:
    """Return the noise multiplier that follows from a plan; 0 without privacy, or where no noise meets its budget."""
    if plan.epsilon is None:
        return 0.0
    try:
        return solve_multiplier(plan.epsilon, plan.delta, 1.0, plan.steps, plan.adjacency)
    except UserError:
        # Every site then refuses, and what was trained is not lost.
        return 0.0


def checked_counts(arrays: Arrays, answer: RecalibrateReply, card: SiteCard, noise_multiplier: float) -> NoisedTable:
    """Read a site's counts.

    Args:
        arrays: what it sent, of COUNT_ARRAYS.
        answer: the record beside them.
        card: the site's.
        noise_multiplier: that of the plan.

    Returns:
        The table.

    Raises:
        ValueError: if it is missing, of another shape, not finite, more than the site's size allows, or its noise does
            not follow from the plan.
    """
    if answer.noise_std is None:
        raise ValueError("it sent parameters, not counts")
    check_noise(answer.noise_std, noise_multiplier)
    table = noised_from_arrays(arrays, ISOTONIC_BINS, answer.noise_std)
    check_counts(card, [table])
    return table


def counts_warning(together: RecalibrationMap | None, own: Mapping[str, RecalibrationMap | None]) -> RunWarning | None:
    """Say so where noise hides the bins of the merged counts, or of a site that is to use its own map.

    Args:
        together: the map of all counts, None where it cannot be fitted.
        own: site -> its own map, where sites use their own.

    Returns:
        The warning, or None.
    """
    hidden = [name for name, fitted in own.items() if fitted is None]
    if together is not None and not hidden:
        return None
    where = "the sum of all sites" if together is None else ", ".join(hidden)
    return warning("counts-noise", where=where, largest=LARGEST_DEVIATION)
