"""What the largest epsilon of a run is at a delta that discloses nobody outright."""

import math
from collections.abc import Sequence
from typing import Any

from fl_dpbayes.config.plan import Adjacency
from fl_dpbayes.privacy.account import SMALL_DELTA
from fl_dpbayes.privacy.check_statement import epsilon_bounds
from fl_dpbayes.privacy.events import read_history


def largest_at_small_delta(rows: Sequence[dict[str, Any]], adjacency: Adjacency) -> dict[str, Any] | None:
    """Account for the costliest site's steps once more at `SMALL_DELTA`.

    Args:
        rows: the summary's privacy rows; those of one fixed schedule count, whose loss distribution is known.
        adjacency: which data sets are neighbours.

    Returns:
        `site`, `delta`, `epsilon` (the upper one of `epsilon_bounds`); None if no site has such a row, or every delta
        is as small.
    """
    known = [
        row
        for row in rows
        if row.get("epsilon_method") == "pld" and row["delta"] > SMALL_DELTA and math.isfinite(row["epsilon"])
    ]
    if not known:
        return None
    largest = max(known, key=lambda row: row["epsilon"])
    # A site's history is its own word, and must not choose how long the server computes.
    _, epsilon = epsilon_bounds(read_history(largest["history"]), SMALL_DELTA, adjacency)
    return {"site": largest["site"], "delta": SMALL_DELTA, "epsilon": epsilon}
