"""Rows that say whether the posterior's uncertainty tells a new site's records from those of the training sites."""

from collections.abc import Iterable
from typing import Any

from fl_dpbayes.calibration.shift_detection import separation
from fl_dpbayes.calibration.statistics import MEASURES, CalibrationStatistics

PREDICTOR = "posterior"


def shift_detection_rows(
    reference: CalibrationStatistics | None,
    places: Iterable[tuple[str, CalibrationStatistics | None]],
    samples: int,
) -> list[dict[str, Any]]:
    """Compare the uncertainty of each place's test records with that of the training sites' test records.

    Args:
        reference: the training sites' test records, pooled; None where no such site sent exact sums.
        places: held-out and shifted sites and their pools with their statistics, None where they were noised.
        samples: how many the posterior averages; one has no epistemic uncertainty.

    Returns:
        Two rows for each place, by epistemic and by total uncertainty; what is undefined is None.
    """
    rows = []
    for site, statistics in places:
        for number, measure in enumerate(MEASURES):
            found = None
            if reference and statistics and (samples > 1 or measure != "epistemic"):
                found = separation(reference.uncertainty[number], statistics.uncertainty[number])
            rows.append(
                {
                    "site": site,
                    "predictor": PREDICTOR,
                    "measure": measure,
                    "auroc": found.auroc if found else None,
                    "low": found.low if found else None,
                    "high": found.high if found else None,
                    "interval": list(found.interval) if found else None,
                    "n_reference": int(reference.count) if reference else None,
                    "n": int(statistics.count) if statistics else None,
                }
            )
    return rows
