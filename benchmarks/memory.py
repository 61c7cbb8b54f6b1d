"""How much memory sites and server take for large samples of many sites.

That of a step is told by `clip`.
"""

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.measure import MEBIBYTE, Record, Sizes
from benchmarks.simulation import growing_scenario, simulated

# A network of two inputs, two hidden layers of this width and two classes has so many parameters.
SAMPLES, WIDTH, PARAMETERS = 20, 315, 101_117


def rows(sizes: Sizes) -> Mapping[str, Callable[[], Record]]:
    """Return federations of 10, 100, ... sites whose samples are all kept."""
    return {f"{sites} sites": partial(kept_samples, sites) for sites in sizes.growing}


def kept_samples(sites: int) -> Record:
    """Simulate a federation whose sites send 20 samples of 100,000 parameters each.

    Return its peak.
    """
    scenario = partial(
        growing_scenario,
        sites,
        1,
        f"model={{kind='mlp',hidden=[{WIDTH},{WIDTH}]}}",
        "aggregation={rule='mixture'}",
        f"training={{rounds=1,steps_per_round={SAMPLES},burn_in=0,thinning=1}}",
        "evaluation={release='none'}",
    )
    found = simulated(scenario, "inline")
    kept = {name: value for name, value in found.items() if "MiB" in name or name == "run, s"}
    return {"samples of all sites, MiB": 4 * sites * SAMPLES * PARAMETERS / MEBIBYTE} | kept
