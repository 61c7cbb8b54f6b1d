"""Bounds what one privacy unit adds to a table of counts."""

import numpy as np

from fl_dpbayes.data.site import Part


def capped_units(part: Part, max_records: int) -> Part:
    """Keep the first `max_records` records of every unit, in their order; a table needs no truth and no subgroups."""
    order = np.argsort(part.unit_index, kind="stable")
    starts = np.searchsorted(part.unit_index[order], part.unit_index[order])
    kept = np.sort(order[np.arange(len(order)) - starts < max_records])
    return Part(part.features[kept], part.labels[kept], part.unit_index[kept], part.unit_count)
