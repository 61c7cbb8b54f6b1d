"""Bounds what one privacy unit adds to a table of counts."""

import numpy as np

from fl_dpbayes.data.site import SiteSplit


def capped_units(part: SiteSplit, max_records: int) -> SiteSplit:
    """Keep the first `max_records` records of every unit, in their order; a table needs no truth and no subgroups."""
    order = np.argsort(part.unit_index, kind="stable")
    starts = np.searchsorted(part.unit_index[order], part.unit_index[order])
    kept = np.sort(order[np.arange(len(order)) - starts < max_records])
    return SiteSplit(part.features[kept], part.labels[kept], part.unit_index[kept], part.unit_count)
