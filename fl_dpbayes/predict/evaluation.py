"""The calibration of a stored posterior on labelled records: figures, and the page's summary."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from fl_dpbayes.calibration import (
    METRICS,
    CalibrationStatistics,
    Metric,
    exact_auroc,
    from_batch,
    reliability_bins,
    roc_points,
    smooth_curve,
)
from fl_dpbayes.calibration.summarise import summarise
from fl_dpbayes.config import PREDICTORS
from fl_dpbayes.predict.prediction import Prediction
from fl_dpbayes.protocol import RECALIBRATED
from fl_dpbayes.report import Summary, interval, points
from fl_dpbayes.report.numbers import metric_writer
from fl_dpbayes.report.page_tables import metric_title
from fl_dpbayes.report.terminal_table import terminal_table
from fl_dpbayes.version import __version__

SHOWN = (
    "accuracy",
    "nll",
    "brier",
    "ece",
    "rms_debiased",
    "mce",
    "ace",
    "sce",
    "auroc",
    "epistemic",
    "aleatoric",
)


@dataclass(frozen=True)
class Evaluation:
    """How well predictions of labelled records are calibrated.

    Attributes:
        prediction: The predictions.
        statistics: Sums over the records, from which the metrics follow.
        row: Metric -> value, as a row of the calibration table, with `n` and `intervals`.
    """

    prediction: Prediction
    statistics: CalibrationStatistics
    row: dict[str, Any]

    @property
    def title(self) -> str:
        """What predicted, in words."""
        posterior = self.prediction.posterior
        if not posterior.point_name:
            return PREDICTORS[posterior.predictor]
        if posterior.predictor == RECALIBRATED:
            return f"recalibrated {posterior.point_name}"
        return posterior.point_name

    def table(self) -> Table:
        """Return the metrics with 95 % intervals as a table for the terminal."""
        table = terminal_table(f"{self.title.capitalize()} on {self.row['n']} records")
        table.caption = "accuracy in %, calibration errors in percentage points"
        table.add_column("metric", justify="left")
        table.add_column("value", justify="right")
        table.add_column("95% interval", justify="right")
        for key in SHOWN:
            table.add_row(*self._metric_cells(METRICS[key]))
        return table

    def summary(self, scenario: str, class_names: tuple[str, ...], data: str, name: str) -> Summary:
        """Describe the records as a run's one held-out site.

        Args:
            scenario: Name of the run's scenario.
            class_names: In the order of the classes; empty where numbers name them.
            data: Where the records were read from.
            name: What to call the site.

        Returns:
            What `summary.json` would say of a run with this site alone, by name and pooled.
        """
        place = {
            "role": "held_out",
            "predictor": self.prediction.posterior.predictor,
            "samples": 1 if self.prediction.posterior.point_name else None,
        }
        pooled_place = place | {"site": "pooled:held_out"}
        site_place = place | {"site": name}
        curves = {
            "risk": self.statistics.risk is not None,
            "roc": roc_points(self.statistics),
            "bins": [part.model_dump() for part in reliability_bins(self.statistics)],
            "curve": [point.model_dump() for point in smooth_curve(self.statistics)],
        }
        count = self.row["n"]
        return Summary.model_validate(
            {
                "scenario": scenario,
                "seed": None,
                "versions": {"fl-dpbayes": __version__},
                "adjacency": "",
                "data": data,
                "finished": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                "class_names": class_names,
                "sites": [{"name": name, "role": "held_out", "n": count, "test_n": count}],
                "privacy": (),
                "calibration": [self.row | pooled_place, self.row | site_place],
                "reliability": [pooled_place | curves, site_place | curves],
                "bytes": {},
                "seconds": {},
                "configurations_tried": None,
            }
        )

    def _metric_cells(self, metric: Metric) -> tuple[str, str, str]:
        write = metric_writer(metric)
        value = write(self.row[metric.key])
        if metric.key == "ece":
            value += f" ({points(self.row['ece_if_calibrated'])} if calibrated)"
        return metric_title(metric), value, interval(self.row["intervals"].get(metric.key), write)


def evaluate_prediction(prediction: Prediction, labels: npt.NDArray[np.int64]) -> Evaluation:
    """Measure how well predictions are calibrated.

    Args:
        prediction: Predictions of N records.
        labels: Their classes, (N,), 0 .. classes - 1.

    Returns:
        The metrics with their intervals; AUROC is exact, as the records are at hand.
    """
    tells_parts = prediction.posterior.tells_parts
    entropies = {}
    if tells_parts:
        entropies = {
            "total": prediction.total,
            "aleatoric": prediction.aleatoric,
            "epistemic": prediction.epistemic,
        }
    statistics = from_batch(prediction.probabilities, labels, **entropies)
    row = summarise(statistics, np.random.default_rng(0)).as_row()
    area = exact_auroc(prediction.probabilities, labels)
    if area:
        row |= {"auroc": area.value, "auroc_bounds": [area.value, area.value]}
        if area.interval:
            row["intervals"]["auroc"] = list(area.interval)
    if not tells_parts:
        row |= {"epistemic": None, "aleatoric": None}
    return Evaluation(prediction=prediction, statistics=statistics, row=row)
