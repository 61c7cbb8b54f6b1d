"""Reliability diagrams of an experiment's first seed, one per row."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from fl_dpbayes.config.summary import ReliabilityRecord
from fl_dpbayes.report.reliability_figure import reliability_figure
from fl_dpbayes.run.reproduce.experiment import CellResult, DrawFigure, StoredRow


def reliability_figures(results: Sequence[CellResult], *, experiment: str) -> Mapping[str, DrawFigure]:
    """Choose the diagrams that can be drawn: a cell's detail `reliability` holds one list of bins per row.

    Args:
        results: finished cells.
        experiment: its name, the start of each file's stem.

    Returns:
        File stem -> function that draws; the first seed of each row.
    """
    chosen: dict[str, DrawFigure] = {}
    for result in sorted(results, key=lambda one: one.cell.seed):
        for row, bins in zip(result.rows, result.details.get("reliability", ()), strict=False):
            words = re.sub("[^a-z0-9]+", "-", f"{row.method} {row.setting}".lower()).strip("-")
            chosen.setdefault(f"{experiment}-reliability-{words}", _drawing(row, bins))
    return chosen


def _drawing(row: StoredRow, bins: Sequence[Mapping[str, Any]]) -> DrawFigure:
    def draw() -> Figure:
        record = ReliabilityRecord.model_validate(
            {"site": "test set", "role": "train", "predictor": "last", "bins": list(bins)}
        )
        title = f"{row.method} {row.setting}".strip()
        return reliability_figure(record, title, f"ECE {row.values['ece']:.4f}, accuracy {row.values['accuracy']:.4f}")

    return draw
