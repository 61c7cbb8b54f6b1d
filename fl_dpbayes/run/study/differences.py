"""Paired differences between methods over the seeds that they share."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd

from fl_dpbayes.config.names import PREDICTORS
from fl_dpbayes.config.study_file import PREDICTOR, SEED, Study
from fl_dpbayes.report.study.quantities import over_seeds

EVERY_SETTING = "all"
PLACE = ("site", "role", "shift", "severity")


def differences_table(study: Study, results: pd.DataFrame) -> pd.DataFrame:
    """Compare each method with the baseline of its axis, at every place but single training sites.

    A difference is `method - baseline` of one metric at one seed, everything else equal. `over` is `setting` for one
    setting of the other axes, whose interval is Student's t over seeds; and `all` for the mean over these settings, as
    `over_seeds` takes it, since the differences of a seed share records, start and draws. Where a figure is undefined
    or its cell failed, the pair is left out; the ends are undefined for a single pair.
    """
    axes = [axis.name for axis in study.axes if axis.name != SEED]
    columns = ["compared", "method", "baseline", "metric", "over", *axes, *PLACE, PREDICTOR]
    columns += ["mean", "low", "high", "pairs"]
    # NaN is no key that could be found again.
    records = results.to_dict("records")
    rows = [{name: None if value != value else value for name, value in row.items()} for row in records]
    rows = [row for row in rows if row["role"] != "train" or ":" in str(row["site"])]
    found = list[dict[str, Any]]()
    for compared, metric in product(study.section.compare, study.section.metrics):
        found += _differences(rows, compared, methods_of(study, compared, rows), metric, axes)
    return pd.DataFrame(found, columns=columns)


def methods_of(study: Study, compared: str, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the labels of an axis, the baseline first, or the predictors in `rows`, the point estimate first."""
    if compared != PREDICTOR:
        return [value.label for axis in study.axes if axis.name == compared for value in axis.values]
    found = dict.fromkeys(row[PREDICTOR] for row in rows)
    return [name for name in PREDICTORS if name in found] + [name for name in found if name not in PREDICTORS]


def _differences(
    rows: Sequence[Mapping[str, Any]], compared: str, methods: Sequence[Any], metric: str, axes: Sequence[str]
) -> list[dict[str, Any]]:
    others = [axis for axis in axes if axis != compared]
    place = [*PLACE, *([PREDICTOR] if compared != PREDICTOR else [])]
    values: dict[tuple[Any, ...], dict[Any, float]] = defaultdict(dict)
    for row in rows:
        value = row.get(metric)
        if value is not None and math.isfinite(value):
            key = (tuple(row[name] for name in place), tuple(row[name] for name in others), row[SEED])
            values[key][row[compared]] = float(value)
    found, every = [], (EVERY_SETTING,) * len(others)
    for method, over in product(methods[1:], ("setting", EVERY_SETTING)):
        baseline = methods[0]
        first = {"compared": compared, "method": method, "baseline": baseline, "metric": metric, "over": over}
        by_seed: dict[Any, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for (where, setting, seed), both in values.items():
            if method in both and baseline in both:
                at = (*where, *(setting if over == "setting" else every))
                by_seed[at][seed].append(both[method] - both[baseline])
        for at, seeds in by_seed.items():
            if (one := over_seeds(seeds.values())) is not None:
                ends = {"mean": one.mean, "low": one.low, "high": one.high, "pairs": one.seeds}
                found.append(first | dict(zip([*place, *others], at, strict=True)) | ends)
    return found
