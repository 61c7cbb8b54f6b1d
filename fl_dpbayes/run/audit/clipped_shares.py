"""How many gradients were clipped in a simulation whose sites kept traces: read where the traces lie, never sent."""

import csv
from pathlib import Path

from fl_dpbayes.data.simulation import TRACES_FOLDER


def clipped_shares(run_folder: Path) -> dict[str, float]:
    """Return the share of unit gradients that the clip reduced, over the traced steps of each simulated site.

    Args:
        run_folder: of a run with `simulation.traces`; in deployment its sites' traces are not there.

    Returns:
        Site -> share in [0, 1]; empty without traces.
    """
    shares = {}
    for folder in sorted((run_folder / TRACES_FOLDER).glob("*/")):
        clipped, units = 0.0, 0
        for path in sorted(folder.glob("*.csv")):
            with path.open(newline="", encoding="utf-8") as file:
                # An empty batch has no share.
                for row in (row for row in csv.DictReader(file) if int(row["units"])):
                    clipped += float(row["clipped_fraction"]) * int(row["units"])
                    units += int(row["units"])
        if units:
            shares[folder.name] = clipped / units
    return shares


def clipped_sentence(shares: dict[str, float]) -> str:
    """Say the shares in one line; empty where there is none."""
    if not shares:
        return ""
    each = ", ".join(f"{site} {100 * share:.0f} %" for site, share in shares.items())
    return f"clipped gradients, from the simulated sites' own traces, which no reply carries: {each}"
