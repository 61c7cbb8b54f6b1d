"""Rows `mean:<role>`: the mean of the sites' own rows, in which a small hospital counts as much as a large one."""

from collections.abc import Mapping, Sequence
from typing import Any

# The mean of quantiles is no quantile of the mean.
NOT_AVERAGED = ("site", "role", "predictor", "samples", "n", "ece_if_calibrated_high", "intervals")


def mean_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Average the rows of each role with two or more sites, of each predictor that was measured at all of them.

    Errors of opposite sign at two sites cancel where their records are pooled, and do not here.

    Args:
        rows: one calibration row for each site and predictor.

    Returns:
        One row for each role and predictor: `n` is the total, a metric the unweighted mean over the sites, None where
        it is undefined at one of them or no real number; bounds [low, high] are averaged end by end, so that they hold
        for the mean. There are no intervals.
    """
    averaged = []
    for role, predictor in dict.fromkeys((row["role"], row["predictor"]) for row in rows):
        members = [row for row in rows if (row["role"], row["predictor"]) == (role, predictor)]
        sites = {row["site"] for row in rows if row["role"] == role}
        # Over some of the sites only it could not be held against the other predictors.
        if len(members) < 2 or len(members) < len(sites):
            continue
        key = {"site": f"mean:{role}", "role": role, "predictor": predictor, "samples": members[0]["samples"]}
        metrics = {name: _mean([row[name] for row in members]) for name in members[0] if name not in NOT_AVERAGED}
        averaged.append({**key, "n": sum(row["n"] for row in members), **metrics, "intervals": {}})
    return averaged


def _mean(values: Sequence[object]) -> float | list[float | None] | None:
    ends = [value for value in values if isinstance(value, list) and all(isinstance(end, float) for end in value)]
    if len(ends) == len(values) and {len(pair) for pair in ends} == {2}:
        return [_mean_number(side) for side in zip(*ends, strict=True)]
    return _mean_number(values)


def _mean_number(values: Sequence[object]) -> float | None:
    numbers = [value for value in values if isinstance(value, float)]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else None
