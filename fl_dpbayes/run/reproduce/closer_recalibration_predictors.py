"""Trains the chains of a task of `closer-recalibration` and gives each one's predictor, as it is and recalibrated."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from fl_dpbayes.calibration.bins import Floats
from fl_dpbayes.calibration.recalibration.descent import fit, private_fit
from fl_dpbayes.calibration.recalibration.maps import recalibrate
from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.recalibration import RecalibrationMap, RecalibrationPlan, parameter_count
from fl_dpbayes.config.task import Model
from fl_dpbayes.models.build import build_model
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.solve import solve_multiplier
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.run.reproduce.classification import probabilities_of, split_for_choice
from fl_dpbayes.run.reproduce.closer_recalibration_settings import NON_PRIVATE_TS, PRIVATE_MAPS
from fl_dpbayes.run.reproduce.closer_recalibration_sites import Labelled, TaskRecords
from fl_dpbayes.run.reproduce.experiment import Cell
from fl_dpbayes.run.reproduce.train import train

Predictions = Mapping[str, Floats]


@dataclass(frozen=True)
class Predictor:
    """What one method predicts at every site of a task, and what it cost; `history` None: without privacy."""

    method: str
    predictions: Predictions
    history: History | None


def predictors(cell: Cell, task: str, model: Model, records: TaskRecords) -> Iterator[Predictor]:
    """Train a task's chains and give the predictor of each, and those that are recalibrated from it.

    Args:
        cell: its settings.
        task: its name.
        model: what is trained.
        records: of the task.

    Yields:
        Predictors, the baseline first.
    """
    training = records.training
    count = len(training.labels)
    held_back = round(cell.settings["recalibration_share"] * count)
    # The same deal for all methods of a seed, independent of what the records are.
    part, recalibration = split_for_choice(count, held_back, np.random.default_rng(cell.seed))
    for method, settings in cell.settings["chains"][task].items():
        module = build_model(model, records.task, seed=cell.seed)
        rows = np.arange(count) if settings["records"] == "all" else part
        context = f"closer-recalibration {cell.label} {task} {method}"
        trained = train(
            module, training.features[rows], training.labels[rows], plan_of(settings, len(rows)),
            Streams.from_insecure_seed(cell.seed, context),
        )  # fmt: skip
        posterior = trained.posterior if settings["averaged"] else trained.last
        found = Predictor(method, _predict(module, posterior, records.sites), trained.history)
        yield found
        if settings["recalibrated"]:
            held = Labelled(training.features[recalibration], training.labels[recalibration])
            probabilities = probabilities_of(module, posterior, held.features)
            streams = Streams.from_insecure_seed(cell.seed, f"{context} recalibration")
            yield from _recalibrated(
                found, probabilities, held.labels, settings["recalibrated"], cell.settings, streams
            )


def plan_of(settings: Mapping[str, Any], units: int) -> TrainingPlan:
    """Make the plan of a chain for a number of training records.

    Args:
        settings: `steps`, `batch` (expected), `sampler`, `privacy`.
        units: number of training records.

    Returns:
        The plan; the second half of the steps is kept, thinned to at most 40 samples.
    """
    steps = settings["steps"]
    return TrainingPlan.model_validate(
        {
            "rounds": 1, "steps_per_round": steps, "burn_in": steps // 2, "thinning": max(1, steps // 80),
            "sampler": settings["sampler"], "chain_start": "broadcast",
            "privacy": {**settings["privacy"], "sampling_rate": min(1.0, settings["batch"] / units)},
        }
    )  # fmt: skip


def fit_privately(
    probabilities: Floats,
    labels: npt.NDArray[np.int64],
    plan: RecalibrationPlan,
    generator: np.random.Generator,
) -> tuple[RecalibrationMap, History]:
    """Fit a map on records that were not trained on, each of them its own privacy unit.

    Args:
        probabilities: shape (N, C), N >= 1.
        labels: shape (N,).
        plan: with an epsilon, which the noise is solved from.
        generator: draws the noise.

    Returns:
        The map and its cost.
    """
    assert plan.epsilon is not None
    found = private_fit(
        probabilities, labels, np.arange(len(labels)), plan=plan,
        noise_multiplier=solve_multiplier(plan.epsilon, plan.delta, 1.0, plan.steps), units=len(labels),
        start=np.zeros(parameter_count(plan.method, probabilities.shape[1])), first_step=0, steps=plan.steps,
        generator=generator,
    )  # fmt: skip
    return RecalibrationMap(method=plan.method, parameters=tuple(map(float, found.parameters))), found.history


def _recalibrated(
    found: Predictor,
    probabilities: Floats,
    labels: npt.NDArray[np.int64],
    names: Mapping[str, str],
    settings: Mapping[str, Any],
    streams: Streams,
) -> Iterator[Predictor]:
    for kind, name in names.items():
        if kind == NON_PRIVATE_TS:
            yield Predictor(name, _mapped(found, fit("temperature", probabilities, labels)), None)
            continue
        plan = RecalibrationPlan(
            method=PRIVATE_MAPS[kind], epsilon=settings["epsilon"], delta=settings["delta"],
            adjacency="add_or_remove_one", rounds=1, **settings["recalibration"],
        )  # fmt: skip
        mapping, history = fit_privately(probabilities, labels, plan, streams.generator(kind))
        assert found.history is not None
        # The parts are disjoint, so the cost is the larger of the two (proposition A.1).
        costlier = max(found.history, history, key=lambda one: pld_epsilon(one, plan.delta))
        yield Predictor(name, _mapped(found, mapping), costlier)


def _mapped(found: Predictor, mapping: RecalibrationMap) -> Predictions:
    return {site: recalibrate(values, mapping) for site, values in found.predictions.items()}


def _predict(module: nn.Module, posterior: PosteriorSamples, sites: Mapping[str, Labelled]) -> Predictions:
    return {site: probabilities_of(module, posterior, records.features) for site, records in sites.items()}
