"""Tables of the second trial: the federation against its rivals, and intervals at new hospitals.

python -m studies.second_trial.analysis RUNS TABLES      RUNS: a study's STUDY/runs
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from fl_dpbayes.config import Scenario
from fl_dpbayes.posterior import with_intercept
from studies.stroke.analysis import observed_interval
from studies.stroke.comparison import KeptRun, compare, read_kept_runs, write_tables
from studies.stroke.rivals import RIVALS, SEARCHED, TREES, Cohort, Rival, boosting, search
from studies.stroke.splits import read_split

LEVEL = 0.9
ONE_LEVEL = ("pooled", "random intercepts", "boosting", "alone", "public score, own level")
RIVALS_HERE = (
    *[rival for rival in RIVALS if rival.name in ONE_LEVEL],
    Rival("boosting with hospital", TREES, partial(boosting, by="hospitals")),
)
HELD_OUT = "20 and more, held out in turn"
TOO_SMALL = "below 20, never in training"


def searched_scenarios(scenario: Scenario) -> Iterator[Scenario]:
    """Yield a scenario under the seeds of the search."""
    for seed in SEARCHED:
        yield scenario.model_copy(update={"seed": seed})


def coverage_rows(run: KeptRun) -> Iterator[dict[str, object]]:
    """Yield whether the 90 % interval of a new hospital's rate holds the observed one.

    The chance of its patients is in the interval. Where all hospitals train, those that are too
    small for it are new ones.
    """
    split = read_split(run.run.scenario)
    held_out = [name for name, spec in run.run.scenario.sites.items() if spec.role == "held_out"]
    new = split.test.subset(np.isin(split.test.hospitals, held_out)) if held_out else split.outside
    which = HELD_OUT if held_out else TOO_SMALL
    effect = run.hospitals.effect()
    for hospital in np.unique(new.hospitals):
        patients: Cohort = new.subset(new.hospitals == hospital)
        log_odds = with_intercept(patients.features) @ run.hospitals.state
        low, high = observed_interval(effect, log_odds)
        yield {
            "hospitals": which,
            "privacy": run.privacy,
            "seed": run.seed,
            "hospital": hospital,
            "patients": len(patients),
            "rate": patients.labels.mean(),
            "low": low,
            "high": high,
            "holds": bool(low <= patients.labels.mean() <= high),
        }


def coverage_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Count how many intervals hold, with Wilson's 90 % interval as if hospitals were all apart."""
    counted = []
    for (which, privacy), part in rows.groupby(["hospitals", "privacy"], sort=False):
        holds = int(part["holds"].sum())
        count = len(part)
        low, high = proportion_confint(holds, count, alpha=1 - LEVEL, method="wilson")
        counted.append(
            {
                "hospitals": which,
                "privacy": privacy,
                "places": part["hospital"].nunique(),
                "intervals": count,
                "coverage": holds / count,
                "low": low,
                "high": high,
                "width": (part["high"] - part["low"]).mean(),
            }
        )
    return pd.DataFrame(counted)


def spread_table(runs: Sequence[KeptRun]) -> pd.DataFrame:
    """Return the standard deviation between hospitals, by run in which all train."""
    rows = []
    for run in runs:
        if run.held_out != "":
            continue
        (spread,) = run.hospitals.spreads
        low, high = spread.interval
        key = {"seed": run.seed, "privacy": run.privacy}
        rows.append(key | {"sd": spread.standard_deviation, "low": low, "high": high})
    return pd.DataFrame(rows)


def main() -> None:
    """Search the rivals' settings, and write all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="kept runs of studies/second_trial/medpar.toml")
    parser.add_argument("tables", type=Path, help="folder that gets a CSV file for each table")
    options = parser.parse_args()
    runs = read_kept_runs(options.runs)
    scenario = next(run for run in runs if run.held_out == "").run.scenario
    tries = search(RIVALS_HERE, [read_split(each) for each in searched_scenarios(scenario)])
    coverage = pd.DataFrame([row for run in runs for row in coverage_rows(run)])
    tables = {
        "rivals-tries": tries,
        **compare(runs, RIVALS_HERE, tries),
        "spread": spread_table(runs),
        "coverage": coverage_table(coverage),
        "coverage-by-hospital": coverage,
    }
    write_tables(tables, options.tables)


if __name__ == "__main__":
    main()
