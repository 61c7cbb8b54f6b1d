"""How often an honest site is called far off: on federations that the statistic was not made on.

python benchmarks/far_off.py --out alarms.jsonl --seeds 5

Nobody is hostile in any run. Each cell is a line of the file once it is done; what is there is not
run again.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.hostile_site import summary_of
from benchmarks.measure import measure_cells, measured_cells
from clients.app import app
from fl_dpbayes.config import Scenario, load_scenario
from fl_dpbayes.data import plan_sites
from fl_dpbayes.engine.inline_engine import InlineGrid
from fl_dpbayes.posterior.far_off import LARGEST_RATIO

RULES = ("fald", "mixture", "fedpa")
SMALL_HOSPITALS = 16


def _skewed(sites: int, alpha: float, least: int) -> list[str]:
    trainers = ",".join(f"s{number}={{role='train'}}" for number in range(sites))
    return [
        f"sites={{{trainers},held-out={{role='held_out',records=200}}}}",
        f"partition={{kind='dirichlet', alpha={alpha}, min_records={least}}}",
    ]


def _small_hospitals() -> list[str]:
    """Keep the smallest hospitals of the stroke trial's scenario."""
    sizes = {
        site.name: site.train_units for site in plan_sites(load_scenario("stroke"), None).sites
    }
    smallest = sorted(sizes, key=lambda name: (sizes[name], name))[:SMALL_HOSPITALS]
    removals = [f"sites.{name}=" for name in sizes if name not in smallest]
    return [*removals, "evaluation.baselines=false"]


FEDERATIONS = {
    "stroke-uk: 8 hospitals of the stroke trial": (
        "stroke-uk",
        lambda: ["evaluation.baselines=false"],
    ),
    "digits: 4 sites, Dirichlet 1": ("digits", list),
    "digits: 4 sites, Dirichlet 0.3": ("digits", lambda: _skewed(4, 0.3, 40)),
    "digits: 8 sites, Dirichlet 0.3": ("digits", lambda: _skewed(8, 0.3, 20)),
    "heart: 4 hospitals": ("heart", lambda: ["sites.va.role=train"]),
    "mnist: 6 sites, Dirichlet 0.3": ("mnist", lambda: ["partition.alpha=0.3"]),
    "mnist: 6 sites, Dirichlet 0.1": (
        "mnist",
        lambda: ["partition.alpha=0.1", "partition.min_records=500"],
    ),
    "stroke: its 16 smallest hospitals": ("stroke", _small_hospitals),
}


def scenario_of(federation: str, rule: str, seed: int) -> Scenario:
    """Return an honest run; its seeds change the partition, the noise and who joins a batch."""
    name, overrides = FEDERATIONS[federation]
    seeds = (f"seed={seed + 1}", f"simulation.insecure_seed={seed + 1}")
    # The scenarios are shipped with FALD and its settings.
    aggregation = [] if rule == "fald" else [f"aggregation={{rule='{rule}'}}"]
    return load_scenario(name, [*overrides(), *aggregation, *seeds])


def measure(federation: str, rule: str, seed: int) -> dict[str, Any]:
    """Run a federation and say which of its honest sites are called far off.

    Args:
        federation: A key of `FEDERATIONS`.
        rule: Aggregation rule.
        seed: Seed of the partition, the noise and who joins a batch, from 0.

    Returns:
        The number of training sites, the names of those called far off, and each one's distance.
    """
    scenario = scenario_of(federation, rule, seed)
    summary = summary_of(scenario, lambda folder: InlineGrid(app, len(scenario.sites)))
    distances = {row["site"]: row["distance"] or 0.0 for row in summary["participation"]}
    named = [site for site, distance in distances.items() if distance > LARGEST_RATIO]
    return {"sites": len(distances), "named": named, "distances": distances}


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Count the runs that named a site, and show the farthest site, by federation and rule."""
    farthest = [max(distances.values()) for distances in rows["distances"]]
    groups = rows.assign(named=rows["named"].astype(bool), farthest=farthest).groupby(
        ["federation", "rule"], sort=False
    )
    counts = {
        "runs": groups.size(),
        "with a site named": groups["named"].sum(),
        "farthest": groups["farthest"].max(),
    }
    return pd.DataFrame(counts)


def main() -> None:
    """Measure the cells that are not there yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="one line of JSON for each cell")
    parser.add_argument("--seeds", type=int, default=1, help="repetitions (default: 1)")
    parser.add_argument("--federations", nargs="+", choices=FEDERATIONS, default=list(FEDERATIONS))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    chosen = parser.parse_args()
    cells = [
        {"federation": federation, "rule": rule, "seed": seed}
        for seed in range(chosen.seeds)
        for federation in chosen.federations
        for rule in chosen.rules
        # With one step a round FedPA has no covariance, and only FALD takes hospital effects.
        if rule == "fald" or not federation.startswith("stroke")
    ]
    measure_cells(chosen.out, cells, measure)
    print(table(measured_cells(chosen.out)).to_string())


if __name__ == "__main__":
    main()
