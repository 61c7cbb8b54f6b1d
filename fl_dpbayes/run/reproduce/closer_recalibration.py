"""Private recalibration of private classifiers, in-domain and on shifted sites, beside Langevin and global clipping."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import numpy as np
from pydantic import TypeAdapter

from fl_dpbayes.config.task import Model
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.run.reproduce.classification import measure, reliability
from fl_dpbayes.run.reproduce.closer_recalibration_figures import recalibration_figures
from fl_dpbayes.run.reproduce.closer_recalibration_paper import NOTES, PAPER, PAPER_EPSILON
from fl_dpbayes.run.reproduce.closer_recalibration_predictors import Predictions, predictors
from fl_dpbayes.run.reproduce.closer_recalibration_settings import (
    CONFIGURATIONS_TRIED,
    DELTA,
    DP,
    EPSILONS,
    MEAN,
    MODELS,
    RECALIBRATION,
    RECALIBRATION_SHARE,
    chains,
    task_setting,
)
from fl_dpbayes.run.reproduce.closer_recalibration_sites import (
    IN_DOMAIN,
    SEVERITY,
    Labelled,
    check_recalibration_data,
    task_records,
)
from fl_dpbayes.run.reproduce.experiment import Cell, Experiment, Measurement, Metric, Row


def recalibration_cells(seed: int, full: bool) -> list[Cell]:
    """List the cells of a seed: for each model one per budget, which holds both tasks, and one without privacy.

    Args:
        seed: number of the repetition.
        full: has no effect: one seed is small enough.

    Returns:
        The cells.
    """
    common = {
        "delta": DELTA, "severity": SEVERITY, "recalibration": RECALIBRATION,
        "recalibration_share": RECALIBRATION_SHARE,
    }  # fmt: skip
    return [
        Cell(
            f"{name}, {'no privacy' if epsilon is None else f'eps {epsilon:g}'}",
            seed,
            {**common, "name": name, "model": model, "epsilon": epsilon, "chains": chains(name, epsilon)},
        )
        for name, model in MODELS.items()
        for epsilon in (*EPSILONS, None)
    ]


def measure_recalibration(cell: Cell, data_dir: Path | None) -> Measurement:
    """Train a cell's chains, recalibrate those that are to be, and measure each at every test site.

    Args:
        cell: one of `recalibration_cells`.
        data_dir: the data folder.

    Returns:
        A row per method and task, and one per method with the mean over tasks.
    """
    model: Model = TypeAdapter(Model).validate_python(cell.settings["model"])
    rows, details = [], {}
    for task in cell.settings["chains"]:
        records = task_records(task, model.features, data_dir)
        baseline: Mapping[str, float] = {}
        for predictor in predictors(cell, task, model, records):
            sites = _site_values(predictor.predictions, records.sites, cell.seed)
            if predictor.method == DP:
                baseline = {site: float(values["ece"] or 0.0) for site, values in sites.items()}
            setting = task_setting(cell.settings["name"], task, cell.settings["epsilon"])
            history = predictor.history
            delta = None if history is None else cell.settings["delta"]
            rows.append(Row(predictor.method, setting, _values(sites, baseline), history, delta))
            details[f"{predictor.method}, {setting}"] = {
                "sites": sites,
                "reliability": reliability(predictor.predictions[IN_DOMAIN], records.sites[IN_DOMAIN].labels),
            }
    means = _means(rows, task_setting(cell.settings["name"], MEAN, cell.settings["epsilon"]))
    return Measurement((*rows, *means), CONFIGURATIONS_TRIED, {"by_row": details})


def _site_values(
    predictions: Predictions, sites: Mapping[str, Labelled], seed: int
) -> dict[str, dict[str, float | None]]:
    return {site: dict(measure(predictions[site], records.labels, seed)) for site, records in sites.items()}


def _values(sites: Mapping[str, Mapping[str, float | None]], baseline: Mapping[str, float]) -> dict[str, float | None]:
    values: dict[str, float | None] = {
        name: sites[IN_DOMAIN][name] for name in ("accuracy", "ece", "ece_if_calibrated", "nll")
    }
    shifted = [site for site in sites if site != IN_DOMAIN]
    for name in ("accuracy", "ece", "ece_if_calibrated"):
        values[f"shifted_{name}"] = fmean(float(sites[site][name] or 0.0) for site in shifted)
    if baseline:
        values["ratio"] = baseline[IN_DOMAIN] / float(sites[IN_DOMAIN]["ece"] or np.nan)
        values["shifted_ratio"] = fmean(baseline[site] / float(sites[site]["ece"] or np.nan) for site in shifted)
    return values


def _means(rows: list[Row], setting: str) -> list[Row]:
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(row.method, []).append(row)
    means = []
    for method, members in methods.items():
        values = {name: fmean(float(row.values[name] or 0.0) for row in members) for name in members[0].values}
        # The tasks are different data sets, and each has its own budget: the row states the larger cost.
        history, delta = _costliest(members)
        means.append(Row(method, setting, values, history, delta))
    return means


def _costliest(rows: list[Row]) -> tuple[History | None, float | None]:
    if any(row.history is None for row in rows):
        return None, None
    costs = [(pld_epsilon(row.history, row.delta or 0.0), row) for row in rows if row.history is not None]
    row = max(costs, key=lambda one: one[0])[1]
    return row.history, row.delta


EXPERIMENT = Experiment(
    name="closer-recalibration",
    title="Private recalibration of private classifiers, in-domain and on shifted sites",
    source="A closer look at the calibration of differentially private learners, tables 1 to 4 and 7, appendix B",
    metrics=(
        Metric("accuracy", "accuracy", 3),
        Metric("ece", "ECE"),
        Metric("ece_if_calibrated", "if calibrated"),
        Metric("ratio", "DP's ECE / this", 1),
        Metric("shifted_accuracy", "shifted accuracy", 3),
        Metric("shifted_ece", "shifted ECE", 3),
        Metric("shifted_ratio", "DP's / this", 1),
    ),
    cells=recalibration_cells,
    measure=measure_recalibration,
    paper=PAPER,
    paper_epsilon=PAPER_EPSILON,
    paper_accounting="rdp",
    figures=recalibration_figures,
    check_data=check_recalibration_data,
    notes=NOTES,
)
