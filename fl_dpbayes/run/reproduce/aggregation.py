"""Every aggregation rule on the same private chains, beside all records in one place and each hospital alone."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.names import Role
from fl_dpbayes.run.reproduce.aggregation_chains import BURN_IN, PRIOR_SCALE, STEPS, THINNING, Budget, ChainSettings
from fl_dpbayes.run.reproduce.aggregation_figures import aggregation_figures
from fl_dpbayes.run.reproduce.aggregation_further import FurtherSettings, further_predictors
from fl_dpbayes.run.reproduce.aggregation_predictors import DRAWS, PRODUCTS, Predictor, predictors
from fl_dpbayes.run.reproduce.aggregation_settings import (
    CONFIGURATIONS_TRIED,
    DELTAS,
    EPSILONS,
    FEATURES,
    FURTHER_CONFIGURATIONS_TRIED,
    NOTES,
    PARTITIONS,
    SCENARIOS,
    chosen_settings,
    further_settings,
    scenario_of,
)
from fl_dpbayes.run.reproduce.aggregation_sites import Hospitals, hospitals
from fl_dpbayes.run.reproduce.classification import measure
from fl_dpbayes.run.reproduce.closer_recalibration_sites import check_recalibration_data
from fl_dpbayes.run.reproduce.experiment import Cell, Experiment, Measurement, Metric, Row

ROLES: Mapping[str, Role] = {"training": "train", "held-out": "held_out", "shifted": "shifted"}
MEASURED = ("accuracy", "nll", "ece", "ece_if_calibrated")
TITLES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}


def aggregation_cells(seed: int, full: bool) -> list[Cell]:
    """List the cells of a seed: two per data set, partition and budget.

    Args:
        seed: of deal, noise and draws.
        full: has no effect: a cell takes a minute or two.

    Returns:
        The cells: of each setting the rules that share chains, then the others.
    """
    return [
        cell
        for dataset in SCENARIOS
        for partition in PARTITIONS
        for epsilon in EPSILONS
        for cell in (_sharing_cell(dataset, partition, epsilon, seed), _further_cell(dataset, partition, epsilon, seed))
    ]


def _sharing_cell(dataset: str, partition: str, epsilon: float, seed: int) -> Cell:
    chosen = {name: asdict(one) for name, one in chosen_settings(dataset, epsilon).items()}
    settings = _constants(dataset, partition, epsilon) | {"chosen": chosen}
    return Cell(setting_of(settings), seed, settings)


def _further_cell(dataset: str, partition: str, epsilon: float, seed: int) -> Cell:
    settings = _constants(dataset, partition, epsilon) | {"further": further_settings(dataset, epsilon).as_json()}
    return Cell(f"{setting_of(settings)}, pvi and distillation", seed, settings)


def _constants(dataset: str, partition: str, epsilon: float) -> dict[str, Any]:
    return {
        "dataset": dataset, "partition": partition, "epsilon": epsilon, "delta": DELTAS[dataset],
        "features": FEATURES[dataset], "steps": STEPS, "burn_in": BURN_IN, "thinning": THINNING,
        "prior_scale": PRIOR_SCALE, "draws": DRAWS,
    }  # fmt: skip


def setting_of(settings: Mapping[str, Any]) -> str:
    """Name the data set, partition and budget of a cell's settings, which its rows share with others'."""
    return f"{settings['dataset']}, {settings['partition']}, eps {settings['epsilon']:g}"


def measure_aggregation(cell: Cell, data_dir: Path | None) -> Measurement:
    """Run a cell's chains and measure every method on them.

    Args:
        cell: one of `aggregation_cells`.
        data_dir: the data folder.

    Returns:
        A row per method of the cell's kind; the one of the rules that need d + 4 samples is empty.
    """
    settings, setting = cell.settings, setting_of(cell.settings)
    sites = hospitals(scenario_of(settings["dataset"], settings["partition"], cell.seed), data_dir)
    budget = Budget(settings["epsilon"], settings["delta"])
    further = settings.get("further")
    tried = CONFIGURATIONS_TRIED if further is None else FURTHER_CONFIGURATIONS_TRIED
    if further is None:
        chosen = {name: ChainSettings(**one) for name, one in settings["chosen"].items()}
        found = predictors(sites, chosen, budget, cell.seed)
    else:
        found = further_predictors(sites, FurtherSettings.from_json(further), budget, cell.seed)
    rows, warnings = [], {}
    for one in found:
        rows.append(Row(one.method, setting, measured(sites, one, cell.seed), one.history, budget.delta))
        warnings[one.method] = list(one.warnings)
    if further is None:
        rows.append(Row(PRODUCTS, setting, dict.fromkeys(rows[0].values), rows[-1].history, budget.delta))
    details = {
        "warnings": warnings,
        "label_total_variation": sites.label_total_variation,
        "units": {name: len(records.labels) for name, records in sites.training.items()},
    }
    return Measurement(tuple(rows), tried, details)


def measured(sites: Hospitals, found: Predictor, seed: int) -> dict[str, float | None]:
    """Measure a predictor at the sites of each role together.

    Args:
        sites: the federation.
        found: one predictor, or one per hospital: then each predicts its own test records, and elsewhere the mean over
            hospitals is taken of each metric.
        seed: of the draws behind the ECE of a calibrated predictor.

    Returns:
        `<role>_<metric>` -> value.
    """
    values: dict[str, float | None] = {}
    for name, role in ROLES.items():
        rows = sites.rows(role)
        each = found.probabilities[:, rows]
        if len(each) > 1 and role == "train":
            each = _own(each, sites.owners[rows], list(sites.training))
        summaries = [measure(probabilities, sites.test.labels[rows], seed) for probabilities in each]
        for metric in MEASURED:
            values[f"{name}_{metric}"] = fmean(float(summary[metric] or 0.0) for summary in summaries)
    return values


def _own(each: npt.NDArray[np.float64], owners: npt.NDArray[np.str_], names: list[str]) -> npt.NDArray[np.float64]:
    positions = np.array([names.index(owner) for owner in owners])
    return each[positions, np.arange(len(owners))][np.newaxis]


EXPERIMENT = Experiment(
    name="aggregation",
    title="Aggregation rules on the same private chains",
    source="beyond the papers",
    metrics=tuple(
        Metric(f"{name}_{metric}", f"{name} {title}", 3) for name in ROLES for metric, title in TITLES.items()
    ),
    cells=aggregation_cells,
    measure=measure_aggregation,
    figures=aggregation_figures,
    check_data=check_recalibration_data,
    notes=NOTES,
)
