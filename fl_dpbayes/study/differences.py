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

    A difference is `method - baseline` of one metric at one seed, everything else equal. `over` is
    `setting` for one setting of the other axes, whose interval is Student's t over seeds; and `all`
    for the mean over these settings, as `over_seeds` takes it, since the differences of a seed
    share records, start and draws. Where a figure is undefined or its cell failed, the pair is left
    out; the ends are undefined for a single pair.
    """
    labels = {
        axis.name: [value.label for value in axis.values]
        for axis in study.axes
        if axis.name != SEED
    }
    columns = ["compared", "method", "baseline", "metric", "over", *labels, *PLACE, PREDICTOR]
    columns += ["mean", "low", "high", "pairs"]
    found = list[dict[str, Any]]()
    if not results.empty:
        rows = results[(results["role"] != "train") | results["site"].astype(str).str.contains(":")]
        labels[PREDICTOR] = predictors_in_order(rows[PREDICTOR])
        for compared, metric in product(study.section.compare, study.section.metrics):
            found += _differences(rows, compared, labels, metric) if metric in rows else []
    return pd.DataFrame(found, columns=columns)


def _differences(
    rows: pd.DataFrame, compared: str, labels: dict[str, list[Any]], metric: str
) -> list[dict[str, Any]]:
    found, (baseline, *methods) = [], labels[compared]
    others = [axis for axis in labels if axis not in (compared, PREDICTOR)]
    place = [*PLACE, *([PREDICTOR] if compared != PREDICTOR else [])]
    values = rows.rename(columns={metric: "value"})[[*place, *others, SEED, compared, "value"]]
    first = values[values[compared] == baseline].drop(columns=compared)
    for method, over in product(methods, ("setting", EVERY_SETTING)):
        pairs = values[values[compared] == method].merge(
            first, on=[*place, *others, SEED], suffixes=("", "_baseline")
        )
        pairs["value"] -= pairs["value_baseline"]
        if over == EVERY_SETTING:
            pairs[others] = EVERY_SETTING
        about = {
            "compared": compared,
            "method": method,
            "baseline": baseline,
            "metric": metric,
            "over": over,
        }
        for at, group in pairs.groupby([*place, *others], sort=False, dropna=False):
            if one := mean_of(group, "value"):
                low, high = one.ends or (None, None)
                ends = {"mean": one.mean, "low": low, "high": high, "pairs": one.seeds}
                found.append(about | dict(zip([*place, *others], at, strict=True)) | ends)
    return found
