"""Paired differences between methods over the seeds that they share."""

from itertools import product
from typing import Any

import pandas as pd

from fl_dpbayes.config import PREDICTOR, SEED, Study
from fl_dpbayes.report.study.comparisons import mean_of
from fl_dpbayes.report.study.results import predictors_in_order

EVERY_SETTING = "all"
PLACE = ("site", "role", "shift", "severity")


def differences_table(study: Study, results: pd.DataFrame) -> pd.DataFrame:
    """Compare each method with the baseline of its axis, at every place but single training sites.

    A difference is `method - baseline` of one metric at one seed, everything else equal. Where a
    figure is undefined or its cell failed, the pair is left out.

    Args:
        study: The study, whose section says what is compared.
        results: Its rows, as `result_table` gathers them.

    Returns:
        Means of differences with 95 % intervals, whose ends are undefined for a single pair. `over`
        is `setting` for one setting of the other axes, whose interval is Student's t over seeds;
        and `all` for the mean over these settings, as `over_seeds` takes it, since the differences
        of a seed share records, start and draws.
    """
    labels = {
        axis.name: [value.label for value in axis.values]
        for axis in study.axes
        if axis.name != SEED
    }
    columns = ["compared", "method", "baseline", "metric", "over", *labels, *PLACE, PREDICTOR]
    columns += ["mean", "low", "high", "pairs"]
    differences: list[dict[str, Any]] = []
    if not results.empty:
        is_pooled = results["site"].astype(str).str.contains(":")
        rows = results[(results["role"] != "train") | is_pooled]
        labels[PREDICTOR] = predictors_in_order(rows[PREDICTOR])
        for compared, metric in product(study.section.compare, study.section.metrics):
            if metric in rows:
                differences += _differences(rows, compared, labels, metric)
    return pd.DataFrame(differences, columns=columns)


def _differences(
    rows: pd.DataFrame, compared: str, labels: dict[str, list[Any]], metric: str
) -> list[dict[str, Any]]:
    baseline, *methods = labels[compared]
    free_axes = [axis for axis in labels if axis not in (compared, PREDICTOR)]
    place = [*PLACE, *([PREDICTOR] if compared != PREDICTOR else [])]
    at = [*place, *free_axes]
    values = rows.rename(columns={metric: "value"})[[*at, SEED, compared, "value"]]
    of_baseline = values[values[compared] == baseline].drop(columns=compared)
    differences = []
    for method, over in product(methods, ("setting", EVERY_SETTING)):
        of_method = values[values[compared] == method]
        pairs = of_method.merge(of_baseline, on=[*at, SEED], suffixes=("", "_baseline"))
        pairs["value"] -= pairs["value_baseline"]
        if over == EVERY_SETTING:
            pairs[free_axes] = EVERY_SETTING
        for keys, group in pairs.groupby(at, sort=False, dropna=False):
            mean = mean_of(group, "value")
            if not mean:
                continue
            low, high = mean.ends or (None, None)
            differences.append(
                {
                    "compared": compared,
                    "method": method,
                    "baseline": baseline,
                    "metric": metric,
                    "over": over,
                    **dict(zip(at, keys, strict=True)),
                    "mean": mean.mean,
                    "low": low,
                    "high": high,
                    "pairs": mean.seeds,
                }
            )
    return differences
