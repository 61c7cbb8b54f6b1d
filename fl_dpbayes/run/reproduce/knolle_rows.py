"""What a chain's predictors give: the last iterate, the average over the chain, and the last after DP temperature."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.privacy.events import History
from fl_dpbayes.privacy.splits import unit_scores
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.run.reproduce.classification import probabilities_of
from fl_dpbayes.run.reproduce.private_temperature import private_temperature
from fl_dpbayes.run.reproduce.train import train

SGD, DP_SGD, DP_SGLD = "SGD", "DP-SGD", "DP-SGLD"


@dataclass(frozen=True)
class Labelled:
    """Records as a model sees them: features (N, *shape), float32, and classes (N,)."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def __getitem__(self, rows: npt.NDArray) -> "Labelled":
        """Return the records at `rows`."""
        return Labelled(self.features[rows], self.labels[rows])


@dataclass(frozen=True)
class Predictor:
    """One way to predict from one chain.

    Attributes:
        method: its name in the table.
        probabilities: one array (N, classes) per evaluated part, in the order of the parts.
        history: what it cost; None without privacy.
        temperature: by which it was recalibrated; None where it was not.
    """

    method: str
    probabilities: tuple[npt.NDArray[np.float64], ...]
    history: History | None
    temperature: float | None = None


def split(units: npt.NDArray, held_back: float, key: bytes) -> tuple[npt.NDArray, npt.NDArray]:
    """Deal units into those that are trained on and those held back, each by its own keyed hash.

    Args:
        units: N names.
        held_back: expected share to keep from training.
        key: 1 to 64 bytes.

    Returns:
        Rows to train on, rows held back.
    """
    kept = unit_scores(units.tolist(), key) < held_back
    return np.flatnonzero(~kept), np.flatnonzero(kept)


def predictors(
    module: nn.Module,
    method: str,
    plan_values: Mapping[str, Any],
    trained_on: Labelled,
    held_back: Labelled,
    evaluated: tuple[Labelled, ...],
    streams: Streams,
) -> tuple[Predictor, ...]:
    """Train one chain and predict with it.

    Args:
        module: the model at its start.
        method: the chain's name in the table.
        plan_values: of a training plan.
        trained_on: the chain's records.
        held_back: records for the temperature, disjoint from them.
        evaluated: parts to predict.
        streams: source of all randomness.

    Returns:
        Last iterate and average over the kept iterates; with privacy also the last after DP temperature.
    """
    plan = TrainingPlan.model_validate(plan_values)
    trained = train(module, trained_on.features, trained_on.labels, plan, streams)
    last = tuple(probabilities_of(module, trained.last, part.features) for part in evaluated)
    average = tuple(probabilities_of(module, trained.posterior, part.features) for part in evaluated)
    found = (
        Predictor(method, last, trained.history),
        Predictor(f"{method}, chain average", average, trained.history),
    )
    if trained.history is None or trained.delta is None:
        return found
    recalibrated = private_temperature(
        probabilities_of(module, trained.last, held_back.features),
        held_back.labels,
        last,
        trained=trained.history,
        epsilon=plan.privacy.epsilon,
        delta=trained.delta,
        generator=streams.generator("recalibration"),
    )
    return (
        *found,
        Predictor(
            f"{method} + DP temperature",
            recalibrated.probabilities,
            recalibrated.history,
            recalibrated.temperature,
        ),
    )
