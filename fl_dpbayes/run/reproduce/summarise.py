"""From finished cells to the experiment's record: mean and standard deviation over seeds, beside the paper."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from fl_dpbayes.run.reproduce.cell_file import versions
from fl_dpbayes.run.reproduce.execute import Outcome
from fl_dpbayes.run.reproduce.experiment import CellResult, Experiment, StoredRow


def summarise(
    experiment: Experiment, results: Sequence[CellResult], failures: Sequence[Outcome], *, full: bool, seeds: int
) -> dict[str, Any]:
    """Put together what `NAME.json` holds.

    Args:
        experiment: what was measured.
        results: the finished cells.
        failures: the cells that failed.
        full: whether the cells have the paper's size.
        seeds: number of repetitions asked for.

    Returns:
        Name, source, settings of every cell, versions, seconds, and one entry per method and setting with the paper's
        values, the measured ones per seed, and the privacy cost by PLD and by the paper's accounting.
    """
    rows: dict[tuple[str, str], list[tuple[CellResult, StoredRow]]] = {}
    for result in results:
        for row in result.rows:
            rows.setdefault((row.method, row.setting), []).append((result, row))
    return {
        "name": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "full": full,
        "seeds": seeds,
        "versions": versions(),
        "seconds": sum(result.seconds for result in results),
        "rows": [_row(experiment, key, members) for key, members in rows.items()],
        "cells": [
            {
                "label": result.cell.label,
                "seed": result.cell.seed,
                "settings": result.cell.settings,
                "configurations_tried": result.configurations_tried,
                "seconds": result.seconds,
                "versions": result.versions,
            }
            for result in results
        ],
        "failed": [{"label": one.cell.label, "seed": one.cell.seed, "error": one.error} for one in failures],
        "notes": list(experiment.notes),
    }


def _row(
    experiment: Experiment, key: tuple[str, str], members: Sequence[tuple[CellResult, StoredRow]]
) -> dict[str, Any]:
    first = members[0][1]
    return {
        "method": key[0],
        "setting": key[1],
        "paper": dict(experiment.paper.get(key, {})),
        "paper_epsilon": experiment.paper_epsilon.get(key),
        "measured": {name: _over_seeds([row.values.get(name) for _, row in members]) for name in first.values},
        "seeds": [result.cell.seed for result, _ in members],
        "configurations_tried": max(result.configurations_tried for result, _ in members),
        "privacy": None if first.privacy is None else _costliest(members, experiment),
    }


def _costliest(members: Sequence[tuple[CellResult, StoredRow]], experiment: Experiment) -> dict[str, Any]:
    accounts = [row.privacy for _, row in members if row.privacy is not None]
    account = max(accounts, key=lambda one: float(one["epsilon"]["pld"]))
    return {
        **account,
        "paper_accounting": experiment.paper_accounting,
        "epsilon_by_paper_accounting": account["epsilon"][experiment.paper_accounting],
    }


def _over_seeds(values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    spread = len(known) > 1 and all(map(math.isfinite, known))
    return {
        "mean": statistics.fmean(known) if known else None,
        "standard_deviation": statistics.stdev(known) if spread else None,
        "values": list(values),
    }
