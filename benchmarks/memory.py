"""How much memory sites and server take for large samples of many sites.

The memory of a step is measured by `clip`.
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

    Args:
        sites: Number of sites.

    Returns:
        The MiB of all samples, the memory before the run and at its peak, and its seconds.
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
    costs = simulated(scenario, "inline")
    sample_mebibytes = 4 * sites * SAMPLES * PARAMETERS / MEBIBYTE
    record = {"samples of all sites, MiB": sample_mebibytes}
    for name, value in costs.items():
        if "MiB" in name or name == "run, s":
            record[name] = value
    return record
